// A block of the streaming int4 kernel (awq_stream.cuh): what it is given, how its shared memory is
// laid out, and what its warps know.
#pragma once

#include <cuda.h>

#include <cutlass/arch/barrier.h>

#include <algorithm>

#include "awq_problem.h"
#include "cuda/awq_config.h"

namespace scaled_mm::cuda::sm90 {

struct AwqParams {
  CUtensorMap q;       // [K, N / 2] bytes, in boxes of kAwqDepth rows x 128
  CUtensorMap tokens;  // X [M, 2 K] bytes, in boxes of kTokens rows x 128
  const uint32_t* zeros;
  int64_t zeros_stride;  // words
  const uint16_t* scales;
  int64_t scales_stride;  // elements
  int m;
  int n;
  int group;        // rows of a group: 32, or a multiple of kAwqDepth
  int token_tiles;  // tiles of D along M
  AwqPlan plan;
  int stages;       // of the ring
  Vector bias;      // of D's dtype or float32
  uint16_t* d;      // [M, N]
  float* partials;  // [slices, parts, tiles that are cut, tokens of a tile, kAwqChannels]
};

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;

inline constexpr int kSteps = kAwqDepth / 16;

struct AwqGroup {  // the channels of a tile
  uint16_t scales[kAwqChannels];
  uint32_t zeros[kAwqChannels / 8];
};

// A team that has half of the channels is a warpgroup and multiplies by wgmma, others by mma.
template <int kTokens_>
struct AwqBlock {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kHalves = awq_halves(kTokens);
  static constexpr int kTeams = kAwqTeams, kTeamThreads = 128;
  static constexpr int kTurns = awq_parts(kTokens);  // until a stage is the same team's again
  static constexpr int kPairs = kHalves ? 2 : 4;     // of channels, that a lane has
  static constexpr int kConsumers = kTeams * kTeamThreads;  // threads that multiply
  static constexpr int kLive = awq_live(kTokens);
  // And two warps that load; or a warpgroup, which leaves its registers to the sums.
  static constexpr bool kMovesRegisters = kTokens == 128;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? 128 : 64);
  static constexpr int kWordBytes = kAwqDepth * 128;
  static constexpr int kStageBytes = kWordBytes + kTokens * 128;
  // The ring, the barriers, the groups of every stage.
  static constexpr int kMaxStages = 24;
  struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
  };

  static constexpr int shared_bytes(int stages, int groups) {
    return stages * (kStageBytes + groups * static_cast<int>(sizeof(AwqGroup))) +
           static_cast<int>(sizeof(Barriers));
  }
  // A ring for `chunks`, within `bytes` of shared memory. A stage is always the same team's: were
  // the turns to shift, a team a whole ring ahead of another would take the other's stage, still
  // on its way, for its own.
  static constexpr int stages(int chunks, int bytes, int groups) {
    const auto rounded = [](int stages) { return stages / kTurns * kTurns; };
    int stages = rounded(std::min(kMaxStages, chunks + kTurns - 1));
    while (stages > 2 * kTurns && shared_bytes(stages, groups) > bytes) stages -= kTurns;
    return std::max(stages, 2 * kTurns);
  }
};

// A tile of D. Blocks that run at the same time have tiles near each other: kBand of tokens, and as
// many of channels as it takes.
struct Place {
  static constexpr int kBand = 16;
  int row, col;  // the first token and channel

  __device__ Place(const AwqParams& p, int tile, int tokens) {
    const int channel_tiles = p.plan.tiles / p.token_tiles;
    const int band = tile / (kBand * channel_tiles) * kBand;
    const int width = min(kBand, p.token_tiles - band);
    tile -= band * channel_tiles;
    row = (band + tile % width) * tokens;
    col = tile / width * kAwqChannels;
  }
};

// What the calling block does, piece after piece: for (Work work(p); work.next();)
class Work {
 public:
  int tile;
  int first, last;  // its chunks
  int slice;        // -1: it is whole

  __device__ explicit Work(const AwqParams& p) : plan_(p.plan), piece_(blockIdx.x) {}

  __device__ bool next() {
    tile = piece_, slice = -1, first = 0, last = plan_.chunks;
    const int left = piece_ - plan_.whole, cut = plan_.tiles - plan_.whole;
    piece_ += gridDim.x;
    if (left < 0) return true;
    if (left >= cut * plan_.slices) return false;
    slice = left / cut;
    tile = plan_.whole + left - slice * cut;
    const int least = plan_.chunks / plan_.slices, longer = plan_.chunks - least * plan_.slices;
    first = slice * least + min(slice, longer);
    last = first + least + (slice < longer);
    return true;
  }
  // Where a part's sums go among the tiles of p.partials.
  __device__ int partial(int part) const {
    return (slice * plan_.parts + part) * (plan_.tiles - plan_.whole) + tile - plan_.whole;
  }

 private:
  const AwqPlan& plan_;
  int piece_;
};

// A place in the ring.
struct Cursor {
  int stage, phase = 0;
  __device__ void advance(int by, int stages) {
    stage += by;
    if (stage >= stages) stage -= stages, phase ^= 1;
  }
};

// What the calling warp knows of its work.
template <int kTokens>
struct Worker {
  const AwqParams& p;
  const uint8_t* ring;
  typename AwqBlock<kTokens>::Barriers& barriers;
  const AwqGroup* all_groups;
  int team, team_warp, lane;

  // Of the tile's units of 2 kPairs channels, the lane's.
  __device__ int unit() const {
    return (AwqBlock<kTokens>::kHalves ? 32 * team : 0) + 8 * team_warp + lane / 4;
  }
  __device__ const uint8_t* stage(const Cursor& at) const {
    return ring + at.stage * AwqBlock<kTokens>::kStageBytes;
  }
  template <int kGroups>
  __device__ const AwqGroup* groups(const Cursor& at) const {
    return all_groups + at.stage * kGroups;
  }
  __device__ void wait(const Cursor& at) const {
    Full::wait(&barriers.full[at.stage], at.phase);
    asm volatile("" ::: "memory");  // no read of the stage before
  }
  __device__ void release(int stage) const {
    __syncwarp();
    if (lane == 0) Empty::arrive(&barriers.empty[stage]);
  }
};

}  // namespace scaled_mm::cuda::sm90
