// D = f(scale_a * sum over groups of s_g t_g + bias ...) of int8 activations and a weight of 4 bits
// in units (docs/numerics.md, section 8; docs/lowbit.md, "The packed form").
//
// As in lowbit_packed.cuh channels lie on the M side of the tensor cores' products, tokens on their
// N side, and one thread feeds a ring of stages, each a chunk of kUnitRows rows. The weight is the
// register operand of int8 wgmma: words become bytes by a few instructions (units_int8.cuh), and
// tokens' columns are brought into the order of the words in shared memory.
//
// Blocks have equal shares of all pieces of tiles, or clusters have a tile each (Pieces). Sums of a
// tile's parts go to memory, where another kernel adds them up, or stay in the shared memory of the
// cluster, which does so: in the order of K, of each slice for itself, but that those from the
// tile's first on are one. So no bit depends on the shares.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/sm90/w4a8_load.cuh"
#include "cuda/sm90/w4a8_multiply.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

// A warpgroup's sums of a tile, or of a part of its K (`slot`), are in shared memory: D, or the
// part to its place.
template <class Block>
__device__ __forceinline__ void end_part(const Params& p, const float* from, int tile, int slot,
                                         int panel, int thread) {
  const TileOrigin place = place_of<Block>(p, tile);
  const int tokens = min(Block::kTokens, p.m - place.row), first = panel * kUnitChannels;
  const auto sums = [&](int token, int channel) {
    return *reinterpret_cast<const float4*>(from + token * Block::kSumsPitch + first + channel);
  };
  if (slot < 0) {
    return finish_tile<kUnitChannels, 128>(p.end, place.row, place.col + first, tokens, thread,
                                           sums);
  }
  constexpr int kQuads = kUnitChannels / 4;
  uint32_t* const to = p.partials + int64_t{slot} * (Block::kTokens * Block::kChannels) + first;
#pragma unroll 4
  for (int i = thread; i < tokens * kQuads; i += 128) {
    const int token = i / kQuads, channel = i % kQuads * 4;
    *reinterpret_cast<float4*>(to + token * Block::kChannels + channel) = sums(token, channel);
  }
}

// Where the sums of a share of pieces from `piece` on are, of a cut tile.
template <Grouping kGroups>
__device__ inline int slot_of(const lowbit::PackedPlan& plan, int block, int tile, int piece) {
  if constexpr (kGroups == Grouping::one) return plan.slot(block, tile);
  return (tile - plan.whole) * plan.chunks + piece;
}

// f(tile, chunks, their slot or -1 where they are not a part) of all that the block multiplies at
// a time.
template <class Block, class F>
__device__ __forceinline__ void each_part(const Params& p, const F& f) {
  Share share(p.pieces.plan);
#pragma unroll 1
  while (share.next()) {
#pragma unroll 1
    for (int piece = share.first; piece < share.last;) {
      // Parts behind the tile's first one: slice by slice.
      const int next = Block::kGroups == Grouping::one || share.first == 0 ? share.last : piece + 1;
      const int slot = slot_of<Block::kGroups>(p.pieces.plan, blockIdx.x, share.tile, piece);
      f(share.tile, chunks_of(p.pieces, piece, next), share.is_part() ? slot : -1);
      piece = next;
    }
  }
}

// The threads of a warpgroup meet.
__device__ inline void meet(int panel) { cutlass::arch::NamedBarrier::sync(128, 1 + panel); }

// The zero points of a tile's tokens; what is in shared memory is done with.
template <class Block>
__device__ void begin_part(const Params& p, typename Block::Fixed& fixed, int tile, int panel,
                           int thread) {
  meet(panel);
  if (p.azp == nullptr) return;
  const TileOrigin place = place_of<Block>(p, tile);
  for (int i = thread; i < Block::kTokens; i += 128) {
    fixed.azp[panel][i] = place.row + i < p.m ? p.azp[(place.row + i) * p.azp_stride] : 0;
  }
  meet(panel);
}

// The sums of four channels, part by part in the order of K.
template <Grouping kGroups>
struct PartsSum {
  // What adds nothing: 0 of integers, -0 of floats.
  __device__ static uint4 nothing() {
    constexpr uint32_t kNothing = kGroups == Grouping::one ? 0 : 0x80000000;
    return {kNothing, kNothing, kNothing, kNothing};
  }
  uint4 all = nothing();
  __device__ void add(const uint4& x) {
    all.x = add(all.x, x.x), all.y = add(all.y, x.y);
    all.z = add(all.z, x.z), all.w = add(all.w, x.w);
  }
  // Of all parts: those over groups.
  __device__ void finish(const Params& p, uint2 scales, float (&sum)[4]) const {
    const uint32_t t[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (kGroups == Grouping::one) {
        const float s = half_of(p.dtype, e < 2 ? scales.x : scales.y, e % 2);
        sum[e] = __fmul_rn(s, __int2float_rn(static_cast<int32_t>(t[e])));
      } else {
        sum[e] = __uint_as_float(t[e]);
      }
    }
  }

