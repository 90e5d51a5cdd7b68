// w4a8_mm, and scaled_mm in blocks, on the CPU: the arithmetic is in k_scales.h, here are tasks.
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "ops/k_scales.h"
#include "ops/namespace.h"

namespace scaled_mm::cpu {

void check_order(const int32_t* order, int64_t k);  // lowbit.cpp

namespace {

// A's columns in the order of the weight's rows.
void gather(Checked<KScalesProblem>& checked) {
  Int8Problem& p = checked.problem.product;
  const int32_t* const order = checked.problem.order;
  const int64_t m = p.size.m, k = p.size.k;
  check_order(order, k);
  const Tensor& made =
      checked.inputs.emplace_back(new_empty(checked.outputs[0], {m, k}, ScalarType::Char));
  auto* const to = static_cast<int8_t*>(made.mutable_data_ptr());
  for (int64_t row = 0; row < m; ++row) {
    const int8_t* from = p.a.data + row * p.a.row_stride;
    for (int64_t i = 0; i < k; ++i) to[row * k + i] = from[order[i] * p.a.col_stride];
  }
  p.a = {to, k, 1};
}

}  // namespace

void multiply_groups(Checked<KScalesProblem>& checked) {
  // Of A's rows what a span meets is in L2, beside the span's bytes and the sums of its columns.
  constexpr int64_t kSpanBytes = 256 * 1024, kMostRows = 256;
  const KScalesProblem& p = checked.problem;
  const Int8Problem::Size& size = p.product.size;
  const InstructionSet& isa = instruction_set();
  if (size.m == 0 || size.n == 0) return;
  if (p.order) gather(checked);
  const int64_t width = std::clamp<int64_t>(size.k, 1, kSpanRows) * isa.a_value_bytes;
  const int64_t fitting = std::min(kMostRows, kSpanBytes / width);
  const Tiling tiling = cut_rows(size.m, ceil_div(size.n, kKScalesCols), isa.tile_rows,
                                 std::max<int64_t>(fitting, isa.tile_rows));
  run_tasks(tiling, tiling.block_rows * kKScalesCols * size.k,
            [&](int64_t begin, int64_t end) { isa.k_scales_gemm(p, tiling, begin, end); });
}

namespace {

using Ops = W4A8Ops<multiply_groups>;

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("w4a8_mm", TORCH_BOX(&scaled_mm::cpu::Ops::w4a8_mm));
  ops.impl("w4a8_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::w4a8_mm_out));
}
