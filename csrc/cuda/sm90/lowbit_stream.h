// A line of lowbit.table that multiplies straight from the words. setup.py compiles this once for
// every such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/common/alignment.h"
#include "cuda/sm90/lowbit_stream.cuh"
#include "cuda/sm90/tensor_map.h"

namespace scaled_mm::cuda::sm90::lowbit {
namespace {

// p's rows of q and zeros are aligned to 16 bytes, as those of x and the scales are.
template <class T, const Stream& kTile>
void launch(const LowbitProblem& p, const Scope& scope) {
  constexpr int kTokens = kTile.tokens;
  using Block = WordsBlock<kTokens>;
  constexpr auto kKernel = stream_words<T, kTokens>;
  const Device& device = scope.device;
  const Plan plan = plan_stream(kTile, p.size(), device.sms);
  StreamParams params;
  params.q = tensor_map(reinterpret_cast<const int8_t*>(p.w.q.data), p.w.k, p.w.n / 2,
                        4 * p.w.q.row_stride, kDepth, Block::kBoxBytes);
  params.tokens = tensor_map(reinterpret_cast<const int8_t*>(p.x.data), p.m, 2 * p.w.k,
                             2 * p.x.row_stride, kTokens);
  params.zeros = p.w.zeros.data;
  params.zeros_stride = p.w.zeros.row_stride;
  params.scales = p.w.scales.data;
  params.scales_stride = p.w.scales.row_stride;
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.group = static_cast<int>(p.w.group);
  params.token_tiles = static_cast<int>(ceil_div(p.m, kTokens));
  params.plan = plan;
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block. No
  // more than there is to load: the next kernel may start where there is room.
  const int groups = p.w.group < kDepth ? 2 : 1;
  const int bytes = (device.shared_memory + 1024) / Block::kLive - 1024;
  const int chunks = plan.whole > 0 || plan.work_tiles() > plan.blocks
                         ? plan.chunks
                         : ceil_div(plan.chunks, plan.slices);
  params.stages = Block::stages(chunks, bytes, groups);
  // Where there is a multiprocessor for every block, each has one for itself.
  const int alone = plan.blocks <= device.sms ? device.shared_memory / 2 + 1024 : 0;
  params.end = end_of(p);
  params.partials = scope.allocate<float>(plan.partials() * kTokens * tile_channels(kTokens));

  allow_all_shared_memory<kKernel>(device);
  launch_early(kKernel,
               {.grid = dim3(plan.blocks),
                .block = dim3(Block::kThreads),
                .shared_bytes = std::max(alone, Block::shared_bytes(params.stages, groups))},
               scope, params);
  if (plan.partials() > 0) {
    constexpr int kThreads = 128;
    const int quads = static_cast<int>(std::min<int64_t>(p.m, kTokens)) * Block::kChannels / 4;
    const dim3 grid(plan.cut(), ceil_div(quads, kThreads));
    launch_early(reduce_slices<T>, {.grid = grid, .block = dim3(kThreads)}, scope, params, kTokens);
  }
}

}  // namespace

template <const Stream& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  LowbitProblem aligned = p;
  aligned.w.q = aligned_rows(p.w.q, p.w.k, p.w.n / 8, scope);
  aligned.w.zeros = aligned_rows(p.w.zeros, p.w.k / p.w.group, p.w.n / 8, scope);
  with_dtype16(p.w.dtype, [&](auto dtype) {
    launch<typename Half16<decltype(dtype)::value>::type, kTile>(aligned, scope);
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const LowbitProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::lowbit
