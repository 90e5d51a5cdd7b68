// A block of the kernel for int8 activations and weights of 4 bits (w4a8.cuh): what it is given,
// and how its shared memory is laid out.
#pragma once

#include <cuda.h>

#include <cutlass/arch/barrier.h>

#include "cuda/k_scales/end.cuh"
#include "cuda/k_scales/units_int8.cuh"
#include "cuda/sm90/k_scales.h"
#include "cuda/sm90/lowbit_packed_block.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

using lowbit::Cursor;
using lowbit::Empty;
using lowbit::Full;
using lowbit::PackedPlan;
using lowbit::Share;
using lowbit::TileOrigin;

struct Params {
  const uint8_t* units;  // [chunks][panels]
  int panels;            // of kUnitChannels channels
  int sets;              // of a unit
  DType dtype;           // of its scales
  CUtensorMap tokens;    // A [M, K], in boxes of the tile's tokens, or of all, x kUnitRows
  int box_bytes;
  bool arranged;
  int m;
  int n;
  int k;
  int group;        // rows of K that share scales
  int slice;        // slice_columns(K)
  int token_tiles;  // tiles of D along M
  Pieces pieces;
  int stages;          // of the ring
  int parts;           // of a range of K, whose sums are kept in shared memory
  const int32_t* azp;  // a zero point of each token, or null
  int64_t azp_stride;
  GroupsEnd end;
  uint32_t* partials;  // [slots, tokens of a tile, channels of a tile]: floats, or int32
};

// How often sums of int32 go on to floats: at the end of K; where groups of whole chunks end; where
// other groups end.
enum class Grouping { one, of_chunks, of_steps };

template <const Units& kTile, Grouping kGroups_>
struct Block {
  static constexpr Grouping kGroups = kGroups_;
  static constexpr bool kAlongK = kTile.along_k;
  static constexpr int kTokens = kTile.tokens, kPanels = kTile.warpgroups;
  static constexpr int kChannels = kTile.channels();
  static constexpr int kConsumers = 128 * kPanels;  // threads that multiply
  // And a warpgroup of which a thread loads. Of few tokens its other warps arrange these; of many
  // another kernel does so, once for all tiles.
  static constexpr bool kArranges = kTokens <= 64;
  static constexpr int kArrangers = 96, kThreads = kConsumers + 128;
  static constexpr int kAtLaunch = std::min(65536 / kThreads / 8 * 8, 168);  // registers
  static constexpr int kLoaderRegisters = kArranges ? 32 : 40;
  static constexpr int kRegisters =
      std::min((kAtLaunch * kThreads - kLoaderRegisters * 128) / kConsumers / 8 * 8, 240);

  static constexpr int kMostSets = kGroups == Grouping::of_steps ? 4 : 1;
  static constexpr int kBoxBytes = kTokens * kUnitRows;  // a chunk's tokens
  static constexpr int kTokenBytes = kAlongK ? kPanels * kBoxBytes : kBoxBytes;
  static constexpr int kWordBytes = kPanels * unit_bytes(4, ZeroPoint::integer, kMostSets);
  static constexpr int kMaxStages = 16;
  static constexpr int kSumsPitch = kChannels + 4;    // words
  static constexpr int kSums = kTokens * kSumsPitch;  // of a tile: floats, or int32
  struct Fixed {
    int32_t azp[kPanels][kTokens];  // each warpgroup's own
    uint64_t full[kMaxStages];      // words and tokens are there
    uint64_t ready[kMaxStages];     // tokens are arranged
    uint64_t empty[kMaxStages];
  };
  // Where a cluster has a tile, ranges of K that a block of it has.
  static constexpr int kRanges = kAlongK ? kPanels : 1;
  // The ring: all stages' tokens, all stages' words. Then sums: of a tile, or of the ranges' parts.
  static constexpr int shared_bytes(int stages, int parts) {
    return stages * (kWordBytes + kTokenBytes) + kRanges * parts * kSums * 4 +
           static_cast<int>(sizeof(Fixed));
  }
  static constexpr int stages(int bytes, int parts) {
    int stages = kMaxStages;
    while (stages > 2 && shared_bytes(stages, parts) > bytes) --stages;
    return stages;
  }
};

struct Chunks {
  int first, last;
};
// Of pieces [first, last) of a tile.
__device__ inline Chunks chunks_of(const Pieces& pieces, int first, int last) {
  return {min(first * pieces.depth, pieces.chunks), min(last * pieces.depth, pieces.chunks)};
}

template <class Block>
__device__ TileOrigin place_of(const Params& p, int tile) {
  return TileOrigin(tile, p.pieces.plan.tiles, p.token_tiles, Block::kTokens, Block::kChannels);
}

// Where a cluster has a tile: that of the calling block, and the pieces of its ranges of K. The
// first ranges of all blocks come first; the first may be longer.
template <class Block>
struct Ranges {
  int tile, rank, slices;  // the calling block is the rank-th
  int least, longer;
  __device__ explicit Ranges(const PackedPlan& plan)
      : tile(static_cast<int>(blockIdx.x) / plan.slices),
        rank(static_cast<int>(blockIdx.x) % plan.slices),
        slices(plan.slices),
        least(plan.chunks / (plan.slices * Block::kRanges)),
        longer(plan.chunks % (plan.slices * Block::kRanges)) {}
  // Of all blocks' ranges, in the order of K.
  __device__ int count(int index) const { return least + (index < longer); }
  __device__ int first(int index) const { return index * least + min(index, longer); }
  // Sums of a range: the first pieces of all, and integers, are one.
  __device__ int parts(int index) const {
    const bool together = Block::kGroups == Grouping::one || index == 0;
    return index >= slices * Block::kRanges ? 0 : together ? min(count(index), 1) : count(index);
  }
  // Of the calling block's i-th range.
  __device__ Chunks chunks(const Pieces& pieces, int i) const {
    const int index = i * slices + rank, begin = first(index);
    return chunks_of(pieces, begin, begin + count(index));
  }
};

}  // namespace scaled_mm::cuda::sm90::k_scales
