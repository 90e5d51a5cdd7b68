// The streaming int4 kernel's loads: one thread feeds the ring.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/sm90/lowbit_block.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// A stage's words, box by box: by copy(box, the first byte of a row).
template <int kTokens, class Copy>
__device__ void each_box(const TileOrigin& place, const Copy& copy) {
  using Block = WordsBlock<kTokens>;
#pragma unroll
  for (int box = 0; box < Block::kRowBytes / Block::kBoxBytes; ++box) {
    copy(box, place.col / 2 + box * Block::kBoxBytes);
  }
}

// Sends for the first words, to have them in L2. The kernel before may still write them: L2 is
// where that is seen.
template <int kTokens>
__device__ void fetch_words(const StreamParams& p) {
  constexpr int kAhead = 4;  // stages
  const WorkTile work(p.plan, blockIdx.x);
  const TileOrigin place(p, work.tile, kTokens);
#pragma unroll 1
  for (int chunk = work.first; chunk < min(work.first + kAhead, work.last); ++chunk) {
    each_box<kTokens>(place, [&](int, int byte) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&p.q, byte, chunk * kDepth);
    });
  }
}

// Loads all that the block works on. kGroups: of a stage.
template <int kTokens, int kGroups>
__device__ void load(const StreamParams& p, uint8_t* ring,
                     typename WordsBlock<kTokens>::Barriers& barriers,
                     typename WordsBlock<kTokens>::Group* groups) {
  using Block = WordsBlock<kTokens>;
  const auto once = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  const uint64_t hint = p.token_tiles == 1 ? once : often;
  const int group_stages = kGroups == 1 ? p.group / kDepth : 1;  // that share one
  const int work_tiles = static_cast<int>(p.plan.work_tiles());
  Cursor at{.phase = 1};
#pragma unroll 1
  for (int index = blockIdx.x; index < work_tiles; index += gridDim.x) {
    const WorkTile work(p.plan, index);
    const TileOrigin place(p, work.tile, kTokens);
    const int64_t first_group = int64_t{work.first / group_stages} * kGroups;
    // Other channels are neither read nor stored.
    const int channels = min(Block::kChannels, p.n - place.col);
    const int scale_bytes = 2 * channels, zero_bytes = channels / 2;
    const uint16_t* scales = p.scales + first_group * p.scales_stride + place.col;
    const uint32_t* zeros = p.zeros + first_group * p.zeros_stride + place.col / 8;
    int left = group_stages - work.first % group_stages;
#pragma unroll 1
    for (int chunk = work.first; chunk < work.last; ++chunk) {
      Empty::wait(&barriers.empty[at.stage], at.phase);
      uint64_t* full = &barriers.full[at.stage];
      uint8_t* to = ring + at.stage * Block::kStageBytes;
      auto* group = groups + at.stage * kGroups;
      Full::arrive_and_expect_tx(full, Block::kStageBytes + kGroups * (scale_bytes + zero_bytes));
      each_box<kTokens>(place, [&](int box, int byte) {
        cute::SM90_TMA_LOAD_2D::copy(&p.q, full, hint, to + box * kDepth * Block::kBoxBytes, byte,
                                     chunk * kDepth);
      });
      cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often, to + Block::kWordBytes, chunk * 128,
                                   place.row);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        cute::SM90_BULK_COPY_G2S::copy(scales + i * p.scales_stride, full, group[i].scales,
                                       scale_bytes);
        cute::SM90_BULK_COPY_G2S::copy(zeros + i * p.zeros_stride, full, group[i].zeros,
                                       zero_bytes);
      }
      if (--left == 0) {
        scales += kGroups * p.scales_stride, zeros += kGroups * p.zeros_stride;
        left = group_stages;
      }
      at.advance(p.stages);
    }
  }
}

}  // namespace scaled_mm::cuda::sm90::lowbit
