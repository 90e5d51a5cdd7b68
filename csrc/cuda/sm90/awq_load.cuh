// The streaming int4 kernel's loads: two threads feed the ring, because what one has to do for a
// stage bounds how fast words come. Stages [first, last).
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/sm90/awq_block.cuh"

namespace scaled_mm::cuda::sm90 {

// The words.
template <int kTokens>
__device__ void load_words(const AwqParams& p, uint8_t* ring,
                           typename AwqBlock<kTokens>::Barriers& barriers, const Place& place,
                           int first, int last) {
  using Block = AwqBlock<kTokens>;
  const auto once = cute::TMA::CacheHintSm90::EVICT_FIRST;
  const auto often = cute::TMA::CacheHintSm90::EVICT_LAST;
  const auto hint = static_cast<uint64_t>(p.token_tiles == 1 ? once : often);
  int stage = 0, phase = 1;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    Empty::wait(&barriers.empty[stage], phase);
    uint64_t* full = &barriers.full[stage];
    Full::arrive_and_expect_tx(full, Block::kWordBytes);
    cute::SM90_TMA_LOAD_2D::copy(&p.q, full, hint, ring + stage * Block::kStageBytes, place.col / 2,
                                 chunk * kAwqDepth);
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

// Tokens, scales and zero points.
template <int kTokens>
__device__ void load_others(const AwqParams& p, uint8_t* ring,
                            typename AwqBlock<kTokens>::Barriers& barriers, AwqGroup* groups,
                            const Place& place, int first, int last) {
  using Block = AwqBlock<kTokens>;
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  // A stage has two groups, or a group has so many stages.
  const int stage_groups = p.group < kAwqDepth ? 2 : 1;
  const int group_stages = p.group < kAwqDepth ? 1 : p.group / kAwqDepth;
  const int channels = min(kAwqChannels, p.n - place.col);  // others are neither read nor stored
  const int bytes = 128 * kTokens + stage_groups * (2 * channels + channels / 2);
  const int64_t group = int64_t{first / group_stages} * stage_groups;
  const uint16_t* scales = p.scales + group * p.scales_stride + place.col;
  const uint32_t* zeros = p.zeros + group * p.zeros_stride + place.col / 8;
  int left = group_stages - first % group_stages;
  int stage = 0, phase = 1;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    Empty::wait(&barriers.empty[stage], phase);
    uint64_t* full = &barriers.full[stage];
    Full::arrive_and_expect_tx(full, bytes);
    cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often,
                                 ring + stage * Block::kStageBytes + Block::kWordBytes, chunk * 128,
                                 place.row);
    AwqGroup* to = groups + stage * stage_groups;
#pragma unroll 1
    for (int i = 0; i < stage_groups; ++i, ++to) {
      cute::SM90_BULK_COPY_G2S::copy(scales + i * p.scales_stride, full, to->scales, 2 * channels);
      cute::SM90_BULK_COPY_G2S::copy(zeros + i * p.zeros_stride, full, to->zeros, channels / 2);
    }
    if (--left == 0) {
      scales += stage_groups * p.scales_stride, zeros += stage_groups * p.zeros_stride;
      left = group_stages;
    }
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

}  // namespace scaled_mm::cuda::sm90
