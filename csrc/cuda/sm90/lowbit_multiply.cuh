// The streaming int4 kernel's products: words to weights in registers, weights times tokens.
#pragma once

#include <cute/arch/mma_sm90.hpp>
#include <type_traits>
#include <utility>

#include "cuda/lowbit/convert.cuh"
#include "cuda/sm90/lowbit_block.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// A lane's channels: 2 kPairs of them side by side, the unit-th such in the tile. They fill a word;
// or of each of its halves a byte, or a nibble.
template <int kPairs>
struct LaneChannels {
  int unit;

  __device__ int channel() const { return 2 * kPairs * unit; }
  __device__ int word() const { return unit * kPairs / 4; }
  // Of such words: puts them where those of a word's first pairs are, in both halves of it.
  __device__ uint32_t align(uint32_t word) const { return word >> unit * 4 * kPairs % 16; }

  // The lower (upper) halves of two rows' words side by side, the lane's channels aligned.
  __device__ uint32_t pair(uint32_t row, uint32_t next, int upper) const {
    const uint32_t halves = upper ? 0x7632 : 0x5410;
    if constexpr (kPairs == 4) return __byte_perm(row, next, halves);
    // The byte they are in, lowest; the others do not matter.
    const uint32_t bytes = halves + 0x1111 * (unit * kPairs / 2 % 2);
    const uint32_t both = __byte_perm(row, next, bytes & 0x7777);
    return kPairs == 2 ? both : both >> unit % 2 * 4;
  }
};

// What a lane needs of a group for its channels, two neighbours in a register: what subtract_base()
// takes away, and the scales. read() and lift() make it; between them its words may be on their
// way.
template <class T, int kPairs>
struct LaneGroup {
  Pair base[kPairs], scale[kPairs];

  template <class Group>
  __device__ void read(const Group& group, LaneChannels<kPairs> of) {
    base[0] = group.zeros[of.word()];
    using Scales =
        std::conditional_t<kPairs == 4, uint4, std::conditional_t<kPairs == 2, uint2, uint32_t>>;
    *reinterpret_cast<Scales*>(scale) =
        *reinterpret_cast<const Scales*>(group.scales + of.channel());
  }
  __device__ void lift(LaneChannels<kPairs> of) {
    Nibbles<T>::lift(of.align(base[0]), base);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) base[j] = Nibbles<T>::base(base[j], j);
  }
  // Two rows of channel 2 j + odd.
  __device__ Pair weight(Pair lifted, int odd, int j) const {
    return Half2Ops<T>::multiply(
        Nibbles<T>::subtract_base(lifted, Half2Ops<T>::both(base[j], odd), j),
        Half2Ops<T>::both(scale[j], odd));
  }
};

// Where a lane finds its words of a stage: of rows 2 t and 2 t + 1, and so on by eights. TMA has
// swizzled the 16-byte vectors of a box's rows.
template <int kTokens>
struct LaneWords {
  using Block = WordsBlock<kTokens>;
  static constexpr int kRow = Block::kBoxBytes;
  const uint8_t *even, *odd;

  __device__ LaneWords(const uint8_t* stage, int word, int t) {
    const uint8_t* box = stage + 4 * word / kRow * (kDepth * kRow) + word % 4 * 4;
    const int vector = 4 * word % kRow / 16;
    const auto swizzled = [&](int row) {
      return (vector ^ (kRow == 128 ? row % 8 : row / 2 % 4)) * 16;
    };
    even = box + 2 * t * kRow + swizzled(2 * t);
    odd = box + (2 * t + 1) * kRow + swizzled(2 * t + 1);
  }
  // Of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of the stage's step of 16.
  __device__ void load(uint32_t (&rows)[4], int step) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* from = (i % 2 ? odd : even) + (16 * step + i / 2 * 8) * kRow;
      rows[i] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
};

// The weights of 16 rows of kBatch pairs of a lane's channels as wgmma takes them, of the batch-th
// such. `both`: the rows' halves side by side (LaneChannels::pair).
template <class T, int kPairs, int kBatch>
__device__ void dequantize(Pair (&w)[kBatch][4], const uint32_t (&both)[4],
                           const LaneGroup<T, kPairs>& group, int batch) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Pair lifted[kBatch];
    Nibbles<T>::lift(both[i] >> 8 * batch, lifted);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      w[j][i] = group.weight(lifted[j], i % 2, batch * kBatch + j);
    }
  }
}

// 64 channels of a warpgroup, 16 of each warp, with kTokens tokens, over 16 rows; asynchronous: w
// may not change before it is waited for.
template <class T, int kTokens>
__device__ void multiply_add_async(float (&sums)[kTokens / 8][4], const Pair (&w)[4],
                                   uint64_t tokens) {
  using Half = std::conditional_t<std::is_same_v<T, __half>, cute::half_t, cute::bfloat16_t>;
  using Tile = cute::Shape<cute::_64, cute::Int<kTokens>, cute::_16>;
  using Wgmma = decltype(cute::SM90::GMMA::rs_op_selector<Half, Half, float, Tile>());
  float* const d = &sums[0][0];
  [&]<size_t... I>(std::index_sequence<I...>) {
    Wgmma::fma(w[0], w[1], w[2], w[3], tokens, d[I]...);
  }(std::make_index_sequence<kTokens / 2>{});
}

// All products of the calling warp's warpgroup, of chunks [chunk, last), in batches of two pairs of
// channels at most. The products of one or two batches run while the weights of the next are made,
// and the words of the next step are read, from stage to stage: weights go from registers, in sets,
// of which one is made while others are multiplied. ptxas accepts this where products come first in
// the loop and the making of weights after the wait.
template <class T, int kTokens, int kGroups>
__device__ void multiply(float (&sums)[WordsBlock<kTokens>::kPairs][kTokens / 8][4],
                         const Worker<kTokens>& on, int chunk, int last, Cursor& at) {
  using Block = WordsBlock<kTokens>;
  constexpr int kPairs = Block::kPairs, kBatch = std::min(kPairs, 2);
  constexpr int kStepBatches = kPairs / kBatch, kBatches = kSteps * kStepBatches;
  constexpr int kPending = Block::kLive == 1 ? 2 : 1;  // batches whose products may run on
  constexpr int kSets = kPending == 1 ? 2 : 4;         // of weights
  const LaneChannels<kPairs> channels{on.unit()};
  Pair w[kSets][kBatch][4];
  LaneGroup<T, kPairs> group, next_group;
  uint32_t rows[4], both[4];
  constexpr int kGroupSteps = kSteps / kGroups;
  const auto read_words = [&](int step) {
    LaneWords<kTokens>(on.stage(at), channels.word(), on.lane % 4).load(rows, step);
    if (step % kGroupSteps == 0) {
      next_group.read(on.template groups<kGroups>(at)[step / kGroupSteps], channels);
    }
  };
  const auto make_weights = [&](int batch) {
    const int step = batch / kStepBatches;
    if (batch % (kGroupSteps * kStepBatches) == 0) {
      group = next_group;
      group.lift(channels);
    }
    if (batch % kStepBatches == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        both[i] = channels.pair(rows[i / 2 * 2], rows[i / 2 * 2 + 1], i % 2);
    }
    dequantize<T>(w[batch % kSets], both, group, batch - step * kStepBatches);
  };
  const auto fence = [&] {
    for (auto& of_pair : sums) {
      for (auto& of_tokens : of_pair) {
        for (float& sum : of_tokens) cute::warpgroup_fence_operand(sum);
      }
    }
  };
  int before = -1;  // the stage before, whose last products may still run
  const auto multiply_stage = [&](auto is_last) {
    const int stage = at.stage;
    const uint64_t tokens = descriptor(on.stage(at) + Block::kWordBytes);
    fence();
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      const int step = batch / kStepBatches, first = batch % kStepBatches * kBatch;
      cute::warpgroup_arrive();
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {  // 16 rows of K are 32 bytes of a token
        multiply_add_async<T, kTokens>(sums[first + j], w[batch % kSets][j], tokens + 2 * step);
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<kPending>();
      if (batch == kPending - 1 && before >= 0) on.release(before);
      if (is_last && batch == kBatches - 1) break;
      make_weights((batch + 1) % kBatches);
      // Whose first weights were these: the next one's words are to be read.
      const int begun = (batch + 1) / kStepBatches;
      if ((batch + 1) % kStepBatches != 0 || (is_last && begun == kSteps - 1)) continue;
      if (begun == kSteps - 1) {
        at.advance(on.p.stages);
        on.wait(at);
      }
      read_words((begun + 1) % kSteps);
    }
    before = stage;
    fence();
  };

  if (chunk >= last) return;
  on.wait(at);
  read_words(0);
  make_weights(0);
  read_words(1);
#pragma unroll 1
  for (; chunk + 1 < last; ++chunk) multiply_stage(std::false_type{});
  multiply_stage(std::true_type{});
  cute::warpgroup_wait<0>();
  fence();
  on.release(before);
  at.advance(on.p.stages);
}

}  // namespace scaled_mm::cuda::sm90::lowbit
