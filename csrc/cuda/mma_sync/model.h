// What the kernels of mma.sync serve and how long they are expected to take; for the model.cpp of
// an arch's folder.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/mma_sync/kinds.h"
#include "dispatch/table.h"
#include "integers.h"
#include "refuse.h"

namespace scaled_mm::cuda::mma_sync {

inline constexpr double kReduceUs = 2.0;  // of the kernel that adds up slices, on an H200

// Of device memory, at best.
inline double memory_rate(const Machine& machine) {
  return machine.memory_share * machine.bytes_per_us;
}

inline std::string refuse_machine(const Gpus& gpus, const Machine& machine) {
  if (gpus.serves(machine.capability)) return "";
  return cat("needs compute capability ", gpus.served, ", got ", machine.capability / 10, ".",
             machine.capability % 10);
}

inline std::string slices_text(int slices) {
  return slices > 1 ? cat(", K in ", slices, " slices") : "";
}

// Bytes of the operands' ring.
template <const Gpus& kGpus>
constexpr int ring_bytes(const Multistage<kGpus>& tile) {
  return (tile.tile_m + tile.tile_n) * tile.tile_k * tile.stages;
}

// And those of the epilogue's operands beside it, at most: two numbers for each token, three for
// each channel.
template <const Gpus& kGpus>
constexpr int block_bytes(const Multistage<kGpus>& tile) {
  return ring_bytes(tile) + 4 * (2 * tile.tile_m + 3 * tile.tile_n + 4);
}

template <const Gpus& kGpus>
int64_t tiles_of(const Multistage<kGpus>& tile, const Int8Problem::Size& size) {
  return ceil_div(size.m, tile.tile_m) * ceil_div(size.n, tile.tile_n);
}
template <const Gpus& kGpus>
int64_t tiles_of(const Stream<kGpus>& tile, const Int8Problem::Size& size) {
  return ceil_div(size.m, tile.tile_m) * ceil_div(size.n, tile.tile_n);
}

template <const Gpus& kGpus>
int slices_of(const Multistage<kGpus>& tile, const Int8Problem::Size& size,
              const Machine& machine) {
  // A slice shorter than two rings would only fill and drain.
  return plan_split(tile.split, tiles_of(tile, size), size.k / (2 * tile.tile_k * tile.stages),
                    machine);
}
template <const Gpus& kGpus>
int slices_of(const Stream<kGpus>& tile, const Int8Problem::Size& size, const Machine& machine) {
  return plan_split(tile.split, tiles_of(tile, size), size.k / (2 * tile.step * tile.warps),
                    machine);
}

// What slices cost beside the product: their sums are written, read and added up.
inline double reduce_us(int slices, const Int8Problem::Size& size, const Machine& machine) {
  if (slices == 1) return 0;
  const double bytes = 8.0 * slices * double(size.m) * double(size.n);  // L2 holds them
  return kReduceUs * machine.latency + bytes / (machine.l2_bytes_per_us * machine.sms);
}

// Blocks of the tile that a multiprocessor has room for: shared memory, and 65536 registers, about
// two of a thread for each of its sums.
template <const Gpus& kGpus>
int live_of(const Multistage<kGpus>& tile, const Machine& machine) {
  const int sums = tile.tile_m * tile.tile_n;
  return std::min((shared_bytes(machine.capability) + 1024) / (block_bytes(tile) + 1024),
                  65536 / (2 * sums));
}

// What a round beyond the first costs where a block is alone on its multiprocessor: its first
// stages and its stores, which nothing goes on beside. On an H200 (docs/mma_sync.md).
inline constexpr double kTurnUs = 4.6;

// By how much a streaming kernel's products are slower than those of a tile in shared memory: its
// tokens come through L1 for every few channels. Not measured by itself: L2 binds first on an H200.
inline constexpr double kStreamProducts = 3.0;

// What tensor cores take at the rate that the machine keeps up, and what L2 does: of so many
// rounds of blocks over the multiprocessors, each with a tile of so many rows of K and so many
// tokens to load. `bytes`: of device memory. `waits`: us beside all that.
template <class Tile>
Prediction predict_rounds(const Tile& tile, double rounds, double tokens, double k, double slower,
                          double bytes, double waits, const Machine& machine) {
  const double products = slower * rounds * tile.tile_m * tile.tile_n * k;
  const double loads = rounds * (tokens + tile.tile_n) * k;
  const double busy = std::max(products / machine.products_per_us, loads / machine.l2_bytes_per_us);
  return prediction_of({tile.fixed_us, tile.rate}, bytes / memory_rate(machine), busy, waits,
                       products / machine.most_products_per_us);
}

template <const Gpus& kGpus>
std::string Multistage<kGpus>::describe(const Int8Problem::Size& size,
                                        const Machine& machine) const {
  const char* copies =
      size.k % 16 ? "; A and B are copied into rows that end in zeros, as K is no multiple of 16"
                  : "";
  return cat("CUTLASS 2.x, tiles of ", tile_m, " tokens x ", tile_n, " channels, ", stages,
             " stages", slices_text(slices_of(*this, size, machine)), copies);
}

template <const Gpus& kGpus>
std::string Multistage<kGpus>::refuse(const Int8Problem::Size&, const Machine& machine) const {
  if (const std::string why = refuse_machine(kGpus, machine); !why.empty()) return why;
  const int has = shared_bytes(machine.capability);
  if (const int bytes = block_bytes(*this); bytes > has) {
    return cat("needs ", bytes, " bytes of shared memory, a block has at most ", has);
  }
  return "";
}

template <const Gpus& kGpus>
Prediction Multistage<kGpus>::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int slices = slices_of(*this, size, machine);
  const int64_t blocks = tiles_of(*this, size) * slices;
  const double k = double(round_up(ceil_div(size.k, slices), tile_k));
  // Blocks that share a multiprocessor share its tensor cores: only the last round is ragged.
  const double rounds = double(ceil_div(blocks, int64_t{machine.sms}));
  const double tokens = double(std::min<int64_t>(tile_m, size.m));  // others are not loaded
  const double turns = live_of(*this, machine) > 1 ? 0.0 : std::max(rounds - 1, 0.0);
  const double waits = reduce_us(slices, size, machine) + turns * kTurnUs * machine.latency;
  return predict_rounds(*this, rounds, tokens, k, 1.0, size.bytes(), waits, machine);
}

