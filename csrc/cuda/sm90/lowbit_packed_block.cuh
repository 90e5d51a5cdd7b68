// A block of the kernel for packed weights (lowbit_packed.cuh): what it is given, how its
// shared memory is laid out, and which parts of which tiles are its own.
#pragma once

#include "cuda/lowbit/units.cuh"
#include "cuda/sm90/lowbit_block.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

struct PackedParams {
  const uint8_t* units;  // [chunks][panels]
  bool settled;          // LowbitWeight::settled
  int sets;              // of a unit
  CUtensorMap tokens;    // X [M, 2 K] bytes, in boxes of the tile's tokens x 128
  int m;
  int n;
  int panels;       // of kUnitChannels channels
  int token_tiles;  // tiles of D along M
  PackedPlan plan;
  int stages;  // of the ring
  LowbitEnd end;
  float* partials;  // [slots, tokens of a tile, channels of a tile]
};

// What a block of a line of the table is: its tile, its threads, its shared memory. kSets: how
// often in a unit scales and zero points are read: 1, or 4, for a unit of any number of sets.
template <const Packed& kTile, class Format_, int kSets_>
struct PackedBlock {
  using Format = Format_;
  static constexpr bool kCopies = false;  // tokens to shared memory, by threads; else TMA does
  static constexpr int kTokens = kTile.tokens, kPanels = kTile.panels, kSets = kSets_;
  static constexpr int kLive = kTile.live, kChannels = kTile.channels();
  static constexpr int kRows = kTile.rows;  // of a stage: a unit's, or half of them
  static constexpr int kAllPanels = kPanels * kTile.warpgroups;
  static constexpr int kConsumers = 128 * kTile.warpgroups;  // threads that multiply
  // And a warpgroup of which a thread loads, and which leaves its registers to the others.
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kAtLaunch = std::min(65536 / kLive / kThreads / 8 * 8, 168);  // registers
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kRegisters =
      std::min((kAtLaunch * kThreads - kLoaderRegisters * 128) / kConsumers / 8 * 8, 240);

  // Of a unit with so many sets, all of it and what a stage has of it: words of kRows rows and all
  // sets. A stage has room for units of kSets.
  static constexpr int set_bytes(int sets) { return (kSets == 1 ? 1 : sets) * Format::kSetBytes; }
  static constexpr int unit_bytes(int sets) { return Format::kWordBytes + set_bytes(sets); }
  static constexpr int kPieces = kUnitRows / kRows;  // stages of a unit
  static constexpr int kPieceWords = Format::kWordBytes / kPieces;
  static constexpr int piece_bytes(int sets) { return kPieceWords + set_bytes(sets); }
  static constexpr int kWordBytes = kAllPanels * piece_bytes(kSets);
  static constexpr int kTokenBytes = kTokens * 2 * kRows;
  static constexpr int kMaxStages = 16;
  struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
  };
  // The ring: all stages' tokens, all stages' words.
  static constexpr int shared_bytes(int stages) {
    return stages * (kWordBytes + kTokenBytes) + static_cast<int>(sizeof(Barriers));
  }
  // Where a tile's sums lie in its place, afterwards: rows of so many floats, whose stores and
  // loads find 32 banks.
  static constexpr int kSumsRow = kChannels + 4;
  static constexpr int kSumsBytes = kTokens * kSumsRow * 4;

  // Of half a unit: the last products of one stage and those of the next run while a third is
  // waited for.
  static constexpr int kFewestStages = 1 + kPieces;

  // A ring for `chunks`, within `bytes` of shared memory; with_sums: with room for those.
  static constexpr int stages(int chunks, int bytes, bool with_sums) {
    int stages = std::min(kMaxStages, chunks * kPieces);
    while (stages > kFewestStages && shared_bytes(stages) > bytes) --stages;
    stages = std::max(stages, kFewestStages);
    while (with_sums && shared_bytes(stages) < kSumsBytes) ++stages;
    return stages;
  }
};

// The calling block's parts of tiles, one after the other. next() says whether there is one more.
class Share {
 public:
  int tile = 0;
  int first = 0, last = 0;  // its chunks

  __device__ explicit Share(const PackedPlan& plan)
      : plan_(plan), whole_(static_cast<int>(blockIdx.x)) {
    if (plan.slices > 1) {
      unit_ = static_cast<int>(blockIdx.x) % plan.slices, end_ = unit_ + 1;  // the slice
    } else if (plan.cut() > 0) {
      unit_ = plan.begin(blockIdx.x), end_ = plan.begin(blockIdx.x + 1);
    }
  }
  // Whether they are some of the tile's.
  __device__ bool is_part() const { return last - first < plan_.chunks; }
  __device__ bool next() {
    if (plan_.slices > 1) return next_slice();
    if (whole_ < plan_.whole) {
      tile = whole_, first = 0, last = plan_.chunks;
      whole_ += gridDim.x;
      return true;
    }
    if (unit_ >= end_) return false;
    const int cut = unit_ / plan_.chunks;
    tile = plan_.whole + cut;
    first = unit_ - cut * plan_.chunks;
    last = min(plan_.chunks, first + end_ - unit_);
    unit_ += last - first;
    return true;
  }

 private:
  const PackedPlan& plan_;
  int whole_;  // the next whole tile
  int unit_ = 0, end_ = 0;

  __device__ bool next_slice() {
    if (unit_ == end_) return false;
    tile = static_cast<int>(blockIdx.x) / plan_.slices;
    const int least = plan_.chunks / plan_.slices, longer = plan_.chunks % plan_.slices;
    first = unit_ * least + min(unit_, longer);
    last = first + least + (unit_ < longer);
    unit_ = end_;
    return true;
  }
};

template <class Block>
__device__ TileOrigin place_of(const PackedParams& p, int tile) {
  return TileOrigin(tile, p.plan.tiles, p.token_tiles, Block::kTokens, Block::kChannels);
}

}  // namespace scaled_mm::cuda::sm90::lowbit
