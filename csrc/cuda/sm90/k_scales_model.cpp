// What Hopper's kernels for products with scales along K serve, and how long they are expected to
// take.
#include <algorithm>
#include <climits>
#include <cmath>

#include "cuda/mma_sync/k_scales.h"
#include "cuda/sm90/k_scales.h"
#include "cuda/sm90/model.h"

namespace scaled_mm::cuda::sm90::k_scales {
namespace {

constexpr double kReduceUs = 4.0;            // of adding up the parts of tiles
constexpr double kPartUs = 4.0;              // of a block that has parts of several
constexpr double kReduceBytesPerUs = 3.3e6;  // what those go to L2 and back at
constexpr double kExchangeUs = 2.0;          // of a cluster's blocks adding up a tile's sums
// Of shared memory, for the sums of a block's parts: beside more, stages of the ring would be few.
constexpr int kMostSums = 72 << 10;
// Blocks of a cluster. 128 blocks in clusters of 4 do not all fit at once.
constexpr int kMostSlices = 2;

double busy_us(const Units& tile, const KScalesProblem::Size& size, const Pieces& pieces, int sms) {
  const lowbit::PackedPlan& plan = pieces.plan;
  const double groups = size.group == size.k ? 0 : double(kUnitRows) / double(size.group);
  const double chunk_us = tile.chunk_us + tile.group_us * groups;
  const double piece_us = chunk_us * std::min(pieces.depth, pieces.chunks);
  if (tile.ranges(plan) > 1) {
    const int rounds = ceil_div(plan.blocks, sms);  // of which each begins anew
    return double(rounds) * ceil_div(plan.chunks, tile.ranges(plan)) * piece_us +
           (rounds - 1) * tile.fixed_us + (tile.along_k ? 0 : kExchangeUs);
  }
  const double whole = double(ceil_div(plan.whole, plan.blocks)) * plan.chunks * piece_us;
  if (plan.cut() == 0) return whole;
  const double tokens = double(std::min<int64_t>(size.m, tile.tokens));
  // Of slices, those of a tile's first share are one.
  const double slots = pieces.depth == 1 ? plan.slots() : plan.units() / 2.0;
  const int longest = ceil_div(plan.units(), plan.blocks);  // pieces of a block
  const bool several = plan.whole > 0 || plan.chunks % longest != 0;
  return whole + kReduceUs + (several ? kPartUs : 0) +
         8 * slots * tokens * tile.channels() / kReduceBytesPerUs + longest * piece_us;
}

}  // namespace

Pieces plan_pieces(const Units& tile, const KScalesProblem::Size& size, int sms) {
  Pieces pieces = {};
  pieces.chunks = static_cast<int>(ceil_div(size.k, kUnitRows));
  // Slices have as many columns, or a group; where groups do not end with them, pieces are all of
  // K.
  const int64_t slice = slice_columns(size.k);
  const int64_t depth = size.group == size.k      ? kUnitRows
                        : slice % size.group == 0 ? slice
                        : size.group % slice == 0 ? size.group
                                                  : size.k;
  pieces.depth = static_cast<int>(ceil_div(depth, kUnitRows));
  const int count = ceil_div(pieces.chunks, pieces.depth);
  const int64_t tiles = ceil_div(size.m, tile.tokens) * ceil_div(size.n, tile.channels());
  Pieces best = pieces;
  double least = INFINITY;
  const auto consider = [&](const lowbit::PackedPlan& plan) {
    pieces.plan = plan;
    const double us = busy_us(tile, size, pieces, sms);
    if (us < least) least = us, best = pieces;
  };
  lowbit::PackedPlan plan = {};
  plan.tiles = plan.whole = static_cast<int>(tiles), plan.chunks = count;
  plan.blocks = static_cast<int>(std::clamp<int64_t>(tiles, 1, sms));
  if (!tile.along_k) consider(plan);
  const int64_t most = std::min<int64_t>({kMostSlices, sms / std::max<int64_t>(tiles, 1), count});
  lowbit::PackedPlan in_clusters = plan;
  in_clusters.slices = static_cast<int>(std::max<int64_t>(most, 1));
  in_clusters.blocks = static_cast<int>(tiles) * in_clusters.slices;
  pieces.plan = in_clusters;
  if (tile.along_k) return pieces;
  // Of groups, warps of wide tiles have no registers for it.
  if (most > 1 && size.group == size.k && tile.fits(size, pieces)) consider(in_clusters);
  if (tiles % sms == 0 || count <= 1) return best;
  plan.whole = static_cast<int>(tiles / sms * sms);
  const int64_t units = (tiles - plan.whole) * count, longest = ceil_div(units, int64_t{sms});
  plan.blocks = static_cast<int>(plan.whole > 0 ? sms : std::min<int64_t>(sms, units));
  if (plan.whole == 0 && count % longest == 0) plan.blocks = static_cast<int>(units / longest);
  if (units <= INT_MAX) consider(plan);
  return best;
}

int Units::parts(const KScalesProblem::Size& size, const Pieces& pieces) const {
  const int all = ranges(pieces.plan);
  return size.group == size.k || all == 1 ? 1 : ceil_div(pieces.plan.chunks, all);
}

bool Units::fits(const KScalesProblem::Size& size, const Pieces& pieces) const {
  return parts(size, pieces) * warpgroups * tokens * kUnitChannels * 4 <= kMostSums;
}

std::string Units::describe(const KScalesProblem::Size& size, const Machine& machine) const {
  const lowbit::PackedPlan plan = plan_pieces(*this, size, machine.sms).plan;
  const auto how =
      ranges(plan) > 1
          ? cat("K in ", ranges(plan), " ranges, clusters of ", plan.slices)
          : cat(plan.cut(), " of ", plan.tiles, " shared out over ", plan.blocks, " blocks");
  return cat("int8 wgmma from packed words, tiles of ", tokens, " tokens x ", channels(),
             " channels, ", how);
}

std::string Units::refuse(const KScalesProblem::Size& size, const Machine& machine) const {
  if (size.in_blocks) return "takes weights of 4 bits";
  if (size.group != size.k && !takes_groups()) return "takes one scale along K";
  if (along_k && !fits(size, plan_pieces(*this, size, machine.sms))) {
    return cat("has no room for the sums of K=", size.k, " in slices");
  }
  return refuse_machine(machine);
}

Prediction Units::predict(const KScalesProblem::Size& size, const Machine& machine) const {
  const Pieces pieces = plan_pieces(*this, size, machine.sms);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       machine.latency * busy_us(*this, size, pieces, machine.sms), 0);
}

std::string Blocks::describe(const KScalesProblem::Size&, const Machine&) const {
  return "int8 wgmma, tiles of 128 tokens x 128 channels";
}

std::string Blocks::refuse(const KScalesProblem::Size& size, const Machine& machine) const {
  return size.in_blocks ? refuse_machine(machine) : "takes int8 in blocks";
}

Prediction Blocks::predict(const KScalesProblem::Size& size, const Machine& machine) const {
  const double tiles = double(ceil_div(size.m, kBlock) * ceil_div(size.n, kBlock));
  const double chunks = std::ceil(tiles / machine.sms) * double(ceil_div(size.k, kBlock));
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       machine.latency * chunk_us * chunks, 0);
}

constexpr Kernel<KScalesProblem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<KScalesProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm90/k_scales.table"
#undef KERNEL
    SCALED_MM_GROUP_TILES};
extern const std::span<const Kernel<KScalesProblem>> all;
constinit const std::span<const Kernel<KScalesProblem>> all = kKernels;

}  // namespace scaled_mm::cuda::sm90::k_scales
