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

#include "cuda/floats.cuh"
#include "cuda/sm90/awq_block.cuh"
#include "cuda/sm90/awq_load.cuh"
#include "cuda/sm90/awq_multiply.cuh"
#include "cuda/sm90/block.cuh"

namespace scaled_mm::cuda::sm90 {

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

__device__ inline float4 load_floats(uint32_t address, uint32_t block) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cute::set_block_rank(address, block))
               : "memory");
  return v;
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