template <const Gpus& kGpus>
std::string Stream<kGpus>::describe(const Int8Problem::Size& size, const Machine& machine) const {
  return cat("streams the weight, tiles of ", tile_m, " tokens x ", tile_n, " channels, ", warps,
             " warps", slices_text(slices_of(*this, size, machine)));
}

template <const Gpus& kGpus>
std::string Stream<kGpus>::refuse(const Int8Problem::Size&, const Machine& machine) const {
  return refuse_machine(kGpus, machine);
}

template <const Gpus& kGpus>
Prediction Stream<kGpus>::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int slices = slices_of(*this, size, machine);
  const int64_t blocks = tiles_of(*this, size) * slices;
  const double k = double(round_up(ceil_div(size.k, slices), step));
  const double rounds = double(ceil_div(blocks, int64_t{live} * machine.sms)) * live;
  // Blocks on a multiprocessor find each other's tokens in L1.
  const double tokens = double(std::min<int64_t>(tile_m, size.m)) / live;
  const double reduce = reduce_us(slices, size, machine);
  return predict_rounds(*this, rounds, tokens, k, kStreamProducts, size.bytes(), reduce, machine);
}

// About that of the lines of Stream. A block finds its tile and ends it while nothing streams: of
// little K it takes this long, on an H100 that ran sm80's code.
inline constexpr Fit kGroupedFit{3.0, 0.85};
inline constexpr double kGroupedBlockUs = 3.7;

template <const Gpus& kGpus>
std::string GroupedStream<kGpus>::describe(const GroupedInt8Problem::Size&, const Machine&) const {
  return cat("streams the experts' weights, tiles of ", tile_m, " tokens x ", tile_n, " channels, ",
             warps, " warps");
}

template <const Gpus& kGpus>
std::string GroupedStream<kGpus>::refuse(const GroupedInt8Problem::Size&,
                                         const Machine& machine) const {
  return refuse_machine(kGpus, machine);
}

