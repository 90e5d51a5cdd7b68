// The loads of the kernel for int8 activations and weights of 4 bits: one thread feeds the ring,
// three warps arrange the tokens that have come.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/common/launch.cuh"
#include "cuda/sm90/bulk_copy.cuh"
#include "cuda/sm90/w4a8_block.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

// What a block multiplies, stage by stage: chunks of its tiles. Where warpgroups share out K, a
// stage has a chunk of each.
template <class Block>
class Stages {
 public:
  __device__ explicit Stages(const Params& p) : p_(p) {
    if constexpr (Block::kAlongK) {
      const Ranges<Block> ranges(p.pieces.plan);
#pragma unroll
      for (int i = 0; i < Block::kRanges; ++i) beside_[i] = ranges.chunks(p.pieces, i);
    }
  }

  // f(place, i) for all stages, or the first `most`, in their order. The i-th is chunk i, or the
  // i-th of each warpgroup's, of which the first has none less than the others.
  template <class F>
  __device__ void each(const F& f, int most = INT_MAX) const {
    const auto each_of = [&](int tile, int first, int last) {
      const TileOrigin place = place_of<Block>(p_, tile);
#pragma unroll 1
      for (int i = first; i < last && most > 0; ++i, --most) f(place, i);
    };
    if constexpr (Block::kAlongK) {
      const int tile = static_cast<int>(blockIdx.x) / p_.pieces.plan.slices;
      each_of(tile, 0, beside_[0].last - beside_[0].first);
    } else {
      Share share(p_.pieces.plan);
#pragma unroll 1
      while (most > 0 && share.next()) {
        const Chunks chunks = chunks_of(p_.pieces, share.first, share.last);
        each_of(share.tile, chunks.first, chunks.last);
      }
    }
  }

  // f(part, chunk) for what a stage has.
  template <class F>
  __device__ void each_part(int i, const F& f) const {
    if constexpr (!Block::kAlongK) {
      f(0, i);
    } else {
#pragma unroll
      for (int part = 0; part < Block::kRanges; ++part) {
        const int chunk = beside_[part].first + i;
        if (chunk < beside_[part].last) f(part, chunk);
      }
    }
  }

 private:
  const Params& p_;
  Chunks beside_[Block::kRanges];
};

// The loader. The first words are brought to L2 before it waits: the kernel before may still write
// them, and L2 is where that is seen.
template <class Block>
__device__ void load_stages(const Params& p, uint8_t* tokens, uint8_t* words,
                            typename Block::Fixed& fixed) {
  constexpr int kFetched = 4;  // stages
  const auto once = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  const uint64_t hint = p.token_tiles == 1 ? once : often;
  const Stages<Block> stages(p);
  // f(part, chunk, its words in memory, their bytes) for what a stage has.
  const auto each_part = [&](const TileOrigin& place, int i, const auto& f) {
    const int unit_size = unit_bytes(4, ZeroPoint::integer, p.sets);
    const int panel = place.col / kUnitChannels;
    const int bytes = min(Block::kChannels / kUnitChannels, p.panels - panel) * unit_size;
    stages.each_part(i, [&](int part, int chunk) {
      f(part, chunk, p.units + (int64_t{chunk} * p.panels + panel) * unit_size, bytes);
    });
  };
  stages.each(
      [&](const TileOrigin& place, int i) {
        each_part(place, i,
                  [](int, int, const uint8_t* from, int bytes) { bulk_prefetch(from, bytes); });
      },
      kFetched);
  wait_for_dependencies();
  Cursor at{.phase = 1};
  stages.each([&](const TileOrigin& place, int i) {
    uint64_t* const full = &fixed.full[at.stage];
    Empty::wait(&fixed.empty[at.stage], at.phase);
    int all = 0;
    each_part(place, i, [&](int part, int chunk, const uint8_t* from, int bytes) {
      bulk_copy(words + at.stage * Block::kWordBytes + part * bytes, from, bytes, full, hint);
      cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often,
                                   tokens + at.stage * Block::kTokenBytes + part * Block::kBoxBytes,
                                   chunk * kUnitRows, place.row);
      all += p.box_bytes + bytes;
    });
    Full::arrive_and_expect_tx(full, all);
    at.advance(p.stages);
  });
}

// Every 16 bytes of the tokens for themselves: where TMA's swizzle has put them does not matter.
template <class Block>
__device__ void arrange_stages(const Params& p, uint8_t* tokens, typename Block::Fixed& fixed,
                               int thread) {
  Cursor at;
  Stages<Block>(p).each([&](const TileOrigin&, int) {
    Full::wait(&fixed.full[at.stage], at.phase);
    auto* const pieces = reinterpret_cast<uint4*>(tokens + at.stage * Block::kTokenBytes);
#pragma unroll 2
    for (int i = thread; i < Block::kTokenBytes / 16; i += Block::kArrangers) {
      pieces[i] = arrange_columns(pieces[i]);
    }
    cutlass::arch::fence_view_async_shared();
    Empty::arrive(&fixed.ready[at.stage]);
    at.advance(p.stages);
  });
}

}  // namespace scaled_mm::cuda::sm90::k_scales
