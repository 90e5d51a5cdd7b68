// D = f(X W + bias + residual), W from AWQ's own words: it is never written anywhere.
//
// Channels lie on the M side of the tensor cores' products and tokens on their N side. A block goes
// from work tile to work tile: a tile of kTokens tokens by tile_channels(kTokens) channels, or a
// slice of K of one, whose sums reduce_slices adds up in a fixed order. No bit depends on when a
// block ran.
//
//   a stage: 64 rows of q, half a byte for each channel, kTokens rows of x, 128 bytes of each, both
//   by TMA with its swizzle; the channels' scales and words of zero points for each group.
//
// One thread loads. Two warpgroups take all stages, and half of the channels each; a warp 64, 32 or
// 16 of them, a lane (lane_pairs) all eight of a word, four or two, in each row. Lane 4 g + t (g <
// 8, t < 4) reads rows 2t, 2t + 1, 2t + 8 and 2t + 9 of 16, which PRMT regroups so that what LOP3
// lifts are pairs along K, as tensor cores want them:
//
//   row 2t     7 5 3 1 | 6 4 2 0           PRMT 0x5410:  row 2t+1: 6 4 2 0 | row 2t: 6 4 2 0
//   row 2t+1   7 5 3 1 | 6 4 2 0                0x7632:            7 5 3 1 |         7 5 3 1
//
//   nibble j of the first: channel 2 j, row g of product j;  of the second: channel 2 j + 1, row
//   g + 8. With fewer channels other selectors bring their bytes to the lower end.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/sm90/lowbit_block.cuh"
#include "cuda/sm90/lowbit_load.cuh"
#include "cuda/sm90/lowbit_multiply.cuh"
#include "cuda/sm90/lowbit_store.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// Stores a lane's sums. Sums 0 and 2 are channels 2 j and 2 j + 1 of token 8 i + 2 t, 1 and 3 of
// the next one.
template <class T, int kTokens, int kPairs>
__device__ void store_sums(const StreamParams& p, const WorkTile& work,
                           float (&sums)[kPairs][kTokens / 8][4], int unit, int t) {
  constexpr int kChannels = 2 * kPairs;
  const TileOrigin place(p, work.tile, kTokens);
  const int channel = place.col + kChannels * unit;
  if (channel >= p.n) return;
  // use(the token in its tile, the sum of channel c of it) for each of the lane's tokens.
  const auto each_token = [&](const auto& use) {
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = 8 * i + 2 * t + e;
        if (place.row + token >= p.m) return;
        use(token, [&](int c) -> float& { return sums[c / 2][i][e + c % 2 * 2]; });
      }
    }
  };
  if (work.slice >= 0) {
    constexpr int kTileChannels = tile_channels(kTokens);
    float* const partial =
        p.partials + int64_t{work.partial(p.plan)} * (kTokens * kTileChannels) + kChannels * unit;
    each_token([&](int token, const auto& sum) {
      using Floats = std::conditional_t<kPairs == 1, float2, float4>;
      float x[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) x[c] = sum(c);
#pragma unroll
      for (int c = 0; c < kChannels; c += sizeof(Floats) / 4) {
        *reinterpret_cast<Floats*>(partial + token * kTileChannels + c) =
            *reinterpret_cast<const Floats*>(x + c);
      }
    });
    return;
  }
  float bias[kChannels];
  load_bias(p.end, channel, bias);
  each_token([&](int token, const auto& sum) {
    float x[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) x[c] = sum(c) + bias[c];
    if (p.end.residual.data) add_residual<DTypeOf<T>::value>(p.end, place.row + token, channel, x);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum(c) = x[c];
  });
  activate_sums(reinterpret_cast<float (&)[sizeof(sums) / sizeof(float)]>(sums), p.end);
  each_token([&](int token, const auto& sum) {
    uint16_t* const row = p.end.d + (place.row + token) * p.end.ldd;
    if (p.end.gated) {
      float x[kPairs];
#pragma unroll
      for (int c = 0; c < kPairs; ++c) x[c] = sum(2 * c);
      store_narrow<DTypeOf<T>::value>(row + channel / 2, x);
    } else {
      float x[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) x[c] = sum(c);
      store_narrow<DTypeOf<T>::value>(row + channel, x);
    }
  });
}

template <class T, int kTokens>
__global__ __launch_bounds__(
    WordsBlock<kTokens>::kThreads,
    WordsBlock<kTokens>::kLive) void stream_words(const __grid_constant__ StreamParams p) {
  using Block = WordsBlock<kTokens>;
  extern __shared__ __align__(1024) uint8_t ring[];
  auto& barriers =
      *reinterpret_cast<typename Block::Barriers*>(ring + p.stages * Block::kStageBytes);
  auto* const groups = reinterpret_cast<typename Block::Group*>(&barriers + 1);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  if (thread == Block::kConsumers) {
    fetch_words<kTokens>(p);
    cute::prefetch_tma_descriptor(&p.tokens);
  }
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 1);
      Empty::init(&barriers.empty[s], Block::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  launch_dependents();
  wait_for_dependencies();

  if (thread >= Block::kConsumers) {
    // --- the loader ---
    cutlass::arch::warpgroup_reg_dealloc<Block::kLoaderRegisters>();
    if (__shfl_sync(~0u, warp, 0) > kWarps || !cute::elect_one_sync()) return;
    if (p.group < kDepth) {
      load<kTokens, 2>(p, ring, barriers, groups);
    } else {
      load<kTokens, 1>(p, ring, barriers, groups);
    }
  } else {
    // --- a multiplier ---
    cutlass::arch::warpgroup_reg_alloc<Block::kRegisters>();
    const Worker<kTokens> on{p, ring, barriers, groups, warp, lane};
    const int work_tiles = static_cast<int>(p.plan.work_tiles());
    Cursor at;
#pragma unroll 1
    for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
      const WorkTile work(p.plan, index);
      float sums[Block::kPairs][kTokens / 8][4] = {};
      const auto all_products = [&](auto groups) {
        multiply<T, kTokens, groups>(sums, on, work.first, work.last, at);
      };
      if (p.group < kDepth) {
        all_products(std::integral_constant<int, 2>{});
      } else {
        all_products(std::integral_constant<int, 1>{});
      }
      store_sums<T, kTokens>(p, work, sums, on.unit(), lane % 4);
    }
  }
}

// D of the tiles that were cut, from their partial sums, slice by slice.
template <class T>
__global__ __launch_bounds__(128) void reduce_slices(const __grid_constant__ StreamParams p,
                                                     const int tokens) {
  const int channels = tile_channels(tokens), quads = channels / 4;
  const int cut = static_cast<int>(gridDim.x), index = static_cast<int>(blockIdx.x);
  const TileOrigin place(p, p.plan.whole + index, tokens);
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int token = thread / quads, channel = thread % quads * 4;
  launch_dependents();
  wait_for_dependencies();
  if (place.row + token >= p.m || place.col + channel >= p.n) return;
  const float* from = p.partials + (int64_t{index} * tokens + token) * channels + channel;
  float4 sum = {};
#pragma unroll 8
  for (int i = 0; i < p.plan.slices; ++i) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    from += int64_t{cut} * tokens * channels;
  }
  store_quad<T>(p.end, place.row + token, place.col + channel, sum);
}

}  // namespace scaled_mm::cuda::sm90::lowbit
