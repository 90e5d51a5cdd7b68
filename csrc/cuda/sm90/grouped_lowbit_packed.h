// A line of grouped_lowbit.table for packed weights. setup.py compiles this once for every such
// line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/lowbit.h"
#include "cuda/sm90/grouped_packed.cuh"
#include "integers.h"

namespace scaled_mm::cuda::sm90::grouped_lowbit {
namespace {

template <class T, const lowbit::Packed& kTile, class Format, int kSets>
void launch(const GroupedLowbitProblem& p, const Scope& scope) {
  using Block = GroupedBlock<kTile, Format, kSets>;
  constexpr auto kKernel = stream_grouped<T, Block>;
  const Device& device = scope.device;
  const LowbitProblem& product = p.product;
  GroupedParams params = {};
  params.units = product.w.units;
  params.expert_bytes = p.expert_bytes;
  params.sets = unit_sets(product.w.k, product.w.group);
  params.x = product.x;
  params.k = static_cast<int>(product.w.k);
  params.n = static_cast<int>(product.w.n);
  params.chunks = static_cast<int>(ceil_div(product.w.k, kUnitRows));
  params.panels = static_cast<int>(ceil_div(product.w.n, kUnitChannels));
  params.channel_tiles = static_cast<int>(ceil_div(product.w.n, Block::kChannels));
  const int64_t tiles = p.size().most_tiles(Block::kTokens) * params.channel_tiles;
  must_fit("rows", "tiles of D", tiles);
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block.
  const int table = Block::table_bytes(static_cast<int>(p.experts));
  const int bytes = (device.shared_memory + 1024) / Block::kLive - 1024 - table;
  params.stages = Block::stages(2 * params.chunks, bytes, false);
  params.groups = expert_rows(p);
  params.end = end_of(product);
  allow_all_shared_memory<kKernel>(device);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, Block::kLive * device.sms));
  launch_early(kKernel,
               {.grid = dim3(blocks),
                .block = dim3(Block::kThreads),
                .shared_bytes = Block::shared_bytes(params.stages) + table},
               scope, params);
}

}  // namespace

template <const Packed& kTile>
void run(const GroupedLowbitProblem& p, const Scope& scope) {
  const LowbitWeight& w = p.product.w;
  with_dtype16(w.dtype, [&](auto dtype) {
    using T = typename Half16<decltype(dtype)::value>::type;
    with_unit_format(kTile.of.bits, w.zero_point, [&](auto format) {
      using Format = decltype(format);
      if constexpr (Format::kBits == kTile.of.bits) {
        if constexpr (Format::kUsual) {
          if (unit_sets(w.k, w.group) == 1) return launch<T, kTile.of, Format, 1>(p, scope);
        }
        return launch<T, kTile.of, Format, 4>(p, scope);
      }
    });
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const GroupedLowbitProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::grouped_lowbit
