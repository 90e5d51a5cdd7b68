// Lines of an int8.table that stream the weight. setup.py compiles this for a few lines at a time,
// behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name) of each.
#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/int8.h"
#include "cuda/mma_sync/int8_stream.cuh"
#include "cuda/mma_sync/model.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::mma_sync {

template <const auto& kTile, class E>
void launch_stream(const Int8Problem& p, int slices, int32_t* partials, const Scope& scope) {
  using Block = StreamTile<kTile.tile_m, kTile.tile_n, kTile.warps, kTile.step, kTile.live, E>;
  constexpr auto kKernel = stream_gemm<Block, StreamParams>;
  const auto [m, n, k, epilogue, out_dtype, function] = p.size;
  StreamParams params;
  params.weight = p.b.plain.data;
  params.weight_stride = p.b.plain.col_stride;
  params.tokens = p.a.data;
  params.tokens_stride = p.a.row_stride;
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.k = static_cast<int>(k);
  params.token_tiles = static_cast<int>(ceil_div(m, int64_t{kTile.tile_m}));
  params.slice = static_cast<int>(round_up(ceil_div(k, int64_t{slices}), kTile.step));
  params.partials = partials;
  std::copy(std::begin(p.operands), std::end(p.operands), params.operands);
  params.to = destination<E>(p);
  allow_all_shared_memory<kKernel>(scope.device);
  const dim3 grid(static_cast<unsigned>(tiles_of(kTile, p.size)), slices);
  kKernel<<<grid, Block::kThreads, sizeof(typename Block::Shared), scope.stream>>>(params);
  check(cudaGetLastError(), "launch");
}

template <const auto& kTile>
void run_stream(const Int8Problem& p, const Scope& scope) {
  if (const int slices = slices_of(kTile, p.size, scope.device); slices > 1) {
    auto* const partials = scope.allocate<int32_t>(slices * p.size.m * p.size.n);
    launch_stream<kTile, epilogue::Acc>(p, slices, partials, scope);
    return finish_partials(partials, slices, p, scope);
  }
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    launch_stream<kTile, typename decltype(e)::type>(p, 1, nullptr, scope);
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::int8 {

template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  mma_sync::run_stream<kTile>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const Int8Problem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::int8
