// A block of the streaming int4 kernel (lowbit_stream.cuh): what it is given, how its shared memory
// is laid out, and what its warps know.
#pragma once

#include <cuda.h>

#include <cutlass/arch/barrier.h>

#include <algorithm>

#include "cuda/lowbit/end.cuh"
#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda::sm90::lowbit {

struct StreamParams {
  CUtensorMap q;       // [K, N / 2] bytes, in boxes of kDepth rows x kBoxBytes
  CUtensorMap tokens;  // X [M, 2 K] bytes, in boxes of kTokens rows x 128
  const uint32_t* zeros;
  int64_t zeros_stride;  // words
  const uint16_t* scales;
  int64_t scales_stride;  // elements
  int m;
  int n;
  int group;        // rows of a group: 32, or a multiple of kDepth
  int token_tiles;  // tiles of D along M
  Plan plan;
  int stages;  // of the ring
  LowbitEnd end;
  float* partials;  // [slices, tiles that are cut, tokens of a tile, channels of a tile]
};

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;

inline constexpr int kSteps = kDepth / 16;

// A place in a ring.
struct Cursor {
  int stage = 0, phase = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// What a block with tiles of kTokens tokens is: its tile, its threads, its shared memory.
template <int kTokens_>
struct WordsBlock {
  static constexpr int kTokens = kTokens_;
  static constexpr int kPairs = lane_pairs(kTokens), kChannels = tile_channels(kTokens);
  static constexpr int kConsumers = 32 * kWarps;  // threads that multiply
  static constexpr int kLive = live_blocks(kTokens);
  // And a warpgroup of which a thread loads, and which leaves its registers to the others.
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kLoaderRegisters = kLive == 2 ? 32 : 40;
  static constexpr int kRegisters = kLive == 2 ? 104 : 232;

  // A stage's words come in boxes of at most 128 bytes of each row, and all tokens after them.
  static constexpr int kRowBytes = kChannels / 2, kBoxBytes = std::min(kRowBytes, 128);
  static constexpr int kWordBytes = kDepth * kRowBytes;
  static constexpr int kStageBytes = kWordBytes + kTokens * 128;
  // The ring, the barriers, the groups of every stage.
  static constexpr int kMaxStages = 24;
  struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
  };
  struct Group {
    uint16_t scales[kChannels];
    uint32_t zeros[kChannels / 8];
  };

  static constexpr int shared_bytes(int stages, int groups) {
    return stages * (kStageBytes + groups * static_cast<int>(sizeof(Group))) +
           static_cast<int>(sizeof(Barriers));
  }
  // A ring for `chunks`, within `bytes` of shared memory.
  static constexpr int stages(int chunks, int bytes, int groups) {
    int stages = std::min(kMaxStages, chunks);
    while (stages > 2 && shared_bytes(stages, groups) > bytes) --stages;
    return std::max(stages, 2);
  }
};

// A tile of D. Blocks that run at the same time have tiles near each other: kBand of tokens, and as
// many of channels as it takes.
struct TileOrigin {
  static constexpr int kBand = 16;
  int row, col;  // the first token and channel

  __device__ TileOrigin(int tile, int tiles, int token_tiles, int tokens, int channels) {
    const int channel_tiles = tiles / token_tiles;
    const int band = tile / (kBand * channel_tiles) * kBand;
    const int width = min(kBand, token_tiles - band);
    tile -= band * channel_tiles;
    row = (band + tile % width) * tokens;
    col = tile / width * channels;
  }
  __device__ TileOrigin(const StreamParams& p, int tile, int tokens)
      : TileOrigin(tile, p.plan.tiles, p.token_tiles, tokens, tile_channels(tokens)) {}
};

// A part of the product: a tile, or a slice of one. A block has every gridDim.x-th.
struct WorkTile {
  int tile;
  int first, last;  // its chunks
  int slice;        // -1: it is whole

  __device__ WorkTile(const Plan& plan, int index)
      : tile(index), first(0), last(plan.chunks), slice(-1) {
    if (index < plan.whole) return;
    slice = (index - plan.whole) / plan.cut();
    tile -= slice * plan.cut();
    const int least = plan.chunks / plan.slices, longer = plan.chunks - least * plan.slices;
    first = slice * least + min(slice, longer);
    last = first + least + (slice < longer);
  }
  // Where its sums go among the tiles of p.partials.
  __device__ int partial(const Plan& plan) const { return slice * plan.cut() + tile - plan.whole; }
};

// What the calling warp knows of its work.
template <int kTokens>
struct Worker {
  using Block = WordsBlock<kTokens>;
  const StreamParams& p;
  const uint8_t* ring;
  typename Block::Barriers& barriers;
  const typename Block::Group* all_groups;
  int warp, lane;

  // Of the tile's units of 2 kPairs channels, the lane's.
  __device__ int unit() const { return 8 * warp + lane / 4; }
  __device__ const uint8_t* stage(const Cursor& at) const {
    return ring + at.stage * Block::kStageBytes;
  }
  template <int kGroups>
  __device__ const typename Block::Group* groups(const Cursor& at) const {
    return all_groups + at.stage * kGroups;
  }
  __device__ void wait(const Cursor& at) const {
    Full::wait(&barriers.full[at.stage], at.phase);
    asm volatile("" ::: "memory");  // no read of the stage before
  }
  // Every lane for itself: tools that look for races do not see that lanes of a warp are together.
  __device__ void release(int stage) const { Empty::arrive(&barriers.empty[stage]); }
};

}  // namespace scaled_mm::cuda::sm90::lowbit
