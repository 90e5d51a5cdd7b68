// What Hopper's kernels serve and how long they are expected to take (docs/tuning.md). The rates
// are the machine's (dispatch/gpus.def).
#include <algorithm>
#include <climits>
#include <cmath>

#include "cuda/sm90/model.h"
#include "dispatch/table.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90 {
namespace {

// That it is written padded and copied (common/alignment.h), in explain's words; empty: it is not.
std::string padded_output_text(const Int8Problem::Size& size) {
  const int64_t bytes = size.out_columns() * size.out_bytes();
  if (bytes % 16 == 0) return "";
  return cat("; rows of D of ", bytes,
             " bytes are not 16-byte aligned: D is written padded and copied");
}

// Measured on an H200; machine.latency says how much longer they are elsewhere.
constexpr double kWaveUs = 0.58;            // of a wave of streaming blocks behind the first
constexpr double kBlockUs = 0.55;           // of a streaming block on every multiprocessor
constexpr double kWideBlocksUs = 2.2;       // where one with more than 64 channels is not alone
constexpr double kExchangeUs = 13e-6;       // of a byte of sums that a cluster adds up
constexpr double kLoneBytesPerUs = 57.6e3;  // what one multiprocessor loads, few others loading
constexpr double kFullBytesPerUs = 45.5e3;  // the same, where all load
constexpr double kTokenShare = 0.77;        // of what a weight's byte costs, a token's
constexpr double kOutsideUs = 17e-6;        // of a byte of a tile's rows that lie outside A
// Of a sum with an activation, a residual or an 8-bit D, which a plain epilogue has not:
constexpr double kStreamEndingUs = 1.4e-6;   // in a streaming kernel
constexpr double kExposedEndingUs = 7.3e-5;  // besides, of one of a tile that is exposed

}  // namespace

int choose_swizzle(int most, int64_t across, int64_t along) {
  int swizzle = most;
  while (swizzle > 1 &&
         50 * round_up(across, swizzle) * round_up(along, swizzle) > 51 * across * along) {
    swizzle /= 2;
  }
  return swizzle;
}

// --- int8 ----------------------------------------------------------------------------------------

namespace int8 {

std::string Stream::describe(const Int8Problem::Size&, const Machine&) const {
  return "streams the weight, " + tile_text(tile_m, tile_n);
}

std::string Stream::refuse(const Int8Problem::Size&, const Machine& machine) const {
  return refuse_machine(machine);
}

Prediction Stream::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const StreamPlan plan = plan_stream(*this, size, machine);
  const double tokens = double(size.m) / std::max(plan.token_tiles, 1);
  const double rows = double(ceil_div(ceil_div(size.k, kChunk), plan.split) * kChunk);
  const double load = (kTokenShare * tokens + tile_n) * rows;  // bytes of a block
  // Blocks of full waves, and of the last one, that a multiprocessor has at most.
  const double live = plan.paired ? 2 : 1, blocks = double(plan.blocks);
  const double waves = std::floor(blocks / (live * machine.sms));
  const double last = std::ceil(blocks / machine.sms - live * waves);
  const double most = live * waves + last;
  const double loads = load * (live * waves / kFullBytesPerUs + last / kLoneBytesPerUs);
  const double operations = most * tile_m * tile_n * rows;
  double us = kBlockUs * blocks / machine.sms + kWaveUs * std::max(waves + (last > 0) - 1, 0.0);
  if (tile_n > 64 && most > 1) {  // few rows of K are all under way at once
    us += kWideBlocksUs * std::max(0.0, 1 - kEarlyChunks * kChunk / rows);
  }
  if (plan.split > 1) us += kExchangeUs * std::ceil(tokens) * tile_n * sizeof(int32_t);
  if (!is_plain(size)) us += kStreamEndingUs * double(size.m) * double(size.n);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       std::max(machine.latency * loads, operations / machine.products_per_us),
                       us * machine.latency, operations / machine.most_products_per_us);
}

// Where all of A stays in L2, the weight passes once, a column of tiles at a time. Else A comes
// from memory for every band, whose part of the weight stays instead.
int Persistent::band_width(const Int8Problem::Size& size) const {
  constexpr double kStays = 30e6, kBandStays = 17e6;  // bytes, on an H200
  const int columns = tile_n * cluster_n;
  if (double(size.m) * double(size.k) <= kStays) return 1;
  int most = 8;
  while (most > 1 && double(most * columns) * double(size.k) > kBandStays) most /= 2;
  return choose_swizzle(most, ceil_div(size.m, tile_m * cluster_m), ceil_div(size.n, columns));
}

std::string Persistent::describe(const Int8Problem::Size& size, const Machine&) const {
  const char* how = schedule == pingpong ? "ping-pong" : "cooperative";
  const int width = band_width(size);
  return cat("CUTLASS, ", how, ", ", tile_text(tile_m, tile_n), ", clusters of ", cluster_m, " x ",
             cluster_n, width > 1 ? cat(" in bands of ", width) : "", padded_output_text(size));
}

std::string Persistent::refuse(const Int8Problem::Size& size, const Machine& machine) const {
  if (size.k == 0) return "needs K > 0 (it would wait for loads that do not come), got K=0";
  if (!ends(*this, !is_plain(size))) {
    return cat("has no registers for a residual, an activation or an 8-bit D beside ", sums(),
               " sums of a thread");
  }
  return refuse_machine(machine);
}

Prediction Persistent::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int64_t across = ceil_div(size.m, tile_m * cluster_m) * cluster_m;
  const int64_t along = ceil_div(size.n, tile_n * cluster_n) * cluster_n;
  const double blocks = double(across * along);
  const double rows = double(ceil_div(size.k, tile_k) * tile_k);
  const double loads = (double(tile_m) / cluster_n + double(tile_n) / cluster_m) * rows;
  const double operations = double(tile_m) * tile_n * rows;
  const double rounds = std::ceil(blocks / machine.sms);
  double us = schedule == cooperative ? kExposedEpilogueUs * rounds : 0.0;
  const double outside = double(across * tile_m - size.m) * rows * double(along);
  us += kOutsideUs * outside / machine.sms;
  if (!is_plain(size)) {  // ping-pong hides all but the last round's
    const double exposed = (schedule == pingpong ? 1 : rounds) * tile_m * tile_n;
    us += kTileEndingUs * double(size.m) * double(size.n) + kExposedEndingUs * exposed;
  }
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       std::max(rounds * operations / machine.products_per_us,
                                blocks * loads / (machine.l2_bytes_per_us * machine.sms)),
                       us * machine.latency, rounds * operations / machine.most_products_per_us);
}

namespace {

constexpr Kernel<Int8Problem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<Int8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm90/int8.table"
#undef KERNEL
};

}  // namespace

StreamPlan plan_stream(const Stream& tile, const Int8Problem::Size& size, const Machine& machine,
                       bool settled) {
  StreamPlan plan;
  const int64_t across = ceil_div(size.m, tile.tile_m);
  const int64_t whole = across * ceil_div(size.n, tile.tile_n);
  plan.token_tiles = static_cast<int>(across);
  // As many slices as find a multiprocessor for each block. Clusters of three do not fill a GPC, so
  // some multiprocessors stay empty; clusters of four and more left too many.
  plan.split = 7 * kMaxSplit * whole <= 6 * machine.sms ? kMaxSplit
               : 2 * whole <= machine.sms               ? 2
                                                        : 1;
  plan.early = settled ? kEarlyChunks : 0;
  plan.blocks = whole * plan.split;
  // Two blocks to a multiprocessor when there are many, so that one loads while the other ends;
  // unless their rings would be too short.
  plan.paired = plan.blocks > machine.sms && tile.tile_m + tile.tile_n <= 256;
  return plan;
}

}  // namespace int8

// --- lowbit --------------------------------------------------------------------------------------

namespace lowbit {
namespace {

constexpr double kProductsPerUs = 5.34e6;  // machine.products_per_us where Dense was measured
constexpr double kStreamReduceUs = 2.0;    // of adding up partial sums, besides
constexpr double kReduceBytesPerUs = 5e6;  // what they go to L2 and back at
constexpr int kMostRounds = 4;             // of slices

// What the blocks take for their chunks, and partial sums.
double busy_us(const Stream& tile, const LowbitProblem::Size& size, const Plan& plan, int sms) {
  const auto rounds = [&](int64_t tiles) { return double(ceil_div(tiles, plan.blocks)); };
  const double chunk_us = tile.chunk_us * (plan.blocks > sms ? tile.pair_factor : 1);
  const double whole = rounds(plan.whole) * plan.chunks * chunk_us;
  if (plan.cut() == 0) return whole;
  const double tokens = double(std::min<int64_t>(size.m, tile.tokens));
  const double partials =
      double(plan.partials()) * tokens * tile_channels(tile.tokens) * sizeof(float);
  return whole + kStreamReduceUs + 2 * partials / kReduceBytesPerUs +
         rounds(int64_t{plan.cut()} * plan.slices) * double(ceil_div(plan.chunks, plan.slices)) *
             chunk_us;
}

constexpr double kShareReduceUs = 1.4;       // of adding up the parts of packed kernels' tiles
constexpr double kSharePartUs = 0.04;        // of each part of a tile beyond eight
constexpr double kShareBytesPerUs = 3.3e6;   // what those go to L2 and back at
constexpr double kTwoTilesUs = 1.4;          // of a share of two tiles, where tokens are few
constexpr double kExchangeUs = 2.5;          // of a cluster's blocks adding up their sums
constexpr double kExchangeBytesPerUs = 3e4;  // of a block's sums
constexpr int kMostSlices = 2;  // of a cluster: 128 blocks in clusters of 4 do not all fit at once

// Whether no share has parts of two tiles.
bool one_tile_shares(const PackedPlan& plan) {
  return plan.units() % plan.blocks == 0 && plan.chunks % (plan.units() / plan.blocks) == 0;
}

// busy_us of a packed weight.
double busy_us(const Packed& tile, const LowbitProblem::Size& size, const PackedPlan& plan,
               int sms) {
  const double chunk_us = tile.chunk_us * (plan.blocks > sms ? tile.pair_factor : 1);
  const double tokens = double(std::min<int64_t>(size.m, tile.tokens));
  const double sums = tokens * tile.channels() * sizeof(float);  // bytes of a tile
  if (plan.slices > 1) {
    return double(ceil_div(plan.chunks, plan.slices)) * chunk_us + kExchangeUs +
           sums / kExchangeBytesPerUs;
  }
  const double whole = double(ceil_div(plan.whole, plan.blocks)) * plan.chunks * chunk_us;
  if (plan.cut() == 0) return whole;
  const double second = tile.live == 2 && one_tile_shares(plan) ? 0 : kTwoTilesUs;
  const double more = std::max(double(plan.slots()) / plan.cut() - 8, 0.0);
  return whole + kShareReduceUs + more * kSharePartUs + second +
         2 * plan.slots() * sums / kShareBytesPerUs +
         double(ceil_div(plan.units(), plan.blocks)) * chunk_us;
}

}  // namespace

std::string Stream::describe(const LowbitProblem::Size& size, const Machine& machine) const {
  const Plan plan = plan_stream(*this, size, machine.sms);
  return cat("straight from the words, tiles of ", tokens, " tokens, ", plan.cut(), " of ",
             plan.tiles, " in ", plan.slices, " slices of K");
}

std::string Stream::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  if (size.packing != Packing::awq) return "takes AWQ's words, not packed ones";
  if (size.zero_point != ZeroPoint::integer) return "takes integer zero points only";
  if (size.k == 0) return "has nothing to load when K is 0";
  if (size.k % kDepth) {
    return cat("does not take the shape: K=", size.k, " is no multiple of ", kDepth);
  }
  if (size.n % 32) return cat("does not take the shape: N=", size.n, " is no multiple of 32");
  if (size.group % kDepth && size.group != kDepth / 2) {
    return cat("does not take the shape: groups of ", size.group, ", not 32 or a multiple of 64");
  }
  return refuse_machine(machine);
}

Prediction Stream::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const Plan plan = plan_stream(*this, size, machine.sms);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       machine.latency * busy_us(*this, size, plan, machine.sms),
                       plan.blocks > machine.sms ? pair_us : 0);
}

std::string Packed::describe(const LowbitProblem::Size& size, const Machine& machine) const {
  const PackedPlan plan = plan_packed(*this, size, machine.sms);
  const auto how = plan.slices > 1     ? cat(", each in a cluster of ", plan.slices, " slices of K")
                   : plan.has_shares() ? cat(", ", plan.cut(), " of ", plan.tiles,
                                             " shared out over ", plan.blocks, " blocks")
                                       : std::string();
  return cat("from packed words, tiles of ", tokens, " tokens x ", channels(), " channels", how);
}

std::string Packed::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  if (size.packing != Packing::units) return "takes packed units";
  if (size.bits != bits) return cat("takes ", bits, " bits, got ", size.bits);
  return refuse_machine(machine);
}

Prediction Packed::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const PackedPlan plan = plan_packed(*this, size, machine.sms);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       machine.latency * busy_us(*this, size, plan, machine.sms), 0);
}

std::string Dense::describe(const LowbitProblem::Size&, const Machine&) const {
  return "dequantises W to memory, then a dense product";
}

std::string Dense::refuse(const LowbitProblem::Size&, const Machine& machine) const {
  return refuse_machine(machine);
}

