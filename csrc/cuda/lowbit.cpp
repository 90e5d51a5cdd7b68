// The lowbit ops on CUDA: problem -> kernel -> launch.
#include "cuda/lowbit.h"

#include <torch/csrc/stable/library.h>

#include "cuda/common/alignment.h"
#include "dispatch/choose.h"
#include "ops/lowbit.h"
#include "ops/namespace.h"

namespace scaled_mm::cuda {

void align_residual(LowbitProblem& p, const Scope& scope) {
  if (!p.residual.data) return;
  const Matrix<const uint16_t> given{static_cast<const uint16_t*>(p.residual.data),
                                     p.residual.row_stride, 1};
  const auto rows = aligned_rows(given, p.m, p.columns, scope);
  p.residual = {rows.data, p.w.dtype, rows.row_stride, 1};
}

namespace {

// Rows that are read by vectors of eight elements.
void align_groups(LowbitWeight& w, const Scope& scope) {
  if (w.packing == Packing::units) return;
  const int64_t groups = w.k / w.group;
  w.scales = aligned_rows(w.scales, groups, w.padded_n(), scope);
  if (w.zero_point == ZeroPoint::real) {
    w.real_zeros = aligned_rows(w.real_zeros, groups, w.padded_n(), scope);
  }
}

Tensor dequantize_checked(Checked<LowbitProblem> checked) {
  LowbitWeight& w = checked.problem.w;
  const Tensor& d = checked.outputs[0];
  if (w.k == 0 || w.n == 0) return d;
  const Scope scope(d);
  align_groups(w, scope);
  with_padded_rows(checked.problem.d, w.k, w.n, scope,
                   [&](uint16_t* out, int64_t) { dequantize(w, out, false, scope); });
  return d;
}

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  return dequantize_checked(check_awq_dequantize(qweight, scales, qzeros));
}
Tensor mixed_dequantize(const Tensor& packed, const std::vector<int64_t>& sizes) {
  return dequantize_checked(check_mixed_dequantize(packed, sizes));
}

// The product by the kernel that suits it best. p.w.n is a multiple of 8.
void multiply(LowbitProblem& p, const Scope& scope) {
  const Kernel<LowbitProblem>* const kernel = choose<LowbitProblem>(p.size(), scope.device);
  if (!kernel) refuse_size<LowbitProblem>(p.size(), scope.device);
  p.x = arrange_tokens(p, scope);
  align_groups(p.w, scope);
  kernel->run(p, scope);
}

void run(Checked<LowbitProblem>& checked, const Tensor& x) {
  LowbitProblem& p = checked.problem;
  if (p.m == 0 || p.w.n == 0) return;
  must_fit("x", "rows", p.m);
  must_fit("qweight", "columns", p.w.padded_n());
  must_fit("x", "bytes in a row", 2 * p.w.k);  // what TMA counts, and the loaders
  const Scope scope(checked.outputs[0]);
  if (p.x.col_stride != 1 && p.w.k > 1 && !p.order && !p.pre_scale.data) {
    const Tensor& copy = checked.inputs.emplace_back(row_major_copy(x));
    p.x = {static_cast<const uint16_t*>(copy.const_data_ptr()), p.w.k, 1};
  }
  with_padded_rows(p.d, p.m, p.out_columns(), scope, [&](uint16_t* d, int64_t ldd) {
    LowbitProblem padded = p;
    padded.w.n = p.w.padded_n();
    padded.d = d;
    padded.ldd = ldd;
    align_residual(padded, scope);
    p.w.k == 0 ? fill(padded, scope) : multiply(padded, scope);
  });
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
