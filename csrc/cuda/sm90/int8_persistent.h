// A line of int8.table that is a persistent CUTLASS kernel. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/int8_persistent_gemm.h"

#include <algorithm>

#include "cuda/common/alignment.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

// With D stored as Out and a residual as C.
template <const Persistent& kTile, class E, class Out, class C = uint16_t>
void launch(const Int8Problem& p, const Scope& scope) {
  const auto [m, n, k, epilogue, out_dtype, function] = p.size;
  EpilogueOperand operands[kNumOperands];
  std::copy(std::begin(p.operands), std::end(p.operands), operands);
  if constexpr (epilogue::has_residual<E>) {
    auto& residual = operands[static_cast<int>(Operand::residual)];
    const auto rows = aligned_rows<C>(
        {static_cast<const C*>(residual.data), residual.row_stride, residual.col_stride}, m, n,
        scope);
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
  args.swizzle = kTile.band_width(p.size);
  with_aligned_output(p, scope, [&](void* d, int64_t ldd) {
    args.to.out.d = d;
    args.to.ldd = ldd;
    PersistentGemm<kTile, E, Out, C>::run(args, scope.device, scope);
  });
}

}  // namespace

template <const Persistent& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    const int bytes = size_of(p.size.out_dtype);
    if constexpr (!ends(kTile, epilogue::has_ending<E> || epilogue::has_residual<E>)) {
      // refuse() has kept it away
    } else if constexpr (epilogue::is_raw<E>) {
      launch<kTile, E, int32_t>(p, scope);
    } else if constexpr (epilogue::has_residual<E>) {  // float32, or as D
      if (bytes == 4) {
        launch<kTile, E, float, float>(p, scope);
      } else if (p.operands[static_cast<int>(Operand::residual)].dtype == DType::float32) {
        launch<kTile, E, uint16_t, float>(p, scope);
      } else {
        launch<kTile, E, uint16_t>(p, scope);
      }
    } else if (bytes == 4) {
      launch<kTile, E, float>(p, scope);
    } else if (bytes == 2) {
      launch<kTile, E, uint16_t>(p, scope);
    } else if constexpr (epilogue::is_quantised<E>) {
      launch<kTile, E, uint8_t>(p, scope);
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
