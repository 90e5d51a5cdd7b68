// awq_dequantize and awq_gemm on CUDA: problem -> kernel -> launch.
#include "cuda/lowbit.h"

#include <torch/csrc/stable/library.h>

#include "cuda/common/alignment.h"
#include "dispatch/choose.h"
#include "namespace.h"

namespace scaled_mm::cuda {
namespace {

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  Checked<LowbitProblem> checked = check_awq_dequantize(qweight, scales, qzeros);
  LowbitWeight& w = checked.problem.w;
  const Tensor& d = checked.outputs[0];
  if (w.k == 0 || w.n == 0) return d;
  const Scope scope(d);
  w.scales = aligned_rows(w.scales, w.k / w.group, w.n, scope);
  dequantize(w, checked.problem.d, false, scope);
  return d;
}

void run(Checked<LowbitProblem>& checked, const Tensor& x) {
  LowbitProblem& p = checked.problem;
  if (p.m == 0 || p.w.n == 0) return;
  must_fit("x", "rows", p.m);
  must_fit("qweight", "columns, 8 to a word,", p.w.n);
  must_fit("qweight", "rows", p.w.k);
  const Scope scope(checked.outputs[0]);
  if (p.w.k == 0) return fill_with_bias(p, scope);
  const Kernel<LowbitProblem>* const kernel = choose<LowbitProblem>(p.size(), scope.device);
  if (!kernel) refuse_size<LowbitProblem>(p.size(), scope.device);
  if (p.x.col_stride != 1 && p.w.k > 1) {
    const Tensor& copy = checked.inputs.emplace_back(row_major_copy(x));
    p.x = {static_cast<const uint16_t*>(copy.const_data_ptr()), p.w.k, 1};
  }
  p.x = aligned_rows(p.x, p.m, p.w.k, scope);
  if (p.w.packing == Packing::awq) {
    p.w.scales = aligned_rows(p.w.scales, p.w.k / p.w.group, p.w.n, scope);
  }
  kernel->run(p, scope);
}

using Ops = LowbitOps<run>;

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("awq_dequantize", TORCH_BOX(&scaled_mm::cuda::awq_dequantize));
  ops.impl("awq_gemm", TORCH_BOX(&scaled_mm::cuda::Ops::awq_gemm));
  ops.impl("awq_gemm.out", TORCH_BOX(&scaled_mm::cuda::Ops::awq_gemm_out));
  ops.impl("awq_gemm_packed", TORCH_BOX(&scaled_mm::cuda::Ops::awq_gemm_packed));
  ops.impl("awq_gemm_packed.out", TORCH_BOX(&scaled_mm::cuda::Ops::awq_gemm_packed_out));
}
