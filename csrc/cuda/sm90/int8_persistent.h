// A line of int8.table that is a persistent CUTLASS kernel. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/int8_persistent_gemm.h"

#include <algorithm>

#include "cuda/common/alignment.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

template <const Persistent& kTile, class E, class Out>
void launch(const Int8Problem& p, const Scope& scope) {
  const auto [m, n, k, epilogue, out_dtype, function] = p.size;
  EpilogueOperand operands[kNumOperands];
  std::copy(std::begin(p.operands), std::end(p.operands), operands);
  if constexpr (epilogue::has_residual<E> && !epilogue::has_ending<E>) {
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
    PersistentGemm<kTile, E, Out>::run(args, scope.device, scope);
  });
}

// Into a D that is stored as Out. What a tile does not end, refuse() has kept away.
template <const Persistent& kTile, class E, class Out>
void launch_ended(const Int8Problem& p, const Scope& scope) {
  if constexpr (ends(kTile, epilogue::has_ending<E> || epilogue::has_residual<E>)) {
    launch<kTile, E, Out>(p, scope);
  }
}

// TMA loads a residual as C, whose element type is compiled: of 16 bits, beside such a D. Any other
// is read where the sums are ended, as it is before an activation.
bool has_wide_residual(const Int8Problem& p) {
  return size_of(p.size.out_dtype) != 2 ||
         size_of(p.operands[static_cast<int>(Operand::residual)].dtype) != 2;
}

}  // namespace

template <const Persistent& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    const int bytes = size_of(p.size.out_dtype);
    if constexpr (epilogue::is_raw<E>) {
      launch<kTile, E, int32_t>(p, scope);
    } else if constexpr (epilogue::has_residual<E>) {
      using Read = epilogue::Activated<E>;
      if (!has_wide_residual(p)) {
        launch_ended<kTile, E, uint16_t>(p, scope);
      } else if (bytes == 4) {
        launch_ended<kTile, Read, float>(p, scope);
      } else {
        launch_ended<kTile, Read, uint16_t>(p, scope);
      }
    } else if (bytes == 4) {
      launch_ended<kTile, E, float>(p, scope);
    } else if (bytes == 2) {
      launch_ended<kTile, E, uint16_t>(p, scope);
    } else if constexpr (epilogue::is_quantised<E>) {
      launch_ended<kTile, E, uint8_t>(p, scope);
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
