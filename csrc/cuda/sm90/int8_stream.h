// A line of int8.table that streams the weight. setup.py compiles this once for every such line,
// with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/int8_stream.cuh"
#include "cuda/sm90/tensor_map.h"
#include "epilogue/registry.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

template <const Stream& kTile, class E>
void launch(const Int8Problem& p, const Scope& scope) {
  using Block = StreamBlock<kTile.tile_m, kTile.tile_n / 64, E>;
  constexpr auto kKernel = stream_gemm<Block, E, StreamParams>;
  const auto [m, n, k, epilogue, out_dtype] = p.size;
  const Device& device = scope.device;
  const StreamPlan plan = plan_stream(kTile, p.size, device, p.b.settled);

  StreamParams params;
  params.rows = static_cast<int>(ceil_div(m, plan.token_tiles));
  if (k > 0) {  // else nothing is loaded
    params.weight = tensor_map(p.b.plain.data, n, k, p.b.plain.col_stride, Block::kChannels);
    params.tokens = tensor_map(p.a.data, m, k, p.a.row_stride, params.rows);
  }
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.chunks = static_cast<int>(ceil_div(k, kChunk));
  params.token_tiles = plan.token_tiles;
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block.
  const int alone = device.shared_memory, paired = (alone + 1024) / 2 - 1024;
  params.stages = Block::stages(plan.paired ? paired : alone);
  params.early = std::min(plan.early, params.stages);
  std::copy(std::begin(p.operands), std::end(p.operands), params.operands);
  params.to = destination<E>(p);

  allow_all_shared_memory<kKernel>(device);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(Block::kThreads),
                          .shared_bytes = Block::shared_bytes(params.stages),
                          .cluster = static_cast<unsigned>(plan.split)};
  launch_early(kKernel, shape, scope, params);
}

}  // namespace

template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue,
                          [&](auto e) { launch<kTile, typename decltype(e)::type>(p, scope); });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
