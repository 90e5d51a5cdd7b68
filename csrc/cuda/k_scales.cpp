// Products with scales along K on CUDA: problem -> kernel -> launch.
#include "cuda/k_scales.h"

#include <torch/csrc/stable/library.h>

#include "cuda/common/alignment.h"
#include "cuda/int8.h"
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

void multiply_w4a8(Checked<KScalesProblem>& checked) {
  KScalesProblem& p = checked.problem;
  if (is_empty(p)) return;
  const Scope scope(checked.outputs[0]);
  if (p.product.size.k > 0) p.product.a = arrange_columns(p, scope);
  multiply_groups(p, scope);
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
  multiply_groups(p, scope);
}

}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("w4a8_mm", TORCH_BOX(&scaled_mm::cuda::Ops::w4a8_mm));
  ops.impl("w4a8_mm.out", TORCH_BOX(&scaled_mm::cuda::Ops::w4a8_mm_out));
}
