// D = X W + bias for few tokens, W from AWQ's own words: it is never written anywhere.
//
// Channels lie on the M side of mma.m16n8k16 and tokens on its N side. A block owns kTokens tokens
// of 256 channels, over one slice of K; the blocks of a cluster own the slices of one tile, and sum
// what each found in a fixed order: no bit depends on when a block ran.
//
//   a stage: 64 rows of q, 128 bytes of each (256 channels), kTokens rows of x, 128 bytes of each,
//   both by TMA with its 128-byte swizzle; 256 scales and 32 words of zero points for each group.
//
// Teams of four warps take stages in turn, or halves of them; a warp has 64 channels, a lane one
// word, eight channels, in each row. Lane 4 g + t (g < 8, t < 4) reads word g of rows 2t, 2t + 1,
// 2t + 8 and 2t + 9 of 16, which PRMT regroups so that what LOP3 lifts are pairs along K, as mma
// wants them:
//
//   row 2t     7 5 3 1 | 6 4 2 0           PRMT 0x5410:  row 2t+1: 6 4 2 0 | row 2t: 6 4 2 0
//   row 2t+1   7 5 3 1 | 6 4 2 0                0x7632:            7 5 3 1 |         7 5 3 1
//
//   nibble j of the first: channel 2 j, row g of mma j;  of the second: channel 2 j + 1, row g + 8
#pragma once

#include <cutlass/arch/barrier.h>

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "cuda/awq.h"
#include "cuda/convert.cuh"
#include "cuda/floats.cuh"
#include "cuda/sm90/block.cuh"

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

inline constexpr int kAwqDepth = 64;      // rows of W in a stage
inline constexpr int kAwqChannels = 256;  // of a tile
inline constexpr int kSteps = kAwqDepth / 16;
inline constexpr auto K_MAJOR = cute::SM90::GMMA::Major::K;

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

template <class T>
__device__ void multiply_add(float (&sums)[4], const Pair (&w)[4], const Pair (&x)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x[0]), "r"(x[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x[0]), "r"(x[1]));
  }
}

// 16 rows of K of kTokens tokens as mma takes them, x[i] for tokens 8 i to 8 i + 7. `quarter`: of
// the stage's 64.
template <int kTokens>
__device__ void load_tokens(Pair (&x)[kTokens / 8][2], uint32_t tokens, int quarter, int lane) {
  const uint32_t at = tokens + lane % 8 * 128 + ((2 * quarter + lane / 8 % 2) ^ lane % 8) * 16;
  if constexpr (kTokens == 8) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(x[0][0]), "=r"(x[0][1])
                 : "r"(at));
  } else {
#pragma unroll
    for (int i = 0; i < kTokens / 8; i += 2) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i + 1][0]), "=r"(x[i + 1][1])
                   : "r"(at + 1024 * (i + lane / 16)));
    }
  }
}

__device__ inline float4 load_floats(uint32_t address, uint32_t block) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cute::set_block_rank(address, block))
               : "memory");
  return v;
}

// What a lane needs of a group for its eight channels, two neighbours in a register: what lower()
// takes away, and the scales.
template <class T>
struct LaneGroup {
  Pair base[4], scale[4];

  __device__ void load(const AwqGroup& group, int word) {
    Nibbles<T>::lift(group.zeros[word], base);
#pragma unroll
    for (int j = 0; j < 4; ++j) base[j] = Nibbles<T>::base(base[j], j);
    const uint4 s = *reinterpret_cast<const uint4*>(group.scales + 8 * word);
    scale[0] = s.x, scale[1] = s.y, scale[2] = s.z, scale[3] = s.w;
  }
  // Two rows of channel 2 j + odd.
  __device__ Pair weight(Pair lifted, int odd, int j) const {
    return Pairs<T>::multiply(Nibbles<T>::lower(lifted, Pairs<T>::both(base[j], odd), j),
                              Pairs<T>::both(scale[j], odd));
  }
};

