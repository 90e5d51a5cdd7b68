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

constexpr double kReduceUs = 3.0;            // of adding up the parts of tiles
constexpr double kReduceBytesPerUs = 3.3e6;  // what those go to L2 and back at

double busy_us(const Units& tile, const KScalesProblem::Size& size, const Pieces& pieces) {
  const lowbit::PackedPlan& plan = pieces.plan;
  const double groups = size.group == size.k ? 0 : double(kUnitRows) / double(size.group);
  const double chunk_us = tile.chunk_us + tile.group_us * groups;
  const double piece_us = chunk_us * std::min(pieces.depth, pieces.chunks);
  const double whole = double(ceil_div(plan.whole, plan.blocks)) * plan.chunks * piece_us;
  if (plan.cut() == 0) return whole;
  const double tokens = double(std::min<int64_t>(size.m, tile.tokens));
  const double slots = pieces.depth == 1 ? plan.slots() : plan.units();
  return whole + kReduceUs + 8 * slots * tokens * tile.channels() / kReduceBytesPerUs +
         double(ceil_div(plan.units(), plan.blocks)) * piece_us;
}

}  // namespace

Pieces plan_pieces(const Units& tile, const KScalesProblem::Size& size, int sms) {
  Pieces pieces;
  pieces.chunks = static_cast<int>(ceil_div(size.k, kUnitRows));
  // Slices have as many columns, or a group; where groups do not end with them, pieces are all of
  // K.
  const int64_t depth = size.group == size.k       ? kUnitRows
                        : kSlice % size.group == 0 ? kSlice
                        : size.group % kSlice == 0 ? size.group
                                                   : size.k;
  pieces.depth = static_cast<int>(ceil_div(depth, kUnitRows));
  const int count = ceil_div(pieces.chunks, pieces.depth);
  const int64_t tiles = ceil_div(size.m, tile.tokens) * ceil_div(size.n, tile.channels());
  Pieces best = pieces;
  double least = INFINITY;
  const auto consider = [&](const lowbit::PackedPlan& plan) {
    pieces.plan = plan;
    const double us = busy_us(tile, size, pieces);
    if (us < least) least = us, best = pieces;
  };
  lowbit::PackedPlan plan = {};
  plan.tiles = plan.whole = static_cast<int>(tiles), plan.chunks = count;
  plan.blocks = static_cast<int>(std::clamp<int64_t>(tiles, 1, sms));
  consider(plan);
  if (tiles % sms == 0 || count <= 1) return best;
  plan.whole = static_cast<int>(tiles / sms * sms);
  const int64_t units = (tiles - plan.whole) * count, longest = ceil_div(units, int64_t{sms});
  plan.blocks = static_cast<int>(plan.whole > 0 ? sms : std::min<int64_t>(sms, units));
  if (plan.whole == 0 && count % longest == 0) plan.blocks = static_cast<int>(units / longest);
  if (units <= INT_MAX) consider(plan);
  return best;
}

std::string Units::describe(const KScalesProblem::Size& size, const Machine& machine) const {
  const lowbit::PackedPlan plan = plan_pieces(*this, size, machine.sms).plan;
  return cat("int8 wgmma from packed words, tiles of ", tokens, " tokens x ", channels(),
             " channels, ", plan.cut(), " of ", plan.tiles, " shared out over ", plan.blocks,
             " blocks");
}

std::string Units::refuse(const KScalesProblem::Size& size, const Machine& machine) const {
  if (size.in_blocks) return "takes weights of 4 bits";
  if (size.group != size.k && !takes_groups()) return "takes one scale along K";
  return refuse_machine(machine);
}

Prediction Units::predict(const KScalesProblem::Size& size, const Machine& machine) const {
  const Pieces pieces = plan_pieces(*this, size, machine.sms);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       machine.latency * busy_us(*this, size, pieces), 0);
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