template <const Gpus& kGpus>
Prediction GroupedStream<kGpus>::predict(const GroupedInt8Problem::Size& size,
                                         const Machine& machine) const {
  const double blocks = size.usual_tiles(tile_m) * double(ceil_div(size.n, tile_n));
  const double rounds = std::ceil(blocks / (double(live) * machine.sms)) * live;
  const double k = double(round_up(size.k, step));
  const double products = kStreamProducts * rounds * tile_m * tile_n * k;
  const double loads = rounds * (double(tile_m) / live + tile_n) * k;
  const double waits = rounds / live * kGroupedBlockUs * machine.latency;
  const double busy =
      std::max({products / machine.products_per_us, loads / machine.l2_bytes_per_us, waits});
  return prediction_of(kGroupedFit, size.bytes() / memory_rate(machine), busy, 0,
                       products / machine.most_products_per_us);
}

template <const Gpus& kGpus>
std::string GroupedMultistage<kGpus>::describe(const GroupedInt8Problem::Size&,
                                               const Machine&) const {
  return cat("CUTLASS 2.x, tiles of ", of.tile_m, " tokens of an expert x ", of.tile_n,
             " channels, ", of.stages, " stages");
}

template <const Gpus& kGpus>
std::string GroupedMultistage<kGpus>::refuse(const GroupedInt8Problem::Size& size,
                                             const Machine& machine) const {
  if (size.k == 0 || size.k % 16 != 0) return cat("needs K in multiples of 16, got ", size.k);
  return of.refuse(size, machine);
}

template <const Gpus& kGpus>
Prediction GroupedMultistage<kGpus>::predict(const GroupedInt8Problem::Size& size,
                                             const Machine& machine) const {
  const double blocks = size.usual_tiles(of.tile_m) * double(ceil_div(size.n, of.tile_n));
  const double rounds = std::ceil(blocks / machine.sms);
  const double k = double(round_up(size.k, of.tile_k));
  const double turns = live_of(of, machine) > 1 ? 0.0 : std::max(rounds - 1, 0.0);
  return predict_rounds(of, rounds, of.tile_m, k, 1.0, size.bytes(),
                        turns * kTurnUs * machine.latency, machine);
}

template <const Gpus& kGpus>
int64_t tiles_of(const Units<kGpus>& tile, const LowbitProblem::Size& size) {
  return ceil_div(size.m, tile.tile_m) * ceil_div(size.n, tile.tile_n);
}
template <const Gpus& kGpus>
int slices_of(const Units<kGpus>& tile, const LowbitProblem::Size& size, const Machine& machine) {
  // Of four chunks or more. All blocks that a multiprocessor has room for run at the same time.
  const int64_t tiles = ceil_div(tiles_of(tile, size), tile.live);
  return plan_split(tile.split, tiles, size.k / (4 * kUnitRows), machine);
}

// 16-bit floats without tensor cores for one of the formats.
inline std::string refuse_dtype(const Gpus& gpus, DType dtype) {
  if (gpus.multistage || dtype == DType::float16) return "";
  return "takes float16 (these tensor cores have no bfloat16), got bfloat16";
}

template <const Gpus& kGpus>
std::string Units<kGpus>::describe(const LowbitProblem::Size& size, const Machine& machine) const {
  return cat("multiplies packed units, tiles of ", tile_m, " tokens x ", tile_n, " channels",
             slices_text(slices_of(*this, size, machine)));
}

template <const Gpus& kGpus>
std::string Units<kGpus>::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  if (size.packing != Packing::units) return "takes a weight packed in units";
  if (const std::string why = refuse_machine(kGpus, machine); !why.empty()) return why;
  if (const int bytes = ring * 1024, has = shared_bytes(machine.capability); bytes > has) {
    return cat("needs ", bytes, " bytes of shared memory, a block has at most ", has);
  }
  return refuse_dtype(kGpus, size.dtype);
}

// So many blocks, each with all of a tile and k rows; and what joining slices takes besides.
template <const Gpus& kGpus, class Size>
Prediction predict_units(const Units<kGpus>& tile, double blocks, double k, double reduce,
                         const Size& size, const Machine& machine) {
  const double rounds = std::ceil(blocks / (double(tile.live) * machine.sms)) * tile.live;
  // Tokens that are not there are not read, but multiplied.
  const double tokens = double(std::min<int64_t>(tile.tile_m, size.m));
  const double products = 2 * rounds * tile.tile_m * tile.tile_n * k;  // at half of int8's rate
  const double loads = rounds * k * (2 * tokens + tile.tile_n * size.bits / 8.0);
  const double busy = std::max(products / machine.products_per_us, loads / machine.l2_bytes_per_us);
  return prediction_of({tile.fixed_us, tile.rate}, size.bytes() / memory_rate(machine), busy,
                       reduce, products / machine.most_products_per_us);
}