// Where a lane finds its words of a stage: word `word` of rows 2 t and 2 t + 1.
struct LaneWords {
  const uint8_t *even, *odd;

  __device__ LaneWords(const uint8_t* stage, int word, int t)
      : even(stage + 256 * t + (word / 4 ^ 2 * t) * 16 + word % 4 * 4),
        odd(stage + 256 * t + 128 + (word / 4 ^ (2 * t + 1)) * 16 + word % 4 * 4) {}

  // Of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of the stage's step of 16.
  __device__ void load(uint32_t (&rows)[4], int step) const {
    const int at = step * 16 * 128;
    rows[0] = *reinterpret_cast<const uint32_t*>(even + at);
    rows[1] = *reinterpret_cast<const uint32_t*>(odd + at);
    rows[2] = *reinterpret_cast<const uint32_t*>(even + at + 1024);
    rows[3] = *reinterpret_cast<const uint32_t*>(odd + at + 1024);
  }
};

// The weights of 16 rows of channels 2 j and 2 j + 1, j from kFirst on, as (w)gmma takes them.
template <class T, int kFirst, int kPairs>
__device__ void dequantize(Pair (&w)[kPairs][4], const uint32_t (&rows)[4],
                           const LaneGroup<T>& of) {
  Pair lifted[4][4];
  Nibbles<T>::lift(__byte_perm(rows[0], rows[1], 0x5410), lifted[0]);
  Nibbles<T>::lift(__byte_perm(rows[0], rows[1], 0x7632), lifted[1]);
  Nibbles<T>::lift(__byte_perm(rows[2], rows[3], 0x5410), lifted[2]);
  Nibbles<T>::lift(__byte_perm(rows[2], rows[3], 0x7632), lifted[3]);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[j][i] = of.weight(lifted[i][kFirst + j], i % 2, kFirst + j);
  }
}

// A stage's products by mma: 64 channels of the calling warp with kTokens tokens, over 64 rows.
template <class T, int kTokens>
__device__ void multiply_stage(float (&sums)[4][kTokens / 8][4], const uint8_t* stage,
                               const AwqGroup* groups, bool two_groups, int team_warp, int lane) {
  const int word = 8 * team_warp + lane / 4;
  const LaneWords words(stage, word, lane % 4);
  const uint32_t tokens = cute::cast_smem_ptr_to_uint(stage) + AwqBlock<kTokens>::kWordBytes;
  LaneGroup<T> of;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step == 0 || (two_groups && step == kSteps / 2)) of.load(groups[step > 0], word);
    uint32_t rows[4];
    Pair x[kTokens / 8][2], w[4][4];
    words.load(rows, step);
    load_tokens<kTokens>(x, tokens, step, lane);
    dequantize<T, 0>(w, rows, of);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) multiply_add<T>(sums[j][n], w[j], x[n]);
    }
  }
}

template <class T, int kTokens>
struct Wgmma;
template <>
struct Wgmma<__half, 32> : cute::SM90::GMMA::MMA_64x32x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__half, 64> : cute::SM90::GMMA::MMA_64x64x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__half, 128> : cute::SM90::GMMA::MMA_64x128x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__nv_bfloat16, 32> : cute::SM90::GMMA::MMA_64x32x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {
};
template <>
struct Wgmma<__nv_bfloat16, 64> : cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {
};
template <>
struct Wgmma<__nv_bfloat16, 128>
    : cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {};

// 64 channels of a warpgroup, 16 of each warp, with kTokens tokens, over 16 rows; asynchronous: w
// may not change before it is waited for.
template <class T, int kTokens>
__device__ void multiply_add_async(float (&sums)[kTokens / 8][4], const Pair (&w)[4],
                                   uint64_t tokens) {
  float* const d = &sums[0][0];
  [&]<size_t... I>(std::index_sequence<I...>) {
    Wgmma<T, kTokens>::fma(w[0], w[1], w[2], w[3], tokens, d[I]...);
  }(std::make_index_sequence<kTokens / 2>{});
}

