// A line of grouped.table that streams the experts' weights. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/int8_stream.cuh"
#include "cuda/sm90/tensor_map.h"
#include "epilogue/registry.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::grouped {
namespace {

template <const Stream& kTile, class E>
void launch(const GroupedInt8Problem& p, const Scope& scope) {
  using Block = int8::StreamBlock<kTile.tile_m, kTile.tile_n / 64, E>;
  constexpr auto kKernel = int8::stream_gemm<Block, E, int8::GroupedParams>;
  const Int8Problem& product = p.product;
  const int64_t m = p.size.m, n = p.size.n, k = p.size.k;
  const Device& device = scope.device;
  const StreamPlan plan = plan_stream(kTile, p.size, device);

  int8::GroupedParams params = {};
  if (k > 0 && p.size.experts > 0) {  // else nothing is loaded
    params.weight = tensor_map(product.b.plain.data, p.size.experts * n, k,
                               product.b.plain.col_stride, Block::kChannels);
  }
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.chunks = static_cast<int>(ceil_div(k, int8::kChunk));
  params.token_tiles = plan.token_tiles;
  params.rows = kTile.tile_m;
  params.stages = Block::stages(device, plan);
  std::copy(std::begin(product.operands), std::end(product.operands), params.operands);
  params.to = destination<E>(product);
  params.a = product.a.data;
  params.a_stride = product.a.row_stride;
  params.k = static_cast<int>(k);
  params.groups = expert_rows(p);

  allow_all_shared_memory<kKernel>(device);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(Block::kThreads),
                          .shared_bytes = Block::shared_bytes(params.stages, plan.split),
                          .cluster = static_cast<unsigned>(plan.split)};
  launch_early(kKernel, shape, scope, params);
}

}  // namespace

template <const Stream& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (!epilogue::is_raw<E>) launch<kTile, E>(p, scope);
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const GroupedInt8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::grouped
