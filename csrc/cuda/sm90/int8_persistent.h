// A line of int8.table that is a persistent CUTLASS kernel. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // the kernel waits for the one before where it reads

#include "cuda/cutlass3/gemm.h"
#include "cuda/common/alignment.h"
#include "cuda/sm90/arch.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

template <const Persistent& kTile, class E, class Out>
void launch(const Int8Problem& p, const Scope& scope) {
  using Gemm = cutlass3::Gemm<
      int8_t, cutlass::layout::RowMajor, int8_t, cutlass::layout::ColumnMajor, int32_t, Out, E,
      cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>, cute::Int<kTile.tile_k>>,
      cute::Shape<cute::Int<kTile.cluster_m>, cute::Int<kTile.cluster_n>, cute::_1>,
      kTile.schedule == pingpong>;
  const auto [m, n, k, epilogue, out_dtype] = p.size;
  cutlass3::GemmArguments args{.m = m,
                               .n = n,
                               .k = k,
                               .a = p.a.data,
                               .lda = p.a.row_stride,
                               .b = p.b.plain.data,
                               .ldb = p.b.plain.col_stride,
                               .operands = p.operands,
                               .out_dtype = out_dtype};
  args.swizzle = choose_swizzle(kTile.swizzle, ceil_div(m, kTile.tile_m * kTile.cluster_m),
                                ceil_div(n, kTile.tile_n * kTile.cluster_n));
  with_aligned_output(p, scope, [&](void* d, int64_t ldd) {
    args.d = d;
    args.ldd = ldd;
    Gemm::run(args, scope);
  });
}

}  // namespace

template <const Persistent& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_instance(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (epilogue::is_raw<E>) {
      launch<kTile, E, int32_t>(p, scope);
    } else if constexpr (epilogue::columns_of<E> == 1) {  // pairs are refused
      with_dtype(p.size.out_dtype,
                 [&](auto dtype) { launch<kTile, E, Storage<decltype(dtype)::value>>(p, scope); });
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
