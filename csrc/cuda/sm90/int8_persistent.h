// A line of int8.table that is a persistent CUTLASS kernel. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // the kernel waits for the one before where it reads

#include <algorithm>

#include "cuda/cutlass3/gemm.h"
#include "cuda/common/alignment.h"
#include "cuda/common/partials.h"
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
  EpilogueOperand operands[kNumOperands];
  std::copy(std::begin(p.operands), std::end(p.operands), operands);
  if constexpr (Lower<E>::List::has_full) {
    auto& residual = operands[static_cast<int>(Operand::residual)];
    const auto rows = aligned_rows<uint16_t>(
        {static_cast<const uint16_t*>(residual.data), residual.row_stride, residual.col_stride}, m,
        n, scope);
    residual.data = rows.data, residual.row_stride = rows.row_stride;
  }
  cutlass3::GemmArguments args{.m = m,
                               .n = n,
                               .k = k,
                               .a = p.a.data,
                               .lda = p.a.row_stride,
                               .b = p.b.plain.data,
                               .ldb = p.b.plain.col_stride,
                               .operands = operands,
                               .to = destination<E>(p)};
  args.swizzle = choose_swizzle(kTile.swizzle, ceil_div(m, kTile.tile_m * kTile.cluster_m),
                                ceil_div(n, kTile.tile_n * kTile.cluster_n));
  with_aligned_output(p, scope, [&](void* d, int64_t ldd) {
    args.to.out.d = d;
    args.to.ldd = ldd;
    Gemm::run(args, scope);
  });
}

// With an ending that the kernel has not: its sums go to memory, and a kernel of their own ends
// them.
template <const Persistent& kTile>
void launch_in_two(const Int8Problem& p, const Scope& scope) {
  Int8Problem sums = p;
  sums.size.epilogue = epilogue::Id::RawAccumulator;
  auto* const partials = scope.allocate<int32_t>(p.size.m * p.size.n);
  sums.d = partials;
  launch<kTile, epilogue::RawAccumulator, int32_t>(sums, scope);
  finish_partials(partials, 1, p, scope);
}

// Into a D of `dtype`, or another one of its size, which is stored as Out.
template <const Persistent& kTile, class E, DType dtype, class Out>
void launch_as(const Int8Problem& p, const Scope& scope) {
  if constexpr (ends_itself(kTile, epilogue::has_ending<E>, epilogue::has_residual<E>, dtype)) {
    launch<kTile, E, Out>(p, scope);
  } else {
    launch_in_two<kTile>(p, scope);
  }
}

// Whether the kernel cannot load the residual by TMA, whose element type is compiled.
template <class E>
bool has_wide_residual(const Int8Problem& p) {
  return Lower<E>::List::has_full &&
         size_of(p.operands[static_cast<int>(Operand::residual)].dtype) != 2;
}

}  // namespace

template <const Persistent& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (epilogue::is_raw<E>) {
      launch<kTile, E, int32_t>(p, scope);
    } else if (has_wide_residual<E>(p)) {
      launch_in_two<kTile>(p, scope);
    } else if (size_of(p.size.out_dtype) == 4) {
      launch_as<kTile, E, DType::float32, float>(p, scope);
    } else if (size_of(p.size.out_dtype) == 2) {
      launch_as<kTile, E, DType::bfloat16, uint16_t>(p, scope);
    } else if constexpr (epilogue::is_quantised<E>) {
      launch_as<kTile, E, DType::int8, uint8_t>(p, scope);
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
