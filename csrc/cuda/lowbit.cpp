// awq_dequantize and awq_gemm on CUDA: problem -> kernel -> launch.
#include "cuda/lowbit.h"

#include <torch/csrc/stable/library.h>

#include "cuda/common/alignment.h"
#include "dispatch/choose.h"
#include "namespace.h"

namespace scaled_mm::cuda {
namespace {

// What the kernels know so far.
void must_be_known(const LowbitProblem& p) {
  const LowbitWeight& w = p.w;
  if (w.bits != 4 || w.zero_point != ZeroPoint::integer || w.n % 8 != 0) {
    refuse("packed", "have 4 bits, integer zero points and a multiple of 8 columns on a GPU",
           cat(w.bits, " bits, ", kZeroPointNames[static_cast<int>(w.zero_point)],
               " zero points, N=", w.n));
  }
  if (p.order) refuse("order", "be None on a GPU", "a Tensor");
  if (p.pre_scale.data) refuse("pre_scale", "be None on a GPU", "a Tensor");
  if (p.activation != LowbitActivation::none) {
    refuse("activation", "be None on a GPU",
           kLowbitActivationNames[static_cast<int>(p.activation)]);
  }
}

Tensor dequantize_checked(Checked<LowbitProblem> checked) {
  must_be_known(checked.problem);
  LowbitWeight& w = checked.problem.w;
  const Tensor& d = checked.outputs[0];
  if (w.k == 0 || w.n == 0) return d;
  const Scope scope(d);
  if (w.packing == Packing::awq) {
    w.scales = aligned_rows(w.scales, w.k / w.group, w.n, scope);
  }
  dequantize(w, checked.problem.d, false, scope);
  return d;
}

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  return dequantize_checked(check_awq_dequantize(qweight, scales, qzeros));
}
Tensor mixed_dequantize(const Tensor& packed, const std::vector<int64_t>& sizes) {
  return dequantize_checked(check_mixed_dequantize(packed, sizes));
}

void run(Checked<LowbitProblem>& checked, const Tensor& x) {
  LowbitProblem& p = checked.problem;
  must_be_known(p);
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
  ops.impl("mixed_dequantize", TORCH_BOX(&scaled_mm::cuda::mixed_dequantize));
  ops.impl("mixed_mm", TORCH_BOX(&scaled_mm::cuda::Ops::mixed_mm));
  ops.impl("mixed_mm.out", TORCH_BOX(&scaled_mm::cuda::Ops::mixed_mm_out));
}
