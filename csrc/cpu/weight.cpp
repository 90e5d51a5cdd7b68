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

// Four values of k of one column, as they lie in a packed group.
uint32_t load_group(const int8_t* column, int64_t stride, int64_t left) {
  uint32_t group = 0;
  for (int i = 0; i < kGroup && i < left; ++i) {
    const uint8_t value = static_cast<uint8_t>(column[i * stride]) ^ 0x80;
    group |= uint32_t{value} << (8 * i);
  }
  return group;
}

void pack_panel(const Weight& b, int64_t panel, uint8_t* out) {
  const int64_t first = panel * kPanel;
  const int count = static_cast<int>(std::min<int64_t>(kPanel, b.n - first));
  const Matrix<const int8_t>& plain = b.plain;
  std::memset(out, 0, panel_bytes(b.k));
  for (int64_t g = 0; g < groups(b.k); ++g) {
    const int8_t* from = plain.data + g * kGroup * plain.row_stride + first * plain.col_stride;
    const int64_t left = b.k - g * kGroup;
    for (int n = 0; n < count; ++n) {
      const uint32_t group = load_group(from + n * plain.col_stride, plain.row_stride, left);
      std::memcpy(out + g * kGroupBytes + n * kGroup, &group, sizeof group);
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
  Checked<Weight> checked = check_pack_weight(b);
  pack(checked.problem, static_cast<uint8_t*>(checked.outputs[0].mutable_data_ptr()));
  return checked.outputs[0];
}

}  // namespace

void pack(const Weight& b, uint8_t* packed) {
  const int64_t grain = std::max<int64_t>(1, columns_per_task(b.k) / kPanel);
  torch::stable::parallel_for(0, panels(b.n), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pack_panel(b, i, packed + i * panel_bytes(b.k));
  });
}

Buffer<uint8_t> pack_unless_streamable(Weight& b) {
  if (b.packed || b.plain.row_stride == 1 || b.k <= 1) return Buffer<uint8_t>(0);
  Buffer<uint8_t> buffer(static_cast<size_t>(packed_weight_bytes(b.k, b.n)));
  pack(b, buffer.data());
  b.packed = buffer.data();
  return buffer;
}

}  // namespace cpu
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("azp_adj", TORCH_BOX(&scaled_mm::cpu::azp_adj));
  ops.impl("azp_with_adj", TORCH_BOX(&scaled_mm::cpu::azp_with_adj));
  ops.impl("pack_weight_int8", TORCH_BOX(&scaled_mm::cpu::pack_weight_int8));
}