 private:
  __device__ static uint32_t add(uint32_t x, uint32_t y) {
    if constexpr (kGroups == Grouping::one) return x + y;
    return __float_as_uint(__fadd_rn(__uint_as_float(x), __uint_as_float(y)));
  }
};
// What that takes where all of K is a group: the scales of four channels.
template <Grouping kGroups>
__device__ inline uint2 scales_of(const Params& p, int channel) {
  if constexpr (kGroups != Grouping::one) return {};
  const uint8_t* const unit =
      p.units + channel / kUnitChannels * unit_bytes(4, ZeroPoint::integer, p.sets);
  return *reinterpret_cast<const uint2*>(unit + unit_word_bytes(4) + channel % kUnitChannels * 2);
}

// A range of the cluster's tile: sums of the first piece of all, and of integers, to one place, of
// every other piece to its own.
template <class Block>
__device__ __forceinline__ void multiply_range(const Params& p, Multiplier<Block>& multiplier,
                                               typename Block::Fixed& fixed, float* sums, int panel,
                                               int thread) {
  const Ranges<Block> ranges(p.pieces.plan);
  const int range = Block::kAlongK ? panel : 0, index = range * ranges.slices + ranges.rank;
  const int first = ranges.first(index), last = first + ranges.count(index);
  const bool together = ranges.parts(index) == 1;
  begin_part<Block>(p, fixed, ranges.tile, panel, thread);
  sums += range * p.parts * Block::kSums;
#pragma unroll 1
  for (int piece = first; piece < last; sums += Block::kSums) {
    const int next = together ? last : piece + 1;
    const Chunks chunks = chunks_of(p.pieces, piece, next);
    multiplier.run(chunks.first, chunks.last, true, sums);
    piece = next;
  }
  const Chunks all = ranges.chunks(p.pieces, range), most = ranges.chunks(p.pieces, 0);
  multiplier.skip(most.last - most.first - (all.last - all.first));
}

// D of the cluster's tile from the sums of all its ranges' parts, in the order of K: each block
// ends some of the tokens, a thread four channels of them.
template <class Block>
__device__ void reduce_ranges(const Params& p, const float* sums) {
  constexpr int kQuads = Block::kChannels / 4, kAtOnce = 8;  // parts on their way
  const Ranges<Block> ranges(p.pieces.plan);
  const TileOrigin place = place_of<Block>(p, ranges.tile);
  const int thread = static_cast<int>(threadIdx.x), channel = thread % kQuads * 4;
  const int tokens = place.col + channel < p.n ? min(Block::kTokens, p.m - place.row) : 0;
  const int last = tokens * (ranges.rank + 1) / ranges.slices;
  int token = tokens * ranges.rank / ranges.slices + thread / kQuads;
  // Before they are needed, also by threads without a token.
  const int there = min(place.col + channel, p.n - 1) / 4 * 4;
  const uint2 scales = scales_of<Block::kGroups>(p, there);
  const GroupsBias bias(p.end, there);
  float scale = groups_scale(p.end, min(place.row + token, p.m - 1));
  cluster_sync();
#pragma unroll 1
  for (; token < last; token += Block::kConsumers / kQuads) {
    uint32_t at = cute::cast_smem_ptr_to_uint(sums) + 4 * (token * Block::kSumsPitch + channel);
    PartsSum<Block::kGroups> sum;
    int part = 0, block = 0, range = 0;
#pragma unroll 1
    while (range < ranges.slices * Block::kRanges) {
      uint4 x[kAtOnce];
#pragma unroll
      for (uint4& of_part : x) {
        of_part = sum.nothing();
        if (part < ranges.parts(range)) {
          of_part = load_remote<uint4>(at + 4 * part * Block::kSums, block);
        }
        if (++part < p.parts) continue;
        part = 0, ++range;
        if (++block == ranges.slices) block = 0, at += 4 * p.parts * Block::kSums;
      }
#pragma unroll
      for (const uint4& of_part : x) sum.add(of_part);
    }
    float all[4];
    sum.finish(p, scales, all);
    finish_groups(p.end, all, place.row + token, place.col + channel, scale, bias);
    if (token + Block::kConsumers / kQuads < last) {
      scale = groups_scale(p.end, place.row + token + Block::kConsumers / kQuads);
    }
  }
  cluster_sync();  // nobody leaves while others read what it has
}

