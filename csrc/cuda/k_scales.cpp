// Products with scales along K on CUDA: problem -> kernel -> launch.
#include "cuda/k_scales.h"

#include <torch/csrc/stable/library.h>

#include "cuda/int8.h"
#include "dispatch/choose.h"
#include "ops/k_scales.h"
#include "ops/namespace.h"

namespace scaled_mm::cuda {
namespace {

bool is_empty(const KScalesProblem& p) {
  const Int8Problem::Size& size = p.product.size;
  if (size.m == 0 || size.n == 0) return true;
  must_fit(p.in_blocks() ? "a" : "x", "rows", size.m);
  must_fit(p.in_blocks() ? "b" : "packed", "columns", size.n);
  return false;
}

void multiply(const KScalesProblem& p, const Scope& scope) {
  const KScalesProblem::Size size = p.size();
  if (size.k == 0) return end_nothing(p, scope);
  const Kernel<KScalesProblem>* const kernel = choose<KScalesProblem>(size, scope.device);
  if (!kernel) refuse_size<KScalesProblem>(size, scope.device);
  kernel->run(p, scope);
}

void multiply_w4a8(Checked<KScalesProblem>& checked) {
  if (is_empty(checked.problem)) return;
  multiply(checked.problem, Scope(checked.outputs[0]));
}

using Ops = W4A8Ops<multiply_w4a8>;

}  // namespace

void multiply_blocks(Checked<KScalesProblem>& checked) {
  KScalesProblem& p = checked.problem;
  if (is_empty(p)) return;
  Int8Problem& product = p.product;
  const Scope scope(checked.outputs[0]);
  product.operands[static_cast<int>(Operand::scale_a)].data = nullptr;  // 1, on the host
  align_factors(product, scope);
  multiply(p, scope);
}

}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("w4a8_mm", TORCH_BOX(&scaled_mm::cuda::Ops::w4a8_mm));
  ops.impl("w4a8_mm.out", TORCH_BOX(&scaled_mm::cuda::Ops::w4a8_mm_out));
}
