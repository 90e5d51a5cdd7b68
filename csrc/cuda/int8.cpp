// scaled_mm and int8_mm on CUDA: problem -> kernel -> launch.
#include <torch/csrc/stable/library.h>

#include "cuda/compiled.h"
#include "cuda/int8.h"
#include "cuda/k_scales.h"
#include "cuda/program.h"
#include "dispatch/choose.h"
#include "ops/namespace.h"
#include "ops/int8.h"

namespace scaled_mm::cuda {

void multiply(Int8Problem& p, const Scope& scope) {
  must_fit("a", "rows", p.size.m);
  must_fit("b", "columns", p.size.n);
  const Kernel<Int8Problem>* const kernel = choose<Int8Problem>(p.size, scope.device);
  if (!kernel) refuse_size<Int8Problem>(p.size, scope.device);
  align_factors(p, scope);
  kernel->run(p, scope);
}

namespace {

void run(Checked<Int8Problem>& checked) {
  Int8Problem& p = checked.problem;
  if (p.size.m > 0 && p.size.n > 0) multiply(p, Scope(checked.outputs[0]));
}

using Ops = Int8Ops<run, multiply_blocks>;

// By what was compiled for the program; else the sums go to memory, and one more kernel interprets
// it.
std::vector<Tensor> epilogue_mm(const Tensor& a, const Tensor& b, std::vector<Tensor> operands,
                                std::vector<int64_t> program, const Shape& b_shape,
                                bool b_settled) {
  Checked<ProgramProblem> checked = check_epilogue_mm(a, b, operands, program, b_shape, b_settled);
  const auto [m, n] = std::pair(checked.problem.product.size.m, checked.problem.product.size.n);
  if (m == 0 || n == 0) return checked.outputs;
  const Scope scope(a);
  if (run_compiled(checked.problem, program, scope)) return checked.outputs;
  Int8Problem product = checked.problem.product;
  auto* const sums = scope.allocate<int32_t>(m * n);
  product.d = sums;
  multiply(product, scope);
  interpret(program_params(checked.problem.program, sums, m, n), scope);
  return checked.outputs;
}

// acc has no gaps.
Tensor scaled_epilogue(const Tensor& acc, const Tensor& scale_a, const Tensor& scale_b,
                       const std::optional<Tensor>& bias, const std::optional<Tensor>& azp,
                       const std::optional<Tensor>& azp_adj,
                       const std::optional<Tensor>& azp_with_adj, ScalarType out_dtype) {
  if (!acc.is_contiguous()) refuse("acc", "be contiguous on a GPU", "gaps");
  const Checked<Int8Problem> checked =
      check_scaled_epilogue(acc, scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, out_dtype);
  const Int8Problem& p = checked.problem;
  if (p.size.m > 0 && p.size.n > 0) {
    const Scope scope(checked.outputs[0]);
    finish_partials(static_cast<const int32_t*>(acc.const_data_ptr()), 1, p, scope);
  }
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cuda::Ops::scaled_mm));
  ops.impl("scaled_mm.out", TORCH_BOX(&scaled_mm::cuda::Ops::scaled_mm_out));
  ops.impl("_scaled_mm_plain", TORCH_BOX(&scaled_mm::cuda::Ops::scaled_mm_plain));
  ops.impl("epilogue_mm", TORCH_BOX(&scaled_mm::cuda::epilogue_mm));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cuda::Ops::int8_mm));
  ops.impl("int8_mm.out", TORCH_BOX(&scaled_mm::cuda::Ops::int8_mm_out));
  ops.impl("_scaled_epilogue", TORCH_BOX(&scaled_mm::cuda::scaled_epilogue));
}
