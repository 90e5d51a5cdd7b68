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

  // Loads all that the block works on. Of a settled weight, words do not depend on the kernel
  // before on the stream: as many as the ring holds are sent for before that is waited for.
  __device__ void run() const {
    int early = 0;
    Share before(p_.plan);
#pragma unroll 1
    while (p_.settled && early < p_.stages && before.next()) {
      const TileOrigin place = place_of<Block>(p_, before.tile);
      int piece = before.first * Block::kPieces;
#pragma unroll 1
      for (; piece < before.last * Block::kPieces && early < p_.stages; ++piece, ++early) {
        load_words(early, place, piece);
      }
    }
    wait_for_dependencies();
    Share share(p_.plan);
    Cursor at{.phase = 1};
#pragma unroll 1
    while (share.next()) {
      const TileOrigin place = place_of<Block>(p_, share.tile);
      int piece = share.first * Block::kPieces;
#pragma unroll 1
      for (; piece < share.last * Block::kPieces; ++piece, --early) {
        if (early <= 0) {
          Empty::wait(&barriers_.empty[at.stage], at.phase);
          load_words(at.stage, place, piece);
        }
        load_tokens(at.stage, place, piece);
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

  __device__ void copy(uint8_t* to, const uint8_t* from, int bytes, uint64_t* full) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(cute::cast_smem_ptr_to_uint(to)),
        "l"(from), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(full)),
        "l"(p_.token_tiles == 1 ? kOnce : kOften)
        : "memory");
  }
  // And announces all bytes of the stage.
  __device__ void load_words(int stage, const TileOrigin& place, int piece) const {
    const int chunk = piece / Block::kPieces, part = piece % Block::kPieces;
    const int panel = place.col / kUnitChannels;
    const int panels = min(Block::kAllPanels, p_.panels - panel);
    const int unit_bytes = Block::unit_bytes(p_.sets), piece_bytes = Block::piece_bytes(p_.sets);
    const uint8_t* from = p_.units + (int64_t{chunk} * p_.panels + panel) * unit_bytes;
    uint8_t* to = words_ + stage * Block::kWordBytes;
    uint64_t* full = &barriers_.full[stage];
    Full::arrive_and_expect_tx(full, Block::kTokenBytes + panels * piece_bytes);
    if constexpr (Block::kPieces == 1) {
      copy(to, from, panels * unit_bytes, full);
    } else {
#pragma unroll 1
      for (int i = 0; i < panels; ++i, from += unit_bytes, to += piece_bytes) {
        copy(to, from + part * Block::kPieceWords, Block::kPieceWords, full);
        copy(to + Block::kPieceWords, from + Block::Format::kWordBytes, Block::set_bytes(p_.sets),
             full);
      }
    }
  }
  // In boxes of 64 columns of X.
  __device__ void load_tokens(int stage, const TileOrigin& place, int piece) const {
    constexpr int kBoxes = Block::kRows / 64;
    uint8_t* to = tokens_ + stage * Block::kTokenBytes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      cute::SM90_TMA_LOAD_2D::copy(&p_.tokens, &barriers_.full[stage], kOften,
                                   to + box * (Block::kTokenBytes / kBoxes),
                                   (piece * kBoxes + box) * 128, place.row);
    }
  }
};

}  // namespace scaled_mm::cuda::sm90::lowbit