// A block, whose shared memory begins at a multiple of 1024 bytes.
template <class Block>
__device__ __forceinline__ void multiply_units(const Params& p, uint8_t* shared) {
  uint8_t* const words = shared + p.stages * Block::kTokenBytes;
  auto* const sums = reinterpret_cast<float*>(words + p.stages * Block::kWordBytes);
  auto& fixed =
      *reinterpret_cast<typename Block::Fixed*>(sums + Block::kRanges * p.parts * Block::kSums);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);

  if (thread == Block::kConsumers) cute::prefetch_tma_descriptor(&p.tokens);
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&fixed.full[s], 1);
      Empty::init(&fixed.ready[s], Block::kArrangers);
      Empty::init(&fixed.empty[s], Block::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  launch_dependents();

  if (warp >= Block::kConsumers / 32) {
    cutlass::arch::warpgroup_reg_dealloc<Block::kLoaderRegisters>();
    if (warp == Block::kConsumers / 32) {
      if (cute::elect_one_sync()) load_stages<Block>(p, shared, words, fixed);
    } else if (Block::kArranges && !p.arranged) {
      arrange_stages<Block>(p, shared, fixed, thread - Block::kConsumers - 32);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Block::kRegisters>();
    wait_for_dependencies();
    const int panel = warp / 4;
    Multiplier<Block> multiplier(p, shared, words, fixed);
    if constexpr (Block::kAlongK || Block::kGroups == Grouping::one) {
      if (Block::kAlongK || p.pieces.plan.slices > 1) {
        multiply_range<Block>(p, multiplier, fixed, sums, panel, thread % 128);
        return reduce_ranges<Block>(p, sums);
      }
    }
    each_part<Block>(p, [&](int tile, const Chunks& chunks, int slot) {
      begin_part<Block>(p, fixed, tile, panel, thread % 128);
      multiplier.run(chunks.first, chunks.last, slot >= 0, sums);
      meet(panel);
      end_part<Block>(p, sums, tile, slot, panel, thread % 128);
      __syncwarp();  // as in stream_packed
    });
  }
}

// D of the tiles that were cut, from the sums of their parts, in the order of K: four channels of a
// token a thread.
template <Grouping kGroups>
__global__ __launch_bounds__(128) void reduce_parts(const __grid_constant__ Params p,
                                                    const int tokens, const int channels) {
  const lowbit::PackedPlan& plan = p.pieces.plan;
  const int cut = static_cast<int>(blockIdx.x), tile = plan.whole + cut, quads = channels / 4;
  const TileOrigin place(tile, plan.tiles, p.token_tiles, tokens, channels);
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int token = thread / quads, channel = thread % quads * 4;
  launch_dependents();
  wait_for_dependencies();
  const int begin = cut * plan.chunks, first = plan.owner(begin);
  const int last = plan.owner(begin + plan.chunks - 1);
  if (first == last || place.row + token >= p.m || place.col + channel >= p.n) return;
  // The first part is the first share's, the others those of pieces from `second` on, or of blocks.
  constexpr int kAtOnce = 8;  // parts on their way
  const int second = kGroups == Grouping::one ? 1 : plan.begin(first + 1) - begin;
  const int parts = kGroups == Grouping::one ? last - first + 1 : plan.chunks - second + 1;
  const int64_t size = int64_t{tokens} * channels;
  const uint32_t* const from =
      p.partials + slot_of<kGroups>(plan, first, tile, 0) * size + token * channels + channel;
  const uint32_t* const others = from + (second - 1) * size;
  const uint2 scales = scales_of<kGroups>(p, place.col + channel);
  const GroupsBias bias(p.end, place.col + channel);
  const float scale = groups_scale(p.end, place.row + token);
  PartsSum<kGroups> sum;
#pragma unroll 1
  for (int part = 0; part < parts; part += kAtOnce) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = sum.nothing();
      if (part + i < parts) {
        const uint32_t* const at = part + i == 0 ? from : others + (part + i) * size;
        x[i] = __ldcg(reinterpret_cast<const uint4*>(at));
      }
    }
#pragma unroll
    for (const uint4& of_part : x) sum.add(of_part);
  }
  float all[4];
  sum.finish(p, scales, all);
  finish_groups(p.end, all, place.row + token, place.col + channel, scale, bias);
}

}  // namespace scaled_mm::cuda::sm90::k_scales
