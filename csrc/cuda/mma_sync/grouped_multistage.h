// Lines of a grouped.table whose tiles go through shared memory. setup.py compiles this for a few
// lines at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name)
// of each.
#include "cuda/cutlass2/gemm.h"
#include "cuda/grouped.h"
#include "cuda/int8.h"
#include "cuda/mma_sync/model.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::mma_sync {

template <const auto& kTile, const Gpus& kGpus, class E>
void launch_grouped(const GroupedInt8Problem& p, const Scope& scope) {
  using Gemm = cutlass2::GemmOf<kTile, E, cutlass2::Multiplied<int8_t, kGpus.multistage>>;
  static_assert(sizeof(typename Gemm::Shared) <= block_bytes(kTile));
  const Int8Problem& product = p.product;
  const auto rows = cutlass2::whole_rows(sorted_rows(p, scope), p.size.m, p.size.k, scope);
  const auto columns =
      cutlass2::whole_rows(transposed(product.b), p.size.experts * p.size.n, p.size.k, scope);
  Gemm::run_grouped({.m = p.size.m,
                     .n = p.size.n,
                     .k = p.size.k,
                     .a = rows.data,
                     .lda = rows.row_stride,
                     .b = columns.data,
                     .ldb = columns.row_stride,
                     .operands = product.operands,
                     .to = destination<E>(product)},
                    expert_rows(p), p.size.most_tiles(kTile.tile_m), scope);
}

template <const auto& kTile, const Gpus& kGpus>
void run_grouped(const GroupedInt8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (!epilogue::is_raw<E>) launch_grouped<kTile, kGpus, E>(p, scope);
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped {

template <const Multistage& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope) {
  mma_sync::run_grouped<kTile.of, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const GroupedInt8Problem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped
