// What Hopper's kernels over the rows of several experts serve, and how long they are expected to
// take.
#include <algorithm>
#include <cmath>

#include "cuda/sm90/model.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90 {

// --- grouped -------------------------------------------------------------------------------------

namespace grouped {
namespace {

// Of all streaming tiles of grouped.table, fitted to an H100 and an H200.
constexpr Fit kFit{2.1, 0.66};
// Of tiles of 64 rows, besides: on an H200, of a few rows of Qwen3's experts (K = 768).
constexpr double kManyRowsUs = 1.5;
// Of a multiprocessor's power and L2, which the others have where the last round leaves it none.
constexpr double kIdleShare = 0.15;

int8::Stream ungrouped(const Stream& tile) {
  return {tile.tile_m, tile.tile_n, float(kFit.fixed_us), float(kFit.rate)};
}

// The product of one weight that has as many tiles, all of them full.
Int8Problem::Size filled(const Stream& tile, const GroupedInt8Problem::Size& size, double tiles) {
  Int8Problem::Size full = size;
  full.m = static_cast<int64_t>(std::ceil(tiles)) * tile.tile_m;
  return full;
}

}  // namespace

StreamPlan plan_stream(const Stream& tile, const GroupedInt8Problem::Size& size,
                       const Machine& machine) {
  const auto most = static_cast<double>(size.most_tiles(tile.tile_m));
  return int8::plan_stream(ungrouped(tile), filled(tile, size, most), machine);
}

std::string Stream::describe(const GroupedInt8Problem::Size&, const Machine&) const {
  return cat("streams the experts' weights, ", int8::tile_text(tile_m, tile_n));
}

std::string Stream::refuse(const GroupedInt8Problem::Size&, const Machine& machine) const {
  return refuse_machine(machine);
}

Prediction Stream::predict(const GroupedInt8Problem::Size& size, const Machine& machine) const {
  const Int8Problem::Size full = filled(*this, size, size.usual_tiles(tile_m));
  const Prediction p = ungrouped(*this).predict(full, machine);
  const double waves = p.waves + (tile_m > 16 ? kManyRowsUs * machine.latency : 0);
  return prediction_of(kFit, size.bytes() / rate_of(machine), p.busy, waves, p.least);
}

std::string Persistent::describe(const GroupedInt8Problem::Size&, const Machine&) const {
  return cat("pairs of blocks that go from tile to tile, ", int8::tile_text(tile_m, 128));
}

std::string Persistent::refuse(const GroupedInt8Problem::Size& size, const Machine& machine) const {
  if (size.experts > kMaxExperts) {
    return cat("takes ", kMaxExperts, " experts at most, got ", size.experts);
  }
  return refuse_machine(machine);
}

Prediction Persistent::predict(const GroupedInt8Problem::Size& size, const Machine& machine) const {
  const double blocks = 2 * size.usual_tiles(tile_m) * double(ceil_div(size.n, int64_t{256}));
  const double rows = double(round_up(size.k, int8::kChunk));
  const double loads = (tile_m / 2.0 + 128) * rows, operations = 128.0 * tile_m * rows;
  const double rounds = std::ceil(blocks / machine.sms);
  const double pace = rounds - kIdleShare * (rounds - blocks / machine.sms);
  // The last round's blocks share L2 among themselves.
  const double last = blocks - (rounds - 1) * machine.sms;
  const double lone = std::min(machine.lone_bytes_per_us,
                               machine.l2_bytes_per_us * machine.sms / std::max(last, 1.0));
  const double sums = double(size.m) * double(size.n);
  const double us = kExposedEpilogueUs + (int8::is_plain(size) ? 0 : kTileEndingUs * sums);
  return prediction_of({fixed_us, rate}, size.bytes() / rate_of(machine),
                       std::max(pace * operations / machine.products_per_us,
                                (rounds - 1) * loads / machine.l2_bytes_per_us + loads / lone),
                       us * machine.latency, rounds * operations / machine.most_products_per_us);
}

constinit const Kernel<GroupedInt8Problem> kKernels[kLines] = {
#define KERNEL(name, Kind, ...) \
  table_line<GroupedInt8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm90/grouped.table"
#undef KERNEL
};

}  // namespace grouped

// --- grouped lowbit ------------------------------------------------------------------------------

namespace grouped_lowbit {

std::string Packed::describe(const GroupedLowbitProblem::Size&, const Machine&) const {
  return cat("from the experts' packed words, tiles of ", of.tokens, " tokens x ", of.channels(),
             " channels");
}

std::string Packed::refuse(const GroupedLowbitProblem::Size& size, const Machine& machine) const {
  if (size.experts > kMostExperts) {
    return cat("takes ", kMostExperts, " experts at most, got ", size.experts);
  }
  return of.refuse(size, machine);
}

// Whole tiles, in rounds; of the last one, the multiprocessors that have one.
Prediction Packed::predict(const GroupedLowbitProblem::Size& size, const Machine& machine) const {
  const double tiles = size.usual_tiles(of.tokens) * double(ceil_div(size.n, of.channels()));
  const double per_round = double(of.live) * machine.sms;
  const double pairs = tiles > machine.sms ? of.pair_factor : 1;
  const double rounds = std::ceil(tiles / per_round);
  const double busy = rounds * double(ceil_div(size.k, kUnitRows)) * of.chunk_us * pairs;
  return prediction_of({of.fixed_us, of.rate}, size.bytes() / rate_of(machine),
                       machine.latency * busy, 0);
}

constinit const Kernel<GroupedLowbitProblem> kKernels[kLines] = {
#define KERNEL(name, Kind, ...) \
  table_line<GroupedLowbitProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm90/grouped_lowbit.table"
#undef KERNEL
};

}  // namespace grouped_lowbit

}  // namespace scaled_mm::cuda::sm90
