// D = X W + bias for few tokens, W from AWQ's own words: it is never written anywhere.
//
// Channels lie on the M side of the tensor cores' products and tokens on their N side. A block goes
// from piece to piece: a tile of kTokens tokens by 256 channels, or a slice of K of one, whose sums
// awq_join adds up in a fixed order. No bit depends on when a block ran.
//
//   a stage: 64 rows of q, 128 bytes of each (256 channels), kTokens rows of x, 128 bytes of each,
//   both by TMA with its 128-byte swizzle; 256 scales and 32 words of zero points for each group.
//
// Two teams of four warps take stages in turn, a warp 64 channels, a lane one word, eight channels,
// in each row; or all stages, and of each word one half (awq_halves). Lane 4 g + t (g < 8, t < 4)
// reads rows 2t, 2t + 1, 2t + 8 and 2t + 9 of 16, which PRMT regroups so that what LOP3 lifts are
// pairs along K, as tensor cores want them:
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

namespace scaled_mm::cuda::sm90 {

// The bits of floats in T, side by side.
template <class T, int kCount>
__device__ void store_narrow(uint16_t* to, const float (&x)[kCount]) {
  constexpr bool kBfloat16 = std::is_same_v<T, __nv_bfloat16>;
  using Bits = std::conditional_t<kCount == 8, uint4, uint2>;
  uint32_t bits[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) bits[i] = narrow_pair(x[2 * i], x[2 * i + 1], kBfloat16);
  *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(bits);
}

// Stores a lane's sums, which are the part-th of `work`. Sums 0 and 2 are channels 2 j and 2 j + 1
// of token 8 i + 2 t, 1 and 3 of the next one.
template <class T, int kTokens, int kPairs>
__device__ void store_sums(const AwqParams& p, const Work& work, int part,
                           const float (&sums)[kPairs][kTokens / 8][4], int unit, int t) {
  constexpr int kChannels = 2 * kPairs;
  const Place place(p, work.tile, kTokens);
  const int channel = place.col + kChannels * unit;
  if (channel >= p.n) return;
  const bool whole = work.slice < 0;
  float bias[kChannels] = {};
  if (p.bias.data && whole) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) bias[c] = load_float(p.bias, channel + c);
  }
  float* const partial =
      p.partials + int64_t{work.partial(part)} * (kTokens * kAwqChannels) + kChannels * unit;
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 8 * i + 2 * t + e;
      if (place.row + token >= p.m) return;
      float x[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) x[c] = sums[c / 2][i][e + c % 2 * 2];
      if (!whole) {
#pragma unroll
        for (int c = 0; c < kChannels; c += 4) {
          *reinterpret_cast<float4*>(partial + token * kAwqChannels + c) = {x[c], x[c + 1],
                                                                            x[c + 2], x[c + 3]};
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) x[c] += bias[c];
        store_narrow<T>(p.d + int64_t{place.row + token} * p.n + channel, x);
      }
    }
  }
}

template <class T, int kTokens>
__global__ __launch_bounds__(AwqBlock<kTokens>::kThreads, AwqBlock<kTokens>::kLive) void awq_stream(
    const __grid_constant__ AwqParams p) {
  using Block = AwqBlock<kTokens>;
  extern __shared__ __align__(1024) uint8_t ring[];
  auto& barriers =
      *reinterpret_cast<typename Block::Barriers*>(ring + p.stages * Block::kStageBytes);
  auto* const groups = reinterpret_cast<AwqGroup*>(&barriers + 1);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  if (thread == Block::kConsumers) fetch_words<kTokens>(p);
  if (thread == Block::kConsumers + 32) cute::prefetch_tma_descriptor(&p.tokens);
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 2);  // words, and all else
      Empty::init(&barriers.empty[s],
                  (Block::kHalves ? Block::kConsumers : Block::kTeamThreads) / 32);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");

  if (thread >= Block::kConsumers) {
    // --- the loaders ---
    if constexpr (Block::kMovesRegisters) cutlass::arch::warpgroup_reg_dealloc<40>();
    if (thread == Block::kConsumers) {
      load_words<kTokens>(p, ring, barriers);
    } else if (thread == Block::kConsumers + 32) {
      load_others<kTokens>(p, ring, barriers, groups);
    }
  } else {
    // --- a multiplier ---
    if constexpr (Block::kMovesRegisters) cutlass::arch::warpgroup_reg_alloc<232>();
    const int team = warp / 4;
    const Worker<kTokens> on{p, ring, barriers, groups, team, warp % 4, lane};
    Cursor at{0};
    if (!Block::kHalves) at.advance(team, p.stages);
    int before = 0;  // chunks of the pieces before
    int held = -1;   // the stage that was read last
#pragma unroll 1
    for (Work work(p); work.next();) {
      float sums[Block::kPairs][kTokens / 8][4] = {};
      // The team's turn comes with chunks that are `team` more than a multiple of kTurns.
      const int turn =
          Block::kHalves ? 0 : (team + Block::kTurns - before % Block::kTurns) % Block::kTurns;
      const auto all_products = [&](auto groups) {
        if constexpr (Block::kHalves) {
          multiply_async<T, kTokens, groups>(sums, on, work.first + turn, work.last, at);
        } else {
          multiply<T, kTokens, groups>(sums, on, work.first + turn, work.last, at, held);
        }
      };
      if (p.group < kAwqDepth) {
        all_products(std::integral_constant<int, 2>{});
      } else {
        all_products(std::integral_constant<int, 1>{});
      }
      before += work.last - work.first;
      store_sums<T, kTokens>(p, work, Block::kHalves ? 0 : team, sums, on.unit(), lane % 4);
    }
  }
}

// D of the tiles that were cut, from their partial sums, slice by slice and part by part.
template <class T>
__global__ __launch_bounds__(128) void awq_join(const __grid_constant__ AwqParams p,
                                                const int tokens) {
  constexpr int kQuads = kAwqChannels / 4;
  const int cut = static_cast<int>(gridDim.x), index = static_cast<int>(blockIdx.x);
  const Place place(p, p.plan.whole + index, tokens);
  const int token = static_cast<int>(blockIdx.y * (blockDim.x / kQuads) + threadIdx.x / kQuads);
  const int channel = static_cast<int>(threadIdx.x) % kQuads * 4;
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (place.row + token >= p.m || place.col + channel >= p.n) return;
  const float* from = p.partials + (int64_t{index} * tokens + token) * kAwqChannels + channel;
  float4 sum = {};
#pragma unroll 8
  for (int i = 0; i < p.plan.slices * p.plan.parts; ++i) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    from += int64_t{cut} * tokens * kAwqChannels;
  }
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  if (p.bias.data) {
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] += load_float(p.bias, place.col + channel + c);
  }
  store_narrow<T>(p.d + int64_t{place.row + token} * p.n + place.col + channel, x);
}

}  // namespace scaled_mm::cuda::sm90
