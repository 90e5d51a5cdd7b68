// The loads of the kernel for int8 activations and weights of 4 bits: one thread feeds the ring,
// three warps arrange the tokens that have come.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/common/launch.cuh"
#include "cuda/sm90/bulk_copy.cuh"
#include "cuda/sm90/w4a8_block.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

// f(place, chunk) for all chunks that the block multiplies, in their order.
template <class Block, class F>
__device__ void each_chunk(const Params& p, const F& f) {
  Share share(p.pieces.plan);
#pragma unroll 1
  while (share.next()) {
    const TileOrigin place = place_of<Block>(p, share.tile);
    const Chunks chunks = chunks_of(p.pieces, share.first, share.last);
#pragma unroll 1
    for (int chunk = chunks.first; chunk < chunks.last; ++chunk) f(place, chunk);
  }
}

// The units of a chunk of a tile.
template <class Block>
struct ChunkUnits {
  const uint8_t* from;
  int bytes;
  __device__ ChunkUnits(const Params& p, const TileOrigin& place, int chunk) {
    const int unit_size = unit_bytes(4, ZeroPoint::integer, p.sets);
    const int panel = place.col / kUnitChannels;
    bytes = min(Block::kPanels, p.panels - panel) * unit_size;
    from = p.units + (int64_t{chunk} * p.panels + panel) * unit_size;
  }
};

// Sends for the first words, to have them in L2. The kernel before may still write them: L2 is
// where that is seen.
template <class Block>
__device__ void fetch_words(const Params& p) {
  constexpr int kAhead = 4;  // chunks
  Share share(p.pieces.plan);
  if (!share.next()) return;
  const TileOrigin place = place_of<Block>(p, share.tile);
  const Chunks chunks = chunks_of(p.pieces, share.first, share.last);
#pragma unroll 1
  for (int chunk = chunks.first; chunk < min(chunks.first + kAhead, chunks.last); ++chunk) {
    const ChunkUnits<Block> words(p, place, chunk);
    bulk_prefetch(words.from, words.bytes);
  }
}

template <class Block>
__device__ void load_stages(const Params& p, uint8_t* tokens, uint8_t* words,
                            typename Block::Fixed& fixed) {
  const auto once = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  const uint64_t hint = p.token_tiles == 1 ? once : often;
  Cursor at{.phase = 1};
  each_chunk<Block>(p, [&](const TileOrigin& place, int chunk) {
    const ChunkUnits<Block> of_chunk(p, place, chunk);
    uint64_t* const full = &fixed.full[at.stage];
    Empty::wait(&fixed.empty[at.stage], at.phase);
    Full::arrive_and_expect_tx(full, Block::kTokenBytes + of_chunk.bytes);
    bulk_copy(words + at.stage * Block::kWordBytes, of_chunk.from, of_chunk.bytes, full, hint);
    cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often, tokens + at.stage * Block::kTokenBytes,
                                 chunk * kUnitRows, place.row);
    at.advance(p.stages);
  });
}

// Every 16 bytes of the tokens for themselves: where TMA's swizzle has put them does not matter.
template <class Block>
__device__ void arrange_stages(const Params& p, uint8_t* tokens, typename Block::Fixed& fixed,
                               int thread) {
  Cursor at;
  each_chunk<Block>(p, [&](const TileOrigin&, int) {
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