template <int kPairs>
__device__ void keep_until_here(Pair (&w)[kPairs][4]) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) cute::warpgroup_fence_operand(w[j][i]);
  }
}

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

// All products of the calling warp's team by mma, every kTeams-th stage.
template <class T, int kTokens>
__device__ void multiply(float (&sums)[4][kTokens / 8][4], const Worker<kTokens>& on) {
  constexpr int kTeams = AwqBlock<kTokens>::kTeams;
  Cursor at{0};
  at.advance(on.team, on.p.stages);
  for (int chunk = on.first + on.team; chunk < on.last; chunk += kTeams) {
    on.wait(at);
    multiply_stage<T, kTokens>(sums, on.stage(at), on.group(at), on.two_groups(), on.team_warp,
                               on.lane);
    on.release(at.stage);
    at.advance(kTeams, on.p.stages);
  }
}

// The same by wgmma, of a lane's channel pairs from kFirst on. Dequantising runs beside it: weights
// go from registers, in two sets, of which one is read while the other is made.
template <class T, int kTokens, int kFirst>
__device__ void multiply_async(float (&sums)[AwqBlock<kTokens>::kPairs][kTokens / 8][4],
                               const Worker<kTokens>& on) {
  using Block = AwqBlock<kTokens>;
  constexpr int kStride = Block::kHalves ? 1 : Block::kTeams;
  const int word = 8 * on.team_warp + on.lane / 4;
  Cursor at{0};
  if (!Block::kHalves) at.advance(on.team, on.p.stages);
  for (int chunk = on.first + (Block::kHalves ? 0 : on.team); chunk < on.last; chunk += kStride) {
    on.wait(at);
    const LaneWords words(on.stage(at), word, on.lane % 4);
    const uint64_t tokens = descriptor(on.stage(at) + Block::kWordBytes);
    LaneGroup<T> of;
    Pair w[2][Block::kPairs][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == 0 || (on.two_groups() && step == kSteps / 2)) {
        of.load(on.group(at)[step > 0], word);
      }
      uint32_t rows[4];
      words.load(rows, step);
      if (step >= 2) {
        cute::warpgroup_wait<1>();  // the set made two steps ago has been read
        keep_until_here(w[step % 2]);
      }
      dequantize<T, kFirst>(w[step % 2], rows, of);
      cute::warpgroup_arrive();
#pragma unroll
      for (int j = 0; j < Block::kPairs; ++j) {
        multiply_add_async<T, kTokens>(sums[j], w[step % 2][j], tokens + 2 * step);  // 32 bytes on
      }
      cute::warpgroup_commit_batch();
    }
    cute::warpgroup_wait<0>();
    keep_until_here(w[0]);
    keep_until_here(w[1]);
    on.release(at.stage);
    at.advance(kStride, on.p.stages);
  }
}

// Leaves a team's sums of channel pairs from `pair` on in their set. Sums 0 and 2 are channels 2 j
// and 2 j + 1 of token 8 i + 2 t, 1 and 3 of the next one.
template <int kTokens, int kPairs>
__device__ void leave_sums(const float (&sums)[kPairs][kTokens / 8][4], uint8_t* ring, int set,
                           int pair, int team_warp, int lane) {
  using Block = AwqBlock<kTokens>;
  float* to = reinterpret_cast<float*>(ring) + set * Block::kSetSums +
              lane % 4 * 2 * Block::kPitch + 8 * (8 * team_warp + lane / 4) + 2 * pair;
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      float* at = to + 8 * i * Block::kPitch + 2 * j;
      *reinterpret_cast<float2*>(at) = {sums[j][i][0], sums[j][i][2]};
      *reinterpret_cast<float2*>(at + Block::kPitch) = {sums[j][i][1], sums[j][i][3]};
    }
  }
}

