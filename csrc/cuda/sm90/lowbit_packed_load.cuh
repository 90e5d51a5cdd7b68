// The loads of the kernel for packed weights: one thread feeds the ring, a stage's units by
// one copy.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/common/launch.cuh"
#include "cuda/sm90/lowbit_packed_block.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

template <class Block>
class Loader {
 public:
  __device__ Loader(const PackedParams& p, uint8_t* tokens, uint8_t* words,
                    typename Block::Barriers& barriers)
      : p_(p), tokens_(tokens), words_(words), barriers_(barriers) {}

  // Loads all that the block works on. Words do not depend on the kernel before on the stream: as
  // many as the ring holds are sent for before that is waited for (docs/lowbit.md).
  __device__ void run() const {
    int early = 0;
    Share before(p_.plan);
#pragma unroll 1
    while (early < p_.stages && before.next()) {
      const Place place = place_of<Block>(p_, before.tile);
#pragma unroll 1
      for (int chunk = before.first; chunk < before.last && early < p_.stages; ++chunk, ++early) {
        load_words(early, place, chunk);
      }
    }
    wait_for_dependencies();
    Share share(p_.plan);
    Cursor at{.phase = 1};
#pragma unroll 1
    while (share.next()) {
      const Place place = place_of<Block>(p_, share.tile);
#pragma unroll 1
      for (int chunk = share.first; chunk < share.last; ++chunk, --early) {
        if (early <= 0) {
          Empty::wait(&barriers_.empty[at.stage], at.phase);
          load_words(at.stage, place, chunk);
        }
        load_tokens(at.stage, place, chunk);
        at.advance(p_.stages);
      }
    }
  }

 private:
  static constexpr auto kOnce = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  static constexpr auto kOften = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);

  const PackedParams& p_;
  uint8_t* tokens_;
  uint8_t* words_;
  typename Block::Barriers& barriers_;

  // And announces all bytes of the stage.
  __device__ void load_words(int stage, const Place& place, int chunk) const {
    const int panel = place.col / kUnitChannels;
    const int unit_bytes = Block::unit_bytes(p_.sets);
    const int bytes = min(Block::kAllPanels, p_.panels - panel) * unit_bytes;
    uint64_t* full = &barriers_.full[stage];
    Full::arrive_and_expect_tx(full, Block::kTokenBytes + bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(
            cute::cast_smem_ptr_to_uint(words_ + stage * Block::kWordBytes)),
        "l"(p_.units + (int64_t{chunk} * p_.panels + panel) * unit_bytes), "r"(bytes),
        "r"(cute::cast_smem_ptr_to_uint(full)), "l"(p_.token_tiles == 1 ? kOnce : kOften)
        : "memory");
  }
  // In two boxes of 64 columns of X.
  __device__ void load_tokens(int stage, const Place& place, int chunk) const {
    uint8_t* to = tokens_ + stage * Block::kTokenBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      cute::SM90_TMA_LOAD_2D::copy(&p_.tokens, &barriers_.full[stage], kOften,
                                   to + half * (Block::kTokenBytes / 2), chunk * 256 + half * 128,
                                   place.row);
    }
  }
};

}  // namespace scaled_mm::cuda::sm90::lowbit
