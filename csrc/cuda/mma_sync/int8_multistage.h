// Lines of an int8.table whose tiles go through shared memory. setup.py compiles this for a few
// lines at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name)
// of each.
#include "cuda/cutlass2/gemm.h"
#include "cuda/int8.h"
#include "cuda/mma_sync/model.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::mma_sync {

// p, with operands that CUTLASS 2.x can read.
inline Int8Problem with_whole_rows(const Int8Problem& p, const Scope& scope) {
  Int8Problem whole = p;
  whole.a = cutlass2::whole_rows(p.a, p.size.m, p.size.k, scope);
  const auto columns = cutlass2::whole_rows(transposed(p.b), p.size.n, p.size.k, scope);
  whole.b.plain = {columns.data, 1, columns.row_stride};
  whole.size.k = packed_stride(p.size.k);
  return whole;
}

template <const auto& kTile, const Gpus& kGpus, class E>
int launch(const Int8Problem& p, const Destination& to, int slices, const Scope& scope) {
  using Gemm = cutlass2::GemmOf<kTile, E, cutlass2::Multiplied<int8_t, kGpus.multistage>>;
  static_assert(sizeof(typename Gemm::Shared) <= block_bytes(kTile));
  return Gemm::run({.m = p.size.m,
                    .n = p.size.n,
                    .k = p.size.k,
                    .a = p.a.data,
                    .lda = p.a.row_stride,
                    .b = p.b.plain.data,
                    .ldb = p.b.plain.col_stride,
                    .operands = p.operands,
                    .to = to,
                    .slices = slices},
                   scope);
}

template <const auto& kTile, const Gpus& kGpus>
void run_multistage(const Int8Problem& p, const Scope& scope) {
  static_assert(ring_bytes(kTile) > 0 && kTile.stages >= 2);
  static_assert(kGpus.multistage || kTile.stages == 2);
  const Int8Problem whole = with_whole_rows(p, scope);
  const int slices = slices_of(kTile, whole.size, scope.device);
  if (slices > 1) {
    auto* const partials = scope.allocate<int32_t>(slices * p.size.m * p.size.n);
    const Destination to{{partials, {}, p.size.n % 4 == 0}, p.size.n, Function::none, true};
    const int made = launch<kTile, kGpus, epilogue::Acc>(whole, to, slices, scope);
    return finish_partials(partials, made, p, scope);
  }
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    launch<kTile, kGpus, E>(whole, destination<E>(p), 1, scope);
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::int8 {

template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  mma_sync::run_multistage<kTile, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const Int8Problem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::int8