// Stages [first, last) by two threads: what one has to do for a stage bounds how fast words come.
// This one loads the words.
template <int kTokens>
__device__ void load_words(const AwqParams& p, uint8_t* ring,
                           typename AwqBlock<kTokens>::Barriers& barriers, const Place& place,
                           int first, int last) {
  using Block = AwqBlock<kTokens>;
  const auto once = cute::TMA::CacheHintSm90::EVICT_FIRST;
  const auto often = cute::TMA::CacheHintSm90::EVICT_LAST;
  const auto hint = static_cast<uint64_t>(p.token_tiles == 1 ? once : often);
  int stage = 0, phase = 1;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    Empty::wait(&barriers.empty[stage], phase);
    uint64_t* full = &barriers.full[stage];
    Full::arrive_and_expect_tx(full, Block::kWordBytes);
    cute::SM90_TMA_LOAD_2D::copy(&p.q, full, hint, ring + stage * Block::kStageBytes, place.col / 2,
                                 chunk * kAwqDepth);
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

// And this one tokens, scales and zero points.
template <int kTokens>
__device__ void load_others(const AwqParams& p, uint8_t* ring,
                            typename AwqBlock<kTokens>::Barriers& barriers, AwqGroup* groups,
                            const Place& place, int first, int last) {
  using Block = AwqBlock<kTokens>;
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  // A stage has two groups, or a group has so many stages.
  const int stage_groups = p.group < kAwqDepth ? 2 : 1;
  const int group_stages = p.group < kAwqDepth ? 1 : p.group / kAwqDepth;
  const int channels = min(kAwqChannels, p.n - place.col);  // others are neither read nor stored
  const int bytes = 128 * kTokens + stage_groups * (2 * channels + channels / 2);
  const int64_t group = int64_t{first / group_stages} * stage_groups;
  const uint16_t* scales = p.scales + group * p.scales_stride + place.col;
  const uint32_t* zeros = p.zeros + group * p.zeros_stride + place.col / 8;
  int left = group_stages - first % group_stages;
  int stage = 0, phase = 1;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    Empty::wait(&barriers.empty[stage], phase);
    uint64_t* full = &barriers.full[stage];
    Full::arrive_and_expect_tx(full, bytes);
    cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often,
                                 ring + stage * Block::kStageBytes + Block::kWordBytes, chunk * 128,
                                 place.row);
    AwqGroup* to = groups + stage * stage_groups;
#pragma unroll 1
    for (int i = 0; i < stage_groups; ++i, ++to) {
      cute::SM90_BULK_COPY_G2S::copy(scales + i * p.scales_stride, full, to->scales, 2 * channels);
      cute::SM90_BULK_COPY_G2S::copy(zeros + i * p.zeros_stride, full, to->zeros, channels / 2);
    }
    if (--left == 0) {
      scales += stage_groups * p.scales_stride, zeros += stage_groups * p.zeros_stride;
      left = group_stages;
    }
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

__device__ inline float4 plus(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The sums of a block's sets, left where those of the first are.
template <int kTokens>
__device__ void join_sets(uint8_t* ring, int thread) {
  using Block = AwqBlock<kTokens>;
  auto* const sums = reinterpret_cast<float4*>(ring);
  for (int i = thread; i < Block::kSetSums / 4; i += Block::kConsumers) {
    float4 total = sums[i];
#pragma unroll
    for (int set = 1; set < Block::kSets; ++set) {
      total = plus(total, sums[i + set * (Block::kSetSums / 4)]);
    }
    sums[i] = total;
  }
}

// The calling block's share of the tile, once the cluster's sums are there: four channels of a
// token at a time.
template <class T, int kTokens>
__device__ void store_share(const AwqParams& p, const uint8_t* ring, int thread) {
  using Block = AwqBlock<kTokens>;
  const Place place(p, kTokens);
  const uint32_t sums = cute::cast_smem_ptr_to_uint(ring);
  constexpr bool kBfloat16 = std::is_same_v<T, __nv_bfloat16>;
  constexpr int kQuads = kAwqChannels / 4;
  const int items = min(kTokens, p.m - place.row) * kQuads;
  const int share = (items + place.split - 1) / place.split;
  const int end = min(items, (place.slice + 1) * share);
  for (int i = place.slice * share + thread; i < end; i += Block::kConsumers) {
    const int token = i / kQuads, channel = i % kQuads * 4;
    if (place.col + channel >= p.n) continue;
    const uint32_t at = sums + 4 * (token * Block::kPitch + channel);
    float4 part[kMaxAwqSplit];
#pragma unroll
    for (int block = 0; block < kMaxAwqSplit; ++block) {
      if (block < place.split) part[block] = load_floats(at, block);
    }
    float4 sum = part[0];
#pragma unroll
    for (int block = 1; block < kMaxAwqSplit; ++block) {
      if (block < place.split) sum = plus(sum, part[block]);
    }
    float total[4] = {sum.x, sum.y, sum.z, sum.w};
    if (p.bias.data) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[e] += load_float(p.bias, place.col + channel + e);
    }
    *reinterpret_cast<uint2*>(p.d + int64_t{place.row + token} * p.n + place.col + channel) = {
        narrow_pair(total[0], total[1], kBfloat16), narrow_pair(total[2], total[3], kBfloat16)};
  }
}

template <class T, int kTokens>
__global__ __launch_bounds__(AwqBlock<kTokens>::kThreads,
                             1) void awq_stream(const __grid_constant__ AwqParams p) {
  using Block = AwqBlock<kTokens>;
  extern __shared__ __align__(1024) uint8_t ring[];
  auto& barriers = *reinterpret_cast<typename Block::Barriers*>(ring + Block::ring_bytes(p.stages));
  auto* const groups = reinterpret_cast<AwqGroup*>(&barriers + 1);
  const Place place(p, kTokens);
  const int first = static_cast<int>(int64_t{p.chunks} * place.slice / place.split);
  const int last = static_cast<int>(int64_t{p.chunks} * (place.slice + 1) / place.split);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 2);  // words, and all else
      Empty::init(&barriers.empty[s], Block::kTeamWarps * (Block::kHalves ? Block::kTeams : 1));
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");

  if (warp >= Block::kConsumers / 32) {
    // --- the loaders ---
    if constexpr (Block::kMovesRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (thread == Block::kConsumers) {
      load_words<kTokens>(p, ring, barriers, place, first, last);
    } else if (thread == Block::kConsumers + 32) {
      load_others<kTokens>(p, ring, barriers, groups, place, first, last);
    }
    cluster_sync();  // the sums are there
    cluster_sync();  // and stay until all have read them
  } else {
    // --- a multiplier ---
    if constexpr (Block::kMovesRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    const int team = warp / Block::kTeamWarps, team_warp = warp % Block::kTeamWarps;
    const Worker<kTokens> on{p, ring, barriers, groups, first, last, team, team_warp, lane};
    const auto all_have_done = [] { cutlass::arch::NamedBarrier::sync(Block::kConsumers, 1); };
    float sums[Block::kPairs][kTokens / 8][4] = {};
    if constexpr (!Block::kByWgmma) {
      multiply<T, kTokens>(sums, on);
    } else if (Block::kHalves && team == 1) {
      multiply_async<T, kTokens, 4 - Block::kPairs>(sums, on);
    } else {
      multiply_async<T, kTokens, 0>(sums, on);
    }
    all_have_done();  // with the ring
    leave_sums<kTokens>(sums, ring, Block::kHalves ? 0 : team, Block::kHalves ? 2 * team : 0,
                        team_warp, lane);
    if constexpr (Block::kSets > 1) {
      all_have_done();
      join_sets<kTokens>(ring, thread);
    }
    cluster_sync();
    store_share<T, kTokens>(p, ring, thread);
    cluster_sync();
  }
}

}  // namespace scaled_mm::cuda::sm90