Prediction Dense::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const double dense = 2 * double(size.n) * double(size.k);
  const double tiles = double(ceil_div(size.m, tile_m) * ceil_div(size.n, tile_n));
  const double busy = chunk_us * double(ceil_div(size.k, kDepth)) * std::ceil(tiles / machine.sms);
  const double before = (size.weight_bytes() + dense) / rate_of(machine);
  return prediction_of({fixed_us, rate},
                       (dense + size.bytes() - size.weight_bytes()) / rate_of(machine),
                       busy * kProductsPerUs / machine.products_per_us, before);
}

namespace {

constexpr Kernel<LowbitProblem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<LowbitProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm90/lowbit.table"
#undef KERNEL
};

}  // namespace

Plan plan_stream(const Stream& tile, const LowbitProblem::Size& size, int sms) {
  const int64_t chunks = size.k / kDepth;
  const int64_t tiles =
      ceil_div(size.m, tile.tokens) * ceil_div(size.n, tile_channels(tile.tokens));
  Plan best = {};
  double least = INFINITY;
  // So many slices of the tiles that fill no round of `slots` blocks.
  const auto consider = [&](int64_t slots, int64_t slices) {
    Plan plan = {};
    plan.tiles = static_cast<int>(tiles);
    plan.whole = static_cast<int>(slices == 1 ? tiles : tiles / slots * slots);
    plan.slices = static_cast<int>(slices);
    plan.chunks = static_cast<int>(chunks);
    plan.blocks = static_cast<int>(std::clamp<int64_t>(plan.work_tiles(), 1, slots));
    const double us = busy_us(tile, size, plan, sms) + (plan.blocks > sms ? tile.pair_us : 0);
    if (us < least) least = us, best = plan;
  };
  for (int live = 1; live <= live_blocks(tile.tokens); ++live) {
    const int64_t slots = int64_t{live} * sms;
    consider(slots, 1);
    const int64_t left = tiles % slots;
    if (left == 0) continue;
    for (int rounds = 1; rounds <= kMostRounds; ++rounds) {  // as many slices as they have room for
      consider(slots, std::max<int64_t>(1, std::min(rounds * slots / left, chunks)));
    }
  }
  return best;
}

PackedPlan plan_packed(const Packed& tile, const LowbitProblem::Size& size, int sms) {
  const int64_t tiles = ceil_div(size.m, tile.tokens) * ceil_div(size.n, tile.channels());
  const auto chunks = static_cast<int>(ceil_div(size.k, kUnitRows));
  PackedPlan best = {};
  double least = INFINITY;
  const auto consider = [&](PackedPlan plan) {
    const double us = busy_us(tile, size, plan, sms);
    if (us < least) least = us, best = plan;
  };
  for (int live = 1; live <= tile.live; ++live) {
    const int64_t slots = int64_t{live} * sms;
    PackedPlan plan = {};
    plan.tiles = static_cast<int>(tiles), plan.chunks = chunks;
    plan.whole = plan.tiles, plan.blocks = static_cast<int>(std::clamp<int64_t>(tiles, 1, slots));
    consider(plan);
    if (tiles % slots == 0 || chunks == 0) continue;
    plan.whole = static_cast<int>(tiles / slots * slots);
    const int64_t units = (tiles - plan.whole) * chunks;
    plan.blocks = static_cast<int>(plan.whole > 0 ? slots : std::min(slots, units));
    // A few blocks fewer, where no share is longer for it and each is of one tile: to end one tile
    // and begin another takes longer than a chunk of few tokens.
    const int64_t longest = ceil_div(units, slots);
    if (plan.whole == 0 && chunks % longest == 0) plan.blocks = static_cast<int>(units / longest);
    if (units >= plan.blocks && units <= INT_MAX) consider(plan);
    // Where a multiprocessor holds two blocks, clusters would crowd onto half of them.
    const int most_slices = tile.live == 1 ? std::min(kMostSlices, chunks) : 1;
    for (int slices = 2; slices <= most_slices; slices *= 2) {
      if (tiles * slices > slots) break;  // all at once
      plan.whole = 0, plan.slices = slices, plan.blocks = static_cast<int>(tiles) * slices;
      consider(plan);
    }
  }
  return best;
}

}  // namespace lowbit

constinit const Arch arch = {"sm90",
                             int8::kKernels,
                             lowbit::kKernels,
                             grouped::kKernels,
                             grouped_lowbit::kKernels,
                             SCALED_MM_RUN(int8::plan_line)};

}  // namespace scaled_mm::cuda::sm90
