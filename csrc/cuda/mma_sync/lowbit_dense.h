// Lines of a lowbit.table that dequantise W to memory and multiply by CUTLASS. setup.py compiles
// this for a few lines at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X)
// defined as X(name) of each.
#include "cuda/common/relayout.h"
#include "cuda/cutlass2/gemm.h"
#include "cuda/lowbit.h"
#include "cuda/mma_sync/model.h"
#include "epilogue/epilogues.h"

namespace scaled_mm::cuda::mma_sync {

template <const auto& kTile, const Gpus& kGpus>
void run_dense(const LowbitProblem& p, const Scope& scope) {
  constexpr int64_t kVector = 8;  // elements of 16 bytes: K has to be a multiple of it
  const int64_t m = p.m, n = p.w.n, k = p.w.k, whole = round_up(k, kVector);
  auto* const w = scope.allocate<uint16_t>(whole * n);
  dequantize(p.w, w, false, scope);
  Matrix<const uint16_t> x = p.x;
  if (whole > k) {  // rows of X that end in zeros, and rows of W that are
    check(cudaMemsetAsync(w + k * n, 0, 2 * (whole - k) * n, scope.stream), "cudaMemsetAsync");
    auto* const rows = scope.allocate<int8_t>(2 * m * whole);
    relayout({reinterpret_cast<const int8_t*>(x.data), 2 * x.row_stride, 1}, m, 2 * k, rows,
             2 * whole, scope.stream);
    x = {reinterpret_cast<const uint16_t*>(rows), whole, 1};
  }
  EpilogueOperand operands[kNumOperands];
  operands[static_cast<int>(Operand::bias)] = p.bias;
  const cutlass2::GemmArguments args{.m = m,
                                     .n = p.columns,
                                     .k = whole,
                                     .a = x.data,
                                     .lda = x.row_stride,
                                     .b = w,
                                     .ldb = n,
                                     .operands = operands,
                                     .to = {},
                                     .end = end_of(p)};
  with_dtype16(p.w.dtype, [&](auto dtype) {
    if constexpr (kGpus.multistage || dtype == DType::float16) {  // else it was refused
      using T = std::conditional_t<dtype == DType::float16, cutlass::half_t, cutlass::bfloat16_t>;
      using Of = cutlass2::Multiplied<T, kGpus.multistage>;
      cutlass2::GemmOf<kTile, epilogue::BiasedSum, Of>::run(args, scope);
    }
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit {

template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  mma_sync::run_dense<kTile, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const LowbitProblem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit
