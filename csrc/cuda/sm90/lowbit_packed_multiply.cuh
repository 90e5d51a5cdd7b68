// The products of the kernel for packed weights: words to weights in registers, weights times
// tokens.
#pragma once

#include "cuda/sm90/lowbit_multiply.cuh"
#include "cuda/sm90/lowbit_packed_block.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// A warpgroup's part of every stage: kPanels panels of channels, 16 channels of each for a warp.
//
// In batches of products (wgmma) of kBatchSteps steps of 16 rows: one or two batches run while the
// weights of the next are made, from stage to stage. Words come to registers a part of a unit
// ahead, in one load. What keeps ptxas from serialising the products: lowbit_multiply.cuh.
template <class T, class Block>
class PackedMultiplier {
 public:
  static constexpr int kTokens = Block::kTokens, kPanels = Block::kPanels;
  using Sums = float[kPanels][kTokens / 8][4];

  __device__ PackedMultiplier(const PackedParams& p, const uint8_t* tokens, const uint8_t* words,
                              typename Block::Barriers& barriers)
      : stages_(p.stages),
        sets_(p.sets),
        piece_bytes_(Block::piece_bytes(p.sets)),
        tokens_(tokens),
        barriers_(barriers) {
    // From one lane, so that ptxas knows it to be the warp's: descriptors stay in uniform
    // registers.
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    warp_ = warp % 4, lane_ = static_cast<int>(threadIdx.x) % 32;
    words_ = words + warp / 4 * kPanels * piece_bytes_;
  }

  // Chunks [chunk, last) of a tile.
  __device__ __forceinline__ void run(Sums& sums, int chunk, int last) {
    if (chunk >= last) return;
    before_ = -1;
    wait();
    read<0>();
    take(0);
    make(0);
    read<1>();
#pragma unroll 1
    for (; chunk + 1 < last; ++chunk) multiply_unit(sums, std::false_type{});
    multiply_unit(sums, std::true_type{});
    cute::warpgroup_wait<0>();
    fence(sums);
    release(before_);
    at_.advance(stages_);
  }

 private:
  using Format = typename Block::Format;
  static constexpr int kSets = Block::kSets, kUnitSteps = kUnitRows / 16;
  static constexpr int kParts = Format::kParts;
  static constexpr int kBatchSteps = 2 / kPanels;  // two products to a batch
  static constexpr int kBatches = kUnitSteps / kBatchSteps, kPartBatches = kBatches / kParts;
  // Of a stage, which has a unit's parts or half of them.
  static constexpr int kStageBatches = kBatches / Block::kPieces;
  static constexpr int kStageParts = kParts / Block::kPieces;
  // Batches that may run while weights are made: with few warps two.
  static constexpr int kPending =
      Block::kLive == 1 && kPanels == 1 && Block::kThreads == 384 ? 2 : 1;
  static constexpr int kBuffers = kPending == 1 ? 2 : 4;  // of weights
  static constexpr int kSetSteps = kUnitSteps / kSets;
  static constexpr int kPartSets = kSets > kParts ? kSets / kParts : 1;  // that begin in a part
  static_assert(kPanels == 1 || kPanels == 2);
  // A stage is given back in the next one, and its last part read while it is multiplied.
  static_assert(kStageBatches >= kPending && kStageParts > 1);

  int stages_, sets_, piece_bytes_, warp_, lane_;
  const uint8_t *tokens_, *words_;
  typename Block::Barriers& barriers_;
  Cursor at_;
  int before_;  // the stage before, whose last products may still run
  Pair w_[kBuffers][kBatchSteps][kPanels][4];
  uint4 next_[kPanels], now_[kPanels];  // words of a part
  using Group = UnitGroup<T, Format>;
  Group next_groups_[kPartSets][kPanels], now_groups_[kPartSets][kPanels], group_[kPanels];

  __device__ void wait() const {
    Full::wait(&barriers_.full[at_.stage], at_.phase);
    if constexpr (Block::kCopies) cutlass::arch::fence_view_async_shared();
    asm volatile("" ::: "memory");  // no read of the stage before
  }
  // Every lane for itself, as Worker::release.
  __device__ void release(int stage) const { Empty::arrive(&barriers_.empty[stage]); }

  // Whether sets begin in a part: the first does.
  static constexpr bool begins_sets(int part) { return part * kSets % kParts == 0; }