template <const Gpus& kGpus>
Prediction Units<kGpus>::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const int slices = slices_of(*this, size, machine);
  const int64_t blocks = tiles_of(*this, size) * slices;
  const double k = double(round_up(ceil_div(size.k, slices), kUnitRows));
  const double sums = 8.0 * slices * double(size.m) * double(size.n);  // L2 holds them
  const double reduce =
      slices == 1 ? 0
                  : kReduceUs * machine.latency + sums / (machine.l2_bytes_per_us * machine.sms);
  return predict_units(*this, double(blocks), k, reduce, size, machine);
}

template <const Gpus& kGpus>
std::string GroupedUnits<kGpus>::describe(const GroupedLowbitProblem::Size&, const Machine&) const {
  return cat("multiplies the experts' packed units, tiles of ", of.tile_m, " tokens x ", of.tile_n,
             " channels");
}

template <const Gpus& kGpus>
std::string GroupedUnits<kGpus>::refuse(const GroupedLowbitProblem::Size& size,
                                        const Machine& machine) const {
  return of.refuse(size, machine);
}

template <const Gpus& kGpus>
Prediction GroupedUnits<kGpus>::predict(const GroupedLowbitProblem::Size& size,
                                        const Machine& machine) const {
  const double blocks = size.usual_tiles(of.tile_m) * double(ceil_div(size.n, of.tile_n));
  return predict_units(of, blocks, double(round_up(size.k, kUnitRows)), 0, size, machine);
}

template <const Gpus& kGpus>
std::string Dense<kGpus>::describe(const LowbitProblem::Size&, const Machine&) const {
  return cat("dequantises W to memory, then a dense product, CUTLASS 2.x, tiles of ", tile_m,
             " tokens x ", tile_n, " channels, ", stages, " stages");
}

template <const Gpus& kGpus>
std::string Dense<kGpus>::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  if (const std::string why = refuse_dtype(kGpus, size.dtype); !why.empty()) return why;
  return refuse_machine(kGpus, machine);
}

// Of a weight that is dequantised to memory first: what that takes, and then its product with the
// tokens in tiles, so many times as long as int8 would take.
inline Prediction predict_dense(const Fit& fit, double products, double times,
                                const LowbitProblem::Size& size, const Machine& machine) {
  const double dense = 2 * double(size.n) * double(size.k);
  return prediction_of(fit, (dense + size.bytes() - size.weight_bytes()) / memory_rate(machine),
                       times * products / machine.products_per_us,
                       (size.weight_bytes() + dense) / memory_rate(machine),
                       times * products / machine.most_products_per_us);
}

template <const Gpus& kGpus>
Prediction Dense<kGpus>::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const int64_t tiles = ceil_div(size.m, tile_m) * ceil_div(size.n, tile_n);
  const double rounds = double(ceil_div(tiles, int64_t{machine.sms}));
  const double products = rounds * tile_m * tile_n * double(round_up(size.k, tile_k));
  return predict_dense({fixed_us, rate}, products, 2.0, size, machine);
}

// Of int8's products on tensor cores, how many are done in the time of a float32 one: 7.5 has 64
// multiply-adds of these for each multiprocessor and clock beside 1024.
inline constexpr double kSimtProducts = 16.0;

template <const Gpus& kGpus>
std::string Simt<kGpus>::describe(const LowbitProblem::Size&, const Machine&) const {
  return cat("dequantises W to memory, then float32 multiply-adds, tiles of ", tile, " tokens x ",
             tile, " channels");
}

template <const Gpus& kGpus>
std::string Simt<kGpus>::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  constexpr int64_t kMaxTiles = 65535;  // of a grid's second dimension
  if (const int64_t tiles = ceil_div(size.m, tile); tiles > kMaxTiles) {
    return cat("takes at most ", kMaxTiles, " tiles along M, got ", tiles);
  }
  return refuse_machine(kGpus, machine);
}

template <const Gpus& kGpus>
Prediction Simt<kGpus>::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const int64_t tiles = ceil_div(size.m, tile) * ceil_div(size.n, tile);
  const double rounds = double(ceil_div(tiles, int64_t{machine.sms}));
  return predict_dense({fixed_us, rate}, rounds * tile * tile * double(size.k), kSimtProducts, size,
                       machine);
}

}  // namespace scaled_mm::cuda::mma_sync
