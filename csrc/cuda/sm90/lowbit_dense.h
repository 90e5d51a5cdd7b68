// The line of lowbit.table that dequantises W to memory and multiplies by CUTLASS. setup.py
// compiles this with SCALED_MM_KERNEL_NAME defined as its name.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // the kernel waits for the one before where it reads

#include "cuda/cutlass3/gemm.h"
#include "cuda/lowbit.h"
#include "cuda/sm90/arch.h"
#include "epilogue/epilogues.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::lowbit {
namespace {

// 16-bit floats, float32 sums.
template <class T, class E, const Dense& kTile>
using DenseGemm =
    cutlass3::Gemm<T, cutlass::layout::RowMajor, T, cutlass::layout::RowMajor, float, uint16_t, E,
                   cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>, cute::_64>,
                   cute::Shape<cute::_1, cute::_1, cute::_1>, false>;

}  // namespace

template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  constexpr int64_t kL2Share = 40'000'000;  // bytes that stay in L2 until they are read
  auto* const w = scope.allocate<uint16_t>(p.w.k * p.w.n);
  dequantize(p.w, w, 2 * p.w.k * p.w.n <= kL2Share, scope);
  EpilogueOperand operands[kNumOperands];
  operands[static_cast<int>(Operand::bias)] = p.bias;
  operands[static_cast<int>(Operand::residual)] = p.residual;
  const cutlass3::GemmArguments args{
      .m = p.m,
      .n = p.columns,
      .k = p.w.k,
      .a = p.x.data,
      .lda = p.x.row_stride,
      .b = w,
      .ldb = p.w.n,
      .operands = operands,
      .to = {{p.d, p.w.dtype, true}, p.ldd, p.function, true},
      .swizzle = choose_swizzle(8, ceil_div(p.m, kTile.tile_m), ceil_div(p.w.n, kTile.tile_n))};
  with_dtype16(p.w.dtype, [&](auto dtype) {
    using T = std::conditional_t<dtype == DType::float16, cutlass::half_t, cutlass::bfloat16_t>;
    using epilogue::BiasedSum;
    using Residual = epilogue::Apply<epilogue::Add, BiasedSum, epilogue::Residual>;
    if (p.gated) {
      DenseGemm<T, epilogue::Gated<BiasedSum>, kTile>::run(args, scope.device, scope);
    } else if (p.residual.data) {
      DenseGemm<T, Residual, kTile>::run(args, scope.device, scope);
    } else {
      DenseGemm<T, epilogue::Activated<BiasedSum>, kTile>::run(args, scope.device, scope);
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const LowbitProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::lowbit