  template <int kPart>
  __device__ __forceinline__ void read() {
    constexpr int kMissing = Format::kWordBytes - Block::kPieceWords;  // words before the sets
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      const uint8_t* unit = words_ + at_.stage * Block::kWordBytes + j * piece_bytes_;
      next_[j] = *unit_words(unit, kPart % kStageParts, warp_, lane_);
      if constexpr (begins_sets(kPart)) {
#pragma unroll
        for (int s = 0; s < kPartSets; ++s) {
          const int set = kPart * kSets / kParts + s;
          next_groups_[s][j].read(unit - kMissing, kSets == 1 ? 0 : set * sets_ / kSets, warp_,
                                  lane_);
        }
      }
    }
  }
  // After the part before: it may be the first of a stage.
  template <int kPart>
  __device__ __forceinline__ void read_next() {
    if constexpr (kPart % kStageParts == 0) {
      at_.advance(stages_);
      wait();
    }
    read<kPart>();
  }
  __device__ __forceinline__ void take(int part) {
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      now_[j] = next_[j];
      if (!begins_sets(part)) continue;
#pragma unroll
      for (int s = 0; s < kPartSets; ++s) now_groups_[s][j] = next_groups_[s][j];
    }
  }
  // A batch's weights.
  __device__ __forceinline__ void make(int batch) {
#pragma unroll
    for (int i = 0; i < kBatchSteps; ++i) {
      const int step = batch * kBatchSteps + i;
#pragma unroll
      for (int j = 0; j < kPanels; ++j) {
        if (step % kSetSteps == 0) {
          group_[j] = now_groups_[step / kSetSteps % kPartSets][j];
          group_[j].lift();
        }
        const uint32_t of_part[4] = {now_[j].x, now_[j].y, now_[j].z, now_[j].w};
        const uint32_t* of_step = of_part + step % Format::kPartSteps * Format::kStepWords;
        group_[j].weights(w_[batch % kBuffers][i][j], of_step);
      }
    }
  }
  static __device__ void fence(Sums& sums) {
#pragma unroll
    for (auto& of_panel : sums) {
#pragma unroll
      for (auto& of_tokens : of_panel) {
#pragma unroll
        for (float& sum : of_tokens) cute::warpgroup_fence_operand(sum);
      }
    }
  }
  // The lower half of a descriptor is the address; the upper one is the same for all.
  static __device__ uint64_t with_address(uint32_t address) {
    constexpr uint64_t kUpper = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
    return kUpper | address;
  }

  // A batch's products, and the weights of the one that follows. kBatch is a template's, not a
  // loop's: nvcc leaves some such loops as they are, and weights in local memory.
  template <int kBatch, class IsLast>
  __device__ __forceinline__ void multiply_batch(Sums& sums, uint32_t tokens, IsLast is_last) {
    cute::warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < kBatchSteps; ++i) {
      const int step = kBatch % kStageBatches * kBatchSteps + i;  // 16 rows: 32 bytes of a token
      const uint64_t of_step = with_address(tokens + step / 4 * (kTokens * 8) + step % 4 * 2);
#pragma unroll
      for (int j = 0; j < kPanels; ++j) {
        multiply_add_async<T, kTokens>(sums[j], w_[kBatch % kBuffers][i][j], of_step);
      }
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_wait<kPending>();
    if (kBatch % kStageBatches == kPending - 1 && before_ >= 0) release(before_);
    constexpr int kNext = (kBatch + 1) % kBatches, kPart = kNext / kPartBatches;
    constexpr bool kBegins = kNext % kPartBatches == 0, kEnds = kPart == kParts - 1;
    if constexpr (!is_last || kNext != 0) {
      if constexpr (kBegins) take(kPart);
      make(kNext);
      if constexpr (kBegins && !(is_last && kEnds)) read_next<(kPart + 1) % kParts>();
    }
  }

  // A stage's, kFirst and those after it.
  template <int kFirst, class IsLast>
  __device__ __forceinline__ void multiply_stage(Sums& sums, IsLast is_last) {
    const int stage = at_.stage;
    const uint64_t whole = descriptor(tokens_ + stage * Block::kTokenBytes);
    const uint32_t tokens = __shfl_sync(~0u, static_cast<uint32_t>(whole), 0);
    [&]<int... kBatch>(std::integer_sequence<int, kBatch...>) {
      (multiply_batch<kFirst + kBatch>(sums, tokens, is_last), ...);
    }(std::make_integer_sequence<int, kStageBatches>{});
    before_ = stage;
  }
  template <class IsLast>
  __device__ __forceinline__ void multiply_unit(Sums& sums, IsLast is_last) {
    fence(sums);
    [&]<int... kStage>(std::integer_sequence<int, kStage...>) {
      (multiply_stage<kStage * kStageBatches>(sums, is_last), ...);
    }(std::make_integer_sequence<int, Block::kPieces>{});
    fence(sums);
  }
};

}  // namespace scaled_mm::cuda::sm90::lowbit
