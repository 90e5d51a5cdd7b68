// D = f(scale_a * sum over groups of s_g t_g + bias ...) of int8 activations and a weight of 4 bits
// in units (docs/numerics.md, section 8; docs/lowbit.md, "The packed form").
//
// As in lowbit_packed.cuh channels lie on the M side of the tensor cores' products, tokens on their
// N side, and one thread feeds a ring of stages, each a chunk of kUnitRows rows. The weight is the
// register operand of int8 wgmma: words become bytes by a few instructions (units_int8.cuh), and
// tokens' columns are brought into the order of the words in shared memory.
//
// Blocks have equal shares of all pieces of tiles (Pieces). Sums of a tile's parts go to memory,
// where another kernel adds them up in the order of K: of each slice for itself, but that those
// from the tile's first on are one. So no bit depends on the shares.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/sm90/w4a8_load.cuh"
#include "cuda/sm90/w4a8_multiply.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

// A warpgroup's sums of a tile, or of a part of its K (`slot`), are in shared memory: D, or the
// part to its place.
template <class Block>
__device__ __forceinline__ void end_part(const Params& p, const typename Block::Fixed& fixed,
                                         int tile, int slot, int panel, int thread) {
  const TileOrigin place = place_of<Block>(p, tile);
  const int tokens = min(Block::kTokens, p.m - place.row), first = panel * kUnitChannels;
  const auto sums = [&](int token, int channel) {
    return *reinterpret_cast<const float4*>(&fixed.sums[token][first + channel]);
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

// A block, whose shared memory begins at a multiple of 1024 bytes.
template <class Block>
__device__ __forceinline__ void multiply_units(const Params& p, uint8_t* shared) {
  uint8_t* const words = shared + p.stages * Block::kTokenBytes;
  auto& fixed = *reinterpret_cast<typename Block::Fixed*>(words + p.stages * Block::kWordBytes);
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
      if (!cute::elect_one_sync()) return;
      fetch_words<Block>(p);
      wait_for_dependencies();
      load_stages<Block>(p, shared, words, fixed);
    } else if (Block::kArranges && !p.arranged) {
      arrange_stages<Block>(p, shared, fixed, thread - Block::kConsumers - 32);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Block::kRegisters>();
    wait_for_dependencies();
    const int panel = warp / 4;
    Multiplier<Block> multiplier(p, shared, words, fixed);
    each_part<Block>(p, [&](int tile, const Chunks& chunks, int slot) {
      begin_part<Block>(p, fixed, tile, panel, thread % 128);
      multiplier.run(chunks.first, chunks.last, slot >= 0);
      meet(panel);
      end_part<Block>(p, fixed, tile, slot, panel, thread % 128);
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
  const auto load = [&](int block, int piece) {
    const int64_t slot = slot_of<kGroups>(plan, block, tile, piece);
    return __ldcg(reinterpret_cast<const uint4*>(p.partials + slot * (tokens * channels) +
                                                 token * channels + channel));
  };
  float sum[4];
  uint4 all = load(first, 0);
  if constexpr (kGroups == Grouping::one) {
#pragma unroll 2
    for (int block = first + 1; block <= last; ++block) {
      const uint4 x = load(block, 0);
      all = {all.x + x.x, all.y + x.y, all.z + x.z, all.w + x.w};
    }
    const int at = place.col + channel, panel = at / kUnitChannels;
    const uint8_t* const unit = p.units + panel * unit_bytes(4, ZeroPoint::integer, p.sets);
    const uint2 scales =
        *reinterpret_cast<const uint2*>(unit + unit_word_bytes(4) + at % kUnitChannels * 2);
    const uint32_t t[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float s = half_of(p.dtype, e < 2 ? scales.x : scales.y, e % 2);
      sum[e] = __fmul_rn(s, __int2float_rn(static_cast<int32_t>(t[e])));
    }
  } else {
    const auto add = [](uint32_t& to, uint32_t x) {
      to = __float_as_uint(__fadd_rn(__uint_as_float(to), __uint_as_float(x)));
    };
#pragma unroll 2
    for (int piece = plan.begin(first + 1) - begin; piece < plan.chunks; ++piece) {
      const uint4 x = load(0, piece);
      add(all.x, x.x), add(all.y, x.y), add(all.z, x.z), add(all.w, x.w);
    }
    sum[0] = __uint_as_float(all.x), sum[1] = __uint_as_float(all.y);
    sum[2] = __uint_as_float(all.z), sum[3] = __uint_as_float(all.w);
  }
  finish_groups(p.end, sum, place.row + token, place.col + channel);
}

}  // namespace scaled_mm::cuda::sm90::k_scales
