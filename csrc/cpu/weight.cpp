// pack_weight_int8, azp_adj and azp_with_adj on the CPU.
#include "cpu/packed.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>

#include "ops/int8.h"
#include "ops/namespace.h"

namespace scaled_mm {

int64_t packed_weight_bytes(int64_t k, int64_t n) { return cpu::panels(n) * cpu::panel_bytes(k); }

namespace cpu {
namespace {

// Work on columns is shared out in pieces of about this many elements.
constexpr int64_t kElementsPerTask = 1 << 16;

int64_t panels_per_task(int64_t k) {
  return std::max<int64_t>(1, kElementsPerTask / kPanel / std::max<int64_t>(k, 1));
}

// Four values of k of one column, as they lie in a packed group; the first `count` are there.
uint32_t gather_group(const int8_t* column, int64_t stride, int64_t count) {
  uint32_t group = 0;
  for (int64_t i = 0; i < std::min<int64_t>(kGroup, count); ++i) {
    group |= uint32_t{static_cast<uint8_t>(column[i * stride] ^ 0x80)} << (8 * i);
  }
  return group;
}

// Four lanes of 32 bits, on any machine.
using Lanes = uint32_t __attribute__((vector_size(16)));
Lanes load(const void* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// Four whole groups of a whole panel whose values of k lie side by side (the transpose of a [N, K]
// weight): 4 x 4 transposes of groups, four columns at a time.
void pack_four_groups(const int8_t* from, int64_t col_stride, uint32_t* out) {
  for (int n = 0; n < kPanel; n += 4) {
    const int8_t* column = from + n * col_stride;
    const Lanes c0 = load(column), c1 = load(column + col_stride);
    const Lanes c2 = load(column + 2 * col_stride), c3 = load(column + 3 * col_stride);
    const Lanes low01 = __builtin_shufflevector(c0, c1, 0, 4, 1, 5);
    const Lanes low23 = __builtin_shufflevector(c2, c3, 0, 4, 1, 5);
    const Lanes high01 = __builtin_shufflevector(c0, c1, 2, 6, 3, 7);
    const Lanes high23 = __builtin_shufflevector(c2, c3, 2, 6, 3, 7);
    const Lanes group[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                            __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                            __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                            __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
    for (int g = 0; g < 4; ++g) {
      const Lanes flipped = group[g] ^ 0x80808080u;
      std::memcpy(out + g * kPanel + n, &flipped, sizeof flipped);
    }
  }
}

// One whole group of a whole panel.
void pack_group(const int8_t* from, const Matrix<const int8_t>& b, uint32_t* out) {
  if (b.col_stride == 1) {  // columns side by side
    uint8_t row[kGroup][kPanel];
    for (int i = 0; i < kGroup; ++i) std::memcpy(row[i], from + i * b.row_stride, kPanel);
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

// sums[i] = sum_k b[k, n + i] for count <= kPanel columns, modulo 2^32; n begins a panel.
void sum_columns(const Weight& b, int64_t n, int count, uint32_t* sums) {
  std::fill(sums, sums + kPanel, 0u);
  if (b.packed) {  // padding is 0, elements are offset by 128
    const uint8_t* panel = b.packed + n / kPanel * panel_bytes(b.k);
    for (int64_t g = 0; g < groups(b.k); ++g) {
      uint32_t group[kPanel];
      std::memcpy(group, panel + g * kGroupBytes, sizeof group);
      for (int i = 0; i < kPanel; ++i) {
        const uint32_t x = group[i];
        sums[i] += (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
      }
    }
    for (int i = 0; i < kPanel; ++i) sums[i] -= static_cast<uint32_t>(128 * b.k);
    return;
  }
  const Matrix<const int8_t>& plain = b.plain;
  const int8_t* from = plain.data + n * plain.col_stride;
  if (plain.row_stride == 1) {
    for (int i = 0; i < count; ++i) {
      int32_t sum = 0;  // |sum| <= 128 * kMaxK
      for (int64_t k = 0; k < b.k; ++k) sum += from[i * plain.col_stride + k];
      sums[i] = static_cast<uint32_t>(sum);
    }
  } else {
    for (int64_t k = 0; k < b.k; ++k) {
      const int8_t* row = from + k * plain.row_stride;
      for (int i = 0; i < count; ++i) sums[i] += static_cast<uint32_t>(row[i * plain.col_stride]);
    }
  }
}

Tensor column_sums(const Checked<ColumnSums>& checked) {
  const ColumnSums& p = checked.problem;
  const uint32_t factor = p.azp ? static_cast<uint32_t>(*p.azp) : 1;
  const auto task = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kPanel; n < std::min(end * kPanel, p.b.n); n += kPanel) {
      const int count = static_cast<int>(std::min<int64_t>(kPanel, p.b.n - n));
      uint32_t sums[kPanel];
      sum_columns(p.b, n, count, sums);
      for (int i = 0; i < count; ++i) p.out[n + i] = static_cast<int32_t>(factor * sums[i]);
    }
  };
  torch::stable::parallel_for(0, panels(p.b.n), panels_per_task(p.b.k), task);
  return checked.outputs[0];
}

using Azp = AzpOps<column_sums>;

Tensor pack_weight_int8(const Tensor& b) {
  const Checked<Weight> checked = check_pack_weight(b);
  const Weight& weight = checked.problem;
  uint8_t* packed = static_cast<uint8_t*>(checked.outputs[0].mutable_data_ptr());
  const auto task = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pack_panel(weight, i, packed + i * panel_bytes(weight.k));
    }
  };
  torch::stable::parallel_for(0, panels(weight.n), panels_per_task(weight.k), task);
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
    if (b.plain.row_stride == 1) {
      for (; g + 4 <= whole_groups; g += 4) {
        pack_four_groups(from + g * kGroup, b.plain.col_stride, group + g * kPanel);
      }
    }
    for (; g < whole_groups; ++g) {
      pack_group(from + g * kGroup * b.plain.row_stride, b.plain, group + g * kPanel);
    }
  }
  for (; g < groups(b.k); ++g) {
    const int8_t* row = from + g * kGroup * b.plain.row_stride;
    for (int64_t n = 0; n < kPanel; ++n) {
      group[g * kPanel + n] = n < count ? gather_group(row + n * b.plain.col_stride,
                                                       b.plain.row_stride, b.k - g * kGroup)
                                        : 0;
    }
  }
  std::memset(group + g * kPanel, 0, kGroupBytes);  // the skew
}

}  // namespace cpu
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("azp_adj", TORCH_BOX(&scaled_mm::cpu::Azp::azp_adj));
  ops.impl("azp_with_adj", TORCH_BOX(&scaled_mm::cpu::Azp::azp_with_adj));
  ops.impl("pack_weight_int8", TORCH_BOX(&scaled_mm::cpu::pack_weight_int8));
}
