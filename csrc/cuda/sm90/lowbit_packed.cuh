// D = f(X W + bias + residual), W packed in units (docs/lowbit.md, "The packed form").
//
// As in lowbit_stream.cuh channels lie on the M side of the tensor cores' products, tokens on their
// N side, and one thread feeds a ring of stages; a stage is kUnitRows rows of K, or half of them.
// Units hold words in the order of the registers that multiply: a lane loads four steps of 16 rows
// at once. Blocks have equal shares of all units, or clusters have a tile each (PackedPlan). No bit
// depends on when a block ran.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/common/formats.cuh"
#include "cuda/sm90/lowbit_packed_load.cuh"
#include "cuda/sm90/lowbit_packed_multiply.cuh"
#include "cuda/sm90/lowbit_store.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// The first channel and token that a lane has sums of: of panel j the 64 j-th channel from there
// and the next, of sums[.][i] the tokens 8 i and 8 i + 1 from there.
template <class Block>
struct LaneSums {
  int channel, token;
  __device__ LaneSums() {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    channel = thread / 128 * Block::kPanels * kUnitChannels + thread / 32 % 4 * 16 + lane / 4 * 2;
    token = lane % 4 * 2;
  }
  // Calls f(token, channel, of that channel, of the next one).
  template <class Sums, class F>
  __device__ void each(Sums& sums, const F& f) const {
#pragma unroll
    for (int j = 0; j < Block::kPanels; ++j) {
#pragma unroll
      for (int i = 0; i < Block::kTokens / 8; ++i) {
        f(token + 8 * i, channel + j * kUnitChannels, sums[j][i][0], sums[j][i][2]);
        f(token + 8 * i + 1, channel + j * kUnitChannels, sums[j][i][1], sums[j][i][3]);
      }
    }
  }
};

// D's rows [row, last) and channels [col, n) from a tile's sums. What is not plain goes through the
// first registers, some at a time: code for every one of them would be large.
template <class T, class Block>
__device__ void end_tile(const LowbitEnd& end, typename PackedMultiplier<T, Block>::Sums& sums,
                         int row, int last, int col, int n, int expert = 0) {
  constexpr int kPanelSums = Block::kTokens / 2, kCount = Block::kPanels * kPanelSums;
  constexpr int kMost = 32 / Block::kPanels, kAtOnce = kPanelSums < kMost ? kPanelSums : kMost;
  static_assert(kPanelSums % kAtOnce == 0 && sizeof(sums) == 4 * kCount);
  const LaneSums<Block> lane;
  row += lane.token, col += lane.channel;
#pragma unroll
  for (int j = 0; j < Block::kPanels; ++j) {
    const int channel = col + j * kUnitChannels;
    float bias[2];
    load_bias(end, channel, bias, expert);
    for (auto& of_tokens : sums[j]) {
      of_tokens[0] += bias[0], of_tokens[1] += bias[0];
      of_tokens[2] += bias[1], of_tokens[3] += bias[1];
    }
  }
  if (end.is_plain()) {
    const int64_t ldd = end.ldd;
    uint16_t* to = end.d + row * ldd + col;
    for (int i = 0; i < Block::kTokens / 8; ++i, to += 8 * ldd) {
#pragma unroll
      for (int j = 0; j < Block::kPanels; ++j) {
        const auto& x = sums[j][i];
        uint16_t* const at = to + j * kUnitChannels;
        const int there = col + j * kUnitChannels < n ? last : 0;
        if (row + 8 * i < there) store_narrow<DTypeOf<T>::value>(at, {x[0], x[2]});
        if (row + 8 * i + 1 < there) store_narrow<DTypeOf<T>::value>(at + ldd, {x[1], x[3]});
      }
    }
    return;
  }
  auto& all = reinterpret_cast<float (&)[kCount]>(sums);
#pragma unroll 1
  for (int done = 0; done < kCount; done += kAtOnce) {
    float now[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) now[i] = all[i];
#pragma unroll
    for (int i = 0; i < kCount - kAtOnce; ++i) all[i] = all[i + kAtOnce];
    const int token = row + done % kPanelSums * 2,
              channel = col + done / kPanelSums * kUnitChannels;
    const int there = channel < n ? last : 0;
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 4) {
        if (token + 2 * i < there) f(token + 2 * i, channel, now[i], now[i + 2]);
        if (token + 2 * i + 1 < there) f(token + 2 * i + 1, channel, now[i + 1], now[i + 3]);
      }
    };
    if (end.residual.data) {
      each([&](int token, int channel, float& x, float& y) {
        float both[2] = {x, y};
        add_residual<DTypeOf<T>::value>(end, token, channel, both);
        x = both[0], y = both[1];
      });
    }
    activate_sums(now, end);
    store_pairs<T>(end, each);
  }
}

// Of a part to memory, of a whole tile to D.
template <class T, class Block>
__device__ void store_share(const PackedParams& p, const Share& share,
                            typename PackedMultiplier<T, Block>::Sums& sums) {
  const TileOrigin place = place_of<Block>(p, share.tile);
  if (!share.is_part()) return end_tile<T, Block>(p.end, sums, place.row, p.m, place.col, p.n);
  const int64_t slot = p.plan.slot(static_cast<int>(blockIdx.x), share.tile);
  float* const partial = p.partials + slot * (Block::kTokens * Block::kChannels);
  LaneSums<Block>().each(sums, [&](int token, int channel, float x, float y) {
    if (place.row + token >= p.m) return;
    *reinterpret_cast<float2*>(partial + token * Block::kChannels + channel) = {x, y};
  });
}

// Adds up the slices' sums of a tile through the cluster's shared memory, each block for its share
// of the tokens, in the order of the slices.
template <class T, class Block>
__device__ void reduce_cluster(const PackedParams& p, const Share& share,
                               const typename PackedMultiplier<T, Block>::Sums& sums,
                               float* exchange) {
  const TileOrigin place = place_of<Block>(p, share.tile);
  const int tokens = min(Block::kTokens, p.m - place.row), slices = p.plan.slices;
  asm volatile("bar.sync 1, %0;" ::"n"(Block::kConsumers) : "memory");  // the ring is free
  LaneSums<Block>().each(sums, [&](int token, int channel, float x, float y) {
    if (token >= tokens) return;
    *reinterpret_cast<float2*>(exchange + token * Block::kSumsRow + channel) = {x, y};
  });
  cluster_sync();
  constexpr int kQuads = Block::kChannels / 4;
  const int rank = static_cast<int>(blockIdx.x) % slices;
  const int first = tokens * rank / slices, last = tokens * (rank + 1) / slices;
  const uint32_t base = cute::cast_smem_ptr_to_uint(exchange);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < (last - first) * kQuads; i += Block::kConsumers) {
    const int token = first + i / kQuads, channel = i % kQuads * 4;
    if (place.col + channel >= p.n) continue;
    float4 sum = {};
#pragma unroll 4
    for (int slice = 0; slice < slices; ++slice) {
      const auto x = load_remote<float4>(base + 4 * (token * Block::kSumsRow + channel), slice);
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    store_quad<T>(p.end, place.row + token, place.col + channel, sum);
  }
  cluster_sync();  // nobody leaves while others read what it has
}

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads, Block::kLive) void stream_packed(
    const __grid_constant__ PackedParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const words = shared + p.stages * Block::kTokenBytes;
  auto& barriers =
      *reinterpret_cast<typename Block::Barriers*>(words + p.stages * Block::kWordBytes);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);

  if (thread == Block::kConsumers) cute::prefetch_tma_descriptor(&p.tokens);
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 1);
      Empty::init(&barriers.empty[s], Block::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  launch_dependents();

  if (warp >= Block::kConsumers / 32) {
    // --- the loader ---
    cutlass::arch::warpgroup_reg_dealloc<Block::kLoaderRegisters>();
    if (warp > Block::kConsumers / 32 || !cute::elect_one_sync()) return;
    Loader<Block>(p, shared, words, barriers).run();
  } else {
    // --- a multiplier ---
    cutlass::arch::warpgroup_reg_alloc<Block::kRegisters>();
    wait_for_dependencies();
    PackedMultiplier<T, Block> multiplier(p, shared, words, barriers);
    Share share(p.plan);
#pragma unroll 1
    while (share.next()) {
      typename PackedMultiplier<T, Block>::Sums sums = {};
      multiplier.run(sums, share.first, share.last);
      if (p.plan.slices > 1) {
        reduce_cluster<T, Block>(p, share, sums, reinterpret_cast<float*>(shared));
      } else {
        store_share<T, Block>(p, share, sums);
      }
      __syncwarp();  // else ptxas takes lanes to be apart, and warps yield in the loop ahead
    }
  }
}

// D of the tiles that were cut, from the sums of their parts, in the order of K.
template <class T>
__global__ __launch_bounds__(128) void reduce_shares(const __grid_constant__ PackedParams p,
                                                     const int tokens, const int channels) {
  const PackedPlan& plan = p.plan;
  const int cut = static_cast<int>(blockIdx.x), tile = plan.whole + cut, quads = channels / 4;
  const TileOrigin place(tile, plan.tiles, p.token_tiles, tokens, channels);
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int token = thread / quads, channel = thread % quads * 4;
  const int first = plan.owner(cut * plan.chunks), last = plan.owner((cut + 1) * plan.chunks - 1);
  launch_dependents();
  wait_for_dependencies();
  if (first == last || place.row + token >= p.m || place.col + channel >= p.n) return;
  const int64_t slot = int64_t{tokens} * channels;
  const float* from = p.partials + plan.slot(first, tile) * slot + token * channels + channel;
  float4 sum = {};
#pragma unroll 4
  for (int i = first; i <= last; ++i) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    from += slot;
  }
  store_quad<T>(p.end, place.row + token, place.col + channel, sum);
}

}  // namespace scaled_mm::cuda::sm90::lowbit
