// A block of the streaming int4 kernel (awq_stream.cuh): what it is given, how its shared memory is
// laid out, and what its warps know.
#pragma once

#include <cuda.h>

#include <cutlass/arch/barrier.h>

#include <cute/arch/cluster_sm90.hpp>
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
  int chunks;       // of K, kAwqDepth rows each
  int group;        // rows of a group: 32, or a multiple of kAwqDepth
  int token_tiles;  // tiles of D along M
  int stages;       // of the ring
  Vector bias;      // of D's dtype or float32
  uint16_t* d;      // [M, N]
};

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;

inline constexpr int kSteps = kAwqDepth / 16;

struct AwqGroup {  // the channels of a tile
  uint16_t scales[kAwqChannels];
  uint32_t zeros[kAwqChannels / 8];
};

template <int kTokens_>
struct AwqBlock {
  static constexpr int kTokens = kTokens_;
  static constexpr int kTeams = awq_teams(kTokens), kTeamWarps = 4;
  static constexpr bool kByWgmma = kTokens >= 32;  // a team being a warpgroup; else mma
  // Many tokens: both teams take every stage, and half of its channels each; else stages in turn.
  static constexpr bool kHalves = kTokens >= 64;
  static constexpr int kPairs = kHalves ? 2 : 4;  // of a lane's channels, that a team multiplies
  static constexpr int kSets = kHalves ? 1 : kTeams;           // of sums, to be added up
  static constexpr int kConsumers = 32 * kTeams * kTeamWarps;  // threads that multiply
  // And two warps that load; or a warpgroup, which leaves its registers to the sums.
  static constexpr bool kMovesRegisters = kTokens == 128;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? 128 : 64);
  static constexpr int kWordBytes = kAwqDepth * 128;
  static constexpr int kStageBytes = kWordBytes + kTokens * 128;
  // The sums lie where the stages were, set by set, token by token.
  static constexpr int kPitch = kAwqChannels + 4;
  static constexpr int kSetSums = kTokens * kPitch;
  static constexpr int kSumsBytes = kSets * kSetSums * 4;

  // Behind the ring: the barriers, then the groups of every stage.
  static constexpr int kMaxStages = 24;
  struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
  };

  static constexpr int ring_bytes(int stages) {
    const int bytes = stages * kStageBytes;
    return bytes > kSumsBytes ? bytes : (kSumsBytes + 1023) / 1024 * 1024;
  }
  static constexpr int shared_bytes(int stages, int groups) {
    return ring_bytes(stages) + static_cast<int>(sizeof(Barriers)) +
           stages * groups * static_cast<int>(sizeof(AwqGroup));
  }
  static constexpr int kLeastStages = kHalves ? 2 : kTeams;
  // The deepest ring that fits with `bytes` of shared memory.
  static constexpr int stages(int bytes, int groups) {
    int stages = kMaxStages;
    while (stages > kLeastStages && shared_bytes(stages, groups) > bytes) --stages;
    return stages;
  }
};

// Which tile of D a block has, and which slice of K. Made anew where it is needed: between, its
// registers are the sums'.
struct Place {
  int split, slice;
  int row, col;  // the tile's first token and channel

  __device__ Place(const AwqParams& p, int tokens)
      : split(static_cast<int>(cute::cluster_shape().x)),
        slice(static_cast<int>(cute::block_rank_in_cluster())) {
    const int tile = static_cast<int>(blockIdx.x) / split;
    row = tile % p.token_tiles * tokens;
    col = tile / p.token_tiles * kAwqChannels;
  }
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
  const AwqGroup* groups;
  int first, last;  // chunks of K
  int team, team_warp, lane;

  __device__ bool two_groups() const { return p.group < kAwqDepth; }
  __device__ const uint8_t* stage(const Cursor& at) const {
    return ring + at.stage * AwqBlock<kTokens>::kStageBytes;
  }
  __device__ const AwqGroup* group(const Cursor& at) const {
    return groups + at.stage * (two_groups() ? 2 : 1);
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
