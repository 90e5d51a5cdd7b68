// The streaming int4 kernel's loads: two threads feed the ring, because what one has to do for a
// stage bounds how fast words come. Stages [first, last).
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/sm90/awq_block.cuh"

namespace scaled_mm::cuda::sm90 {

// Sends for the first words, to have them in L2. The kernel before may still write them: L2 is
// where that is seen.
template <int kTokens>
__device__ void fetch_words(const AwqParams& p) {
  constexpr int kAhead = 4;  // stages
  Work work(p);
  if (!work.next()) return;
  const Place place(p, work.tile, kTokens);
  for (int chunk = work.first; chunk < min(work.first + kAhead, work.last); ++chunk) {
    cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&p.q, place.col / 2, chunk * kAwqDepth);
  }
}

// The words.
template <int kTokens>
__device__ void load_words(const AwqParams& p, uint8_t* ring,
                           typename AwqBlock<kTokens>::Barriers& barriers) {
  using Block = AwqBlock<kTokens>;
  const auto once = cute::TMA::CacheHintSm90::EVICT_FIRST;
  const auto often = cute::TMA::CacheHintSm90::EVICT_LAST;
  const auto hint = static_cast<uint64_t>(p.token_tiles == 1 ? once : often);
  Cursor at{0, 1};
#pragma unroll 1
  for (Work work(p); work.next();) {
    const Place place(p, work.tile, kTokens);
#pragma unroll 1
    for (int chunk = work.first; chunk < work.last; ++chunk) {
      Empty::wait(&barriers.empty[at.stage], at.phase);
      uint64_t* full = &barriers.full[at.stage];
      Full::arrive_and_expect_tx(full, Block::kWordBytes);
      cute::SM90_TMA_LOAD_2D::copy(&p.q, full, hint, ring + at.stage * Block::kStageBytes,
                                   place.col / 2, chunk * kAwqDepth);
      at.advance(1, p.stages);
    }
  }
}

// Tokens, scales and zero points.
template <int kTokens>
__device__ void load_others(const AwqParams& p, uint8_t* ring,
                            typename AwqBlock<kTokens>::Barriers& barriers, AwqGroup* groups) {
  using Block = AwqBlock<kTokens>;
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  // A stage has two groups, or a group has so many stages.
  const int stage_groups = p.group < kAwqDepth ? 2 : 1;
  const int group_stages = p.group < kAwqDepth ? 1 : p.group / kAwqDepth;
  Cursor at{0, 1};
#pragma unroll 1
  for (Work work(p); work.next();) {
    const Place place(p, work.tile, kTokens);
    const int64_t first_group = int64_t{work.first / group_stages} * stage_groups;
    const int channels = min(kAwqChannels, p.n - place.col);  // others are neither read nor stored
    const int bytes = 128 * kTokens + stage_groups * (2 * channels + channels / 2);
    const uint16_t* scales = p.scales + first_group * p.scales_stride + place.col;
    const uint32_t* zeros = p.zeros + first_group * p.zeros_stride + place.col / 8;
    int left = group_stages - work.first % group_stages;
#pragma unroll 1
    for (int chunk = work.first; chunk < work.last; ++chunk) {
      Empty::wait(&barriers.empty[at.stage], at.phase);
      uint64_t* full = &barriers.full[at.stage];
      Full::arrive_and_expect_tx(full, bytes);
      cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often,
                                   ring + at.stage * Block::kStageBytes + Block::kWordBytes,
                                   chunk * 128, place.row);
      AwqGroup* to = groups + at.stage * stage_groups;
#pragma unroll 1
      for (int i = 0; i < stage_groups; ++i, ++to) {
        cute::SM90_BULK_COPY_G2S::copy(scales + i * p.scales_stride, full, to->scales,
                                       2 * channels);
        cute::SM90_BULK_COPY_G2S::copy(zeros + i * p.zeros_stride, full, to->zeros, channels / 2);
      }
      if (--left == 0) {
        scales += stage_groups * p.scales_stride, zeros += stage_groups * p.zeros_stride;
        left = group_stages;
      }
      at.advance(1, p.stages);
    }
  }
}

}  // namespace scaled_mm::cuda::sm90
