// Lines of a grouped.table that stream the experts' weights. setup.py compiles this for a few lines
// at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name) of
// each.
#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/mma_sync/int8_stream.cuh"
#include "cuda/mma_sync/model.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::mma_sync {

template <const auto& kTile, class E>
void launch_grouped(const GroupedInt8Problem& p, const Scope& scope) {
  using Block = StreamTile<kTile.tile_m, kTile.tile_n, kTile.warps, kTile.step, kTile.live, E>;
  constexpr auto kKernel = stream_gemm<Block, GroupedParams>;
  const Int8Problem& product = p.product;
  GroupedParams params = {};
  params.weight = product.b.plain.data;
  params.weight_stride = product.b.plain.col_stride;
  params.tokens = product.a.data;
  params.tokens_stride = product.a.row_stride;
  params.m = static_cast<int>(p.size.m);
  params.n = static_cast<int>(p.size.n);
  params.k = params.slice = static_cast<int>(p.size.k);
  params.token_tiles = static_cast<int>(p.size.most_tiles(kTile.tile_m));
  std::copy(std::begin(product.operands), std::end(product.operands), params.operands);
  params.to = destination<E>(product);
  params.groups = expert_rows(p);
  allow_all_shared_memory<kKernel>(scope.device);
  const int64_t blocks = params.token_tiles * ceil_div(p.size.n, int64_t{kTile.tile_n});
  kKernel<<<static_cast<unsigned>(blocks), Block::kThreads, sizeof(typename Block::Shared),
            scope.stream>>>(params);
  check(cudaGetLastError(), "launch");
}

template <const auto& kTile>
void run_grouped(const GroupedInt8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (!epilogue::is_raw<E>) launch_grouped<kTile, E>(p, scope);
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped {

template <const Stream& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope) {
  mma_sync::run_grouped<kTile>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const GroupedInt8Problem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped
