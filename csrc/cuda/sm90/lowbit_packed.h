// A line of lowbit.table for packed weights. setup.py compiles this once for every such line, with
// SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/lowbit_packed.cuh"
#include "cuda/sm90/tensor_map.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::lowbit {
namespace {

template <class T, const Packed& kTile, class Format, int kSets>
void launch(const LowbitProblem& p, const Scope& scope) {
  using Block = PackedBlock<kTile, Format, kSets>;
  constexpr auto kKernel = stream_packed<T, Block>;
  const Device& device = scope.device;
  PackedParams params;
  params.units = p.w.units;
  params.settled = p.w.settled;
  params.sets = unit_sets(p.w.k, p.w.group);
  params.tokens = tensor_map(reinterpret_cast<const int8_t*>(p.x.data), p.m, 2 * p.w.k,
                             2 * p.x.row_stride, Block::kTokens);
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.panels = static_cast<int>(ceil_div(p.w.n, kUnitChannels));
  params.token_tiles = static_cast<int>(ceil_div(p.m, Block::kTokens));
  const PackedPlan& plan = params.plan = plan_packed(kTile, p.size(), device.sms);
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block. No
  // more than there is to load: the next kernel may start where there is room.
  const int bytes = (device.shared_memory + 1024) / Block::kLive - 1024;
  const int chunks = plan.whole > 0    ? 2 * plan.chunks
                     : plan.slices > 1 ? ceil_div(plan.chunks, plan.slices)
                                       : ceil_div(plan.units(), plan.blocks);
  params.stages = Block::stages(chunks, bytes, plan.slices > 1);
  // Where there is a multiprocessor for every block, each has one for itself.
  const int alone = plan.blocks <= device.sms ? device.shared_memory / 2 + 1024 : 0;
  params.end = end_of(p);
  params.partials =
      scope.allocate<float>(int64_t{plan.slots()} * Block::kTokens * Block::kChannels);

  allow_all_shared_memory<kKernel>(device);
  launch_early(kKernel,
               {.grid = dim3(plan.blocks),
                .block = dim3(Block::kThreads),
                .shared_bytes = std::max(alone, Block::shared_bytes(params.stages)),
                .cluster = plan.slices},
               scope, params);
  if (plan.has_shares()) {
    constexpr int kThreads = 128;
    const int quads =
        static_cast<int>(std::min<int64_t>(p.m, Block::kTokens)) * (Block::kChannels / 4);
    launch_early(reduce_shares<T>,
                 {.grid = dim3(plan.cut(), ceil_div(quads, kThreads)), .block = dim3(kThreads)},
                 scope, params, Block::kTokens, Block::kChannels);
  }
}

}  // namespace

template <const Packed& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  with_dtype16(p.w.dtype, [&](auto dtype) {
    using T = typename Half16<decltype(dtype)::value>::type;
    with_unit_format(kTile.bits, p.w.zero_point, [&](auto format) {
      using Format = decltype(format);
      if constexpr (Format::kBits == kTile.bits) {
        if constexpr (Format::kUsual) {
          if (unit_sets(p.w.k, p.w.group) == 1) return launch<T, kTile, Format, 1>(p, scope);
        }
        return launch<T, kTile, Format, 4>(p, scope);
      }
    });
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const LowbitProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::lowbit
