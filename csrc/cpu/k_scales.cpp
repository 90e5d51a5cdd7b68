// w4a8_mm, and scaled_mm in blocks, on the CPU: the arithmetic is in k_scales.h, here are tasks.
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "ops/namespace.h"
#include "problems/k_scales.h"

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
  constexpr int64_t kBlockBytes = 512 * 1024;  // of A's rows, as in int8.cpp
  const KScalesProblem& p = checked.problem;
  const Int8Problem::Size& size = p.product.size;
  const InstructionSet& isa = instruction_set();
  if (size.m == 0 || size.n == 0) return;
  if (p.order) gather(checked);
  const int64_t fitting = kBlockBytes / std::max<int64_t>(size.k * isa.a_value_bytes, 1);
  const Tiling tiling = cut_rows(size.m, ceil_div(size.n, kKScalesCols), isa.tile_rows,
                                 std::max<int64_t>(fitting, isa.tile_rows));
  run_tasks(tiling, tiling.block_rows * kKScalesCols * size.k,
            [&](int64_t begin, int64_t end) { isa.k_scales_gemm(p, tiling, begin, end); });
}

namespace {

using Text = std::optional<std::string>;
using Maybe = std::optional<Tensor>;

Tensor computed(Checked<KScalesProblem> checked) {
  multiply_groups(checked);
  return checked.outputs[0];
}

Int8Ending ending(const Maybe& bias, const Maybe& residual, const Text& activation,
                  const std::optional<ScalarType>& out_dtype, const Maybe& out) {
  Int8Ending made;
  made.bias = bias;
  made.residual = residual;
  made.activation = activation;
  made.out_dtype = out_dtype;
  made.out = out;
  return made;
}

Tensor w4a8_mm(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
               const Tensor& scale_a, const Maybe& order, const Maybe& azp, const Maybe& bias,
               const Maybe& residual, const Text& activation,
               const std::optional<ScalarType>& out_dtype) {
  return computed(check_w4a8_mm(
      {x, packed, sizes, scale_a, order, azp, ending(bias, residual, activation, out_dtype, {})}));
}
void w4a8_mm_out(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                 const Tensor& scale_a, const Maybe& order, const Maybe& azp, const Maybe& bias,
                 const Maybe& residual, const Text& activation,
                 const std::optional<ScalarType>& out_dtype, const Tensor& out) {
  computed(check_w4a8_mm(
      {x, packed, sizes, scale_a, order, azp, ending(bias, residual, activation, out_dtype, out)}));
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("w4a8_mm", TORCH_BOX(&scaled_mm::cpu::w4a8_mm));
  ops.impl("w4a8_mm.out", TORCH_BOX(&scaled_mm::cpu::w4a8_mm_out));
}
