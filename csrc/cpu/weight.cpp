// pack_weight_int8, azp_adj and azp_with_adj on the CPU.
#include "cpu/weight.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>

#include "cpu/packed.h"
#include "namespace.h"

namespace scaled_mm {

int64_t packed_weight_bytes(int64_t k, int64_t n) { return cpu::panels(n) * cpu::panel_bytes(k); }

namespace cpu {
namespace {

// Work on columns is shared out in pieces of about this many elements.
constexpr int64_t kElementsPerTask = 1 << 16;

int64_t columns_per_task(int64_t k) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(k, 1));
}

// Four values of k of one column, as they lie in a packed group; the first `count` are there.
uint32_t gather_group(const int8_t* column, int64_t stride, int64_t count) {
  uint32_t group = 0;
  for (int64_t i = 0; i < std::min<int64_t>(kGroup, count); ++i) {
    group |= uint32_t{static_cast<uint8_t>(column[i * stride] ^ 0x80)} << (8 * i);
  }
  return group;
}

// One whole group of one whole panel, for the two usual layouts: values of k side by side (the
// transpose of a [N, K] weight), or columns side by side.
void pack_group(const int8_t* from, const Matrix<const int8_t>& b, uint32_t* out) {
  if (b.row_stride == 1) {
    for (int n = 0; n < kPanel; ++n) {
      std::memcpy(out + n, from + n * b.col_stride, kGroup);
      out[n] ^= 0x80808080u;
    }
  } else if (b.col_stride == 1) {
    const uint8_t* row[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      row[i] = reinterpret_cast<const uint8_t*>(from + i * b.row_stride);
    }
    for (int n = 0; n < kPanel; ++n) {
      const uint32_t group = uint32_t{row[0][n]} | uint32_t{row[1][n]} << 8 |
                             uint32_t{row[2][n]} << 16 | uint32_t{row[3][n]} << 24;
      out[n] = group ^ 0x80808080u;
    }
  } else {
    for (int n = 0; n < kPanel; ++n) {
      out[n] = gather_group(from + n * b.col_stride, b.row_stride, kGroup);
    }
  }
}

// sum_k b[k, n], modulo 2^32.
uint32_t column_sum(const Weight& b, int64_t n) {
  uint32_t sum = 0;
  if (b.packed) {
    const uint8_t* column = b.packed + n / kPanel * panel_bytes(b.k) + n % kPanel * kGroup;
    for (int64_t k = 0; k < b.k; ++k) {
      sum += static_cast<uint32_t>(column[k / kGroup * kGroupBytes + k % kGroup] - 128);
    }
  } else {
    const int8_t* column = b.plain.data + n * b.plain.col_stride;
    for (int64_t k = 0; k < b.k; ++k) sum += static_cast<uint32_t>(column[k * b.plain.row_stride]);
  }
  return sum;
}

Tensor column_sums(Checked<ColumnSums> checked) {
  const ColumnSums& p = checked.problem;
  const uint32_t factor = p.azp ? static_cast<uint32_t>(*p.azp) : 1;
  torch::stable::parallel_for(0, p.b.n, columns_per_task(p.b.k), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      p.out[n] = static_cast<int32_t>(factor * column_sum(p.b, n));
    }
  });
  return checked.outputs[0];
}

Tensor azp_adj(const Tensor& b, Shape b_shape) {
  return column_sums(check_azp_adj(b, std::nullopt, b_shape));
}

Tensor azp_with_adj(const Tensor& b, const Tensor& azp, Shape b_shape) {
  return column_sums(check_azp_adj(b, azp, b_shape));
}

Tensor pack_weight_int8(const Tensor& b) {
  const Checked<Weight> checked = check_pack_weight(b);
  const Weight& weight = checked.problem;
  uint8_t* packed = static_cast<uint8_t*>(checked.outputs[0].mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, columns_per_task(weight.k) / kPanel);
  torch::stable::parallel_for(0, panels(weight.n), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pack_panel(weight, i, packed + i * panel_bytes(weight.k));
    }
  });
  return checked.outputs[0];
}

}  // namespace

void pack_panel(const Weight& b, int64_t panel, uint8_t* out) {
  const int64_t first = panel * kPanel, whole_groups = b.k / kGroup;
  const int64_t count = std::min<int64_t>(kPanel, b.n - first);
  const int8_t* from = b.plain.data + first * b.plain.col_stride;
  uint32_t* group = reinterpret_cast<uint32_t*>(out);  // buffers are aligned for it
  int64_t g = 0;
  if (count == kPanel) {
    for (; g < whole_groups; ++g) {
      pack_group(from + g * kGroup * b.plain.row_stride, b.plain, group + g * kPanel);
    }
  }
  for (; g < groups(b.k); ++g) {
    const int8_t* row = from + g * kGroup * b.plain.row_stride;
    for (int64_t n = 0; n < kPanel; ++n) {
      group[g * kPanel + n] =
          n < count ? gather_group(row + n * b.plain.col_stride, b.plain.row_stride,
                                   b.k - g * kGroup)
                    : 0;
    }
  }
  std::memset(group + g * kPanel, 0, kGroupBytes);  // the skew
}

}  // namespace cpu
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("azp_adj", TORCH_BOX(&scaled_mm::cpu::azp_adj));
  ops.impl("azp_with_adj", TORCH_BOX(&scaled_mm::cpu::azp_with_adj));
  ops.impl("pack_weight_int8", TORCH_BOX(&scaled_mm::cpu::pack_weight_int8));
}
