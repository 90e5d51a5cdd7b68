// The streaming int4 kernel's products: words to weights in registers, weights times tokens.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <type_traits>
#include <utility>

#include "cuda/convert.cuh"
#include "cuda/sm90/awq_block.cuh"
#include "cuda/sm90/block.cuh"

namespace scaled_mm::cuda::sm90 {

template <class T>
__device__ void multiply_add(float (&sums)[4], const Pair (&w)[4], const Pair (&x)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x[0]), "r"(x[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x[0]), "r"(x[1]));
  }
}

// 16 rows of K of kTokens tokens as mma takes them, x[i] for tokens 8 i to 8 i + 7. `quarter`: of
// the stage's 64.
template <int kTokens>
__device__ void load_tokens(Pair (&x)[kTokens / 8][2], uint32_t tokens, int quarter, int lane) {
  const uint32_t at = tokens + lane % 8 * 128 + ((2 * quarter + lane / 8 % 2) ^ lane % 8) * 16;
  if constexpr (kTokens == 8) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(x[0][0]), "=r"(x[0][1])
                 : "r"(at));
  } else {
#pragma unroll
    for (int i = 0; i < kTokens / 8; i += 2) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i + 1][0]), "=r"(x[i + 1][1])
                   : "r"(at + 1024 * (i + lane / 16)));
    }
  }
}

// A lane's channels: 2 kPairs of them side by side, the unit-th such in the tile. Eight fill a
// word; four its low or its high bytes.
template <int kPairs>
struct LaneChannels {
  static_assert(kPairs == 4 || kPairs == 2);
  int unit;

  __device__ int channel() const { return 2 * kPairs * unit; }
  __device__ int word() const { return unit * kPairs / 4; }
  // Puts them where those of a word's first pairs are, in both halves of it.
  __device__ uint32_t align(uint32_t word) const {
    return kPairs == 4 ? word : word >> unit % 2 * 8;
  }
};

// What a lane needs of a group for its channels, two neighbours in a register: what lower() takes
// away, and the scales. read() and lift() make it; between them its words may be on their way.
template <class T, int kPairs>
struct LaneGroup {
  Pair base[kPairs], scale[kPairs];

  __device__ void read(const AwqGroup& group, LaneChannels<kPairs> of) {
    base[0] = group.zeros[of.word()];
    using Scales = std::conditional_t<kPairs == 4, uint4, uint2>;
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
    return Pairs<T>::multiply(Nibbles<T>::lower(lifted, Pairs<T>::both(base[j], odd), j),
                              Pairs<T>::both(scale[j], odd));
  }
};

// Where a lane finds its words of a stage: word `word` of rows 2 t and 2 t + 1.
struct LaneWords {
  const uint8_t *even, *odd;

  __device__ LaneWords(const uint8_t* stage, int word, int t)
      : even(stage + 256 * t + (word / 4 ^ 2 * t) * 16 + word % 4 * 4),
        odd(stage + 256 * t + 128 + (word / 4 ^ (2 * t + 1)) * 16 + word % 4 * 4) {}

  // Of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of the stage's step of 16.
  __device__ void load(uint32_t (&rows)[4], int step) const {
    const int at = step * 16 * 128;
    rows[0] = *reinterpret_cast<const uint32_t*>(even + at);
    rows[1] = *reinterpret_cast<const uint32_t*>(odd + at);
    rows[2] = *reinterpret_cast<const uint32_t*>(even + at + 1024);
    rows[3] = *reinterpret_cast<const uint32_t*>(odd + at + 1024);
  }
};

// The weights of 16 rows of a lane's channels 2 j and 2 j + 1, as (w)gmma takes them.
template <class T, int kPairs>
__device__ void dequantize(Pair (&w)[kPairs][4], const uint32_t (&rows)[4],
                           const LaneGroup<T, kPairs>& group, LaneChannels<kPairs> of) {
  Pair lifted[4][kPairs];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t both =
        __byte_perm(rows[i / 2 * 2], rows[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
    Nibbles<T>::lift(of.align(both), lifted[i]);
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[j][i] = group.weight(lifted[i][j], i % 2, j);
  }
}

// A stage's products by mma: 64 channels of the calling warp with kTokens tokens, over 64 rows of
// kGroups groups.
template <class T, int kTokens, int kGroups>
__device__ void multiply_stage(float (&sums)[4][kTokens / 8][4], const uint8_t* stage,
                               const AwqGroup* groups, int team_warp, int lane) {
  const LaneChannels<4> channels{8 * team_warp + lane / 4};
  const LaneWords words(stage, channels.word(), lane % 4);
  const uint32_t tokens = cute::cast_smem_ptr_to_uint(stage) + AwqBlock<kTokens>::kWordBytes;
  LaneGroup<T, 4> group;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % (kSteps / kGroups) == 0) {
      group.read(groups[step / (kSteps / kGroups)], channels);
      group.lift(channels);
    }
    uint32_t rows[4];
    Pair x[kTokens / 8][2], w[4][4];
    words.load(rows, step);
    load_tokens<kTokens>(x, tokens, step, lane);
    dequantize<T>(w, rows, group, channels);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) multiply_add<T>(sums[j][n], w[j], x[n]);
    }
  }
}

inline constexpr auto K_MAJOR = cute::SM90::GMMA::Major::K;

template <class T, int kTokens>
struct Wgmma;
template <>
struct Wgmma<__half, 32> : cute::SM90::GMMA::MMA_64x32x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__half, 64> : cute::SM90::GMMA::MMA_64x64x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__half, 128> : cute::SM90::GMMA::MMA_64x128x16_F32F16F16_RS<K_MAJOR, K_MAJOR> {};
template <>
struct Wgmma<__nv_bfloat16, 32> : cute::SM90::GMMA::MMA_64x32x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {
};
template <>
struct Wgmma<__nv_bfloat16, 64> : cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {
};
template <>
struct Wgmma<__nv_bfloat16, 128>
    : cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_RS<K_MAJOR, K_MAJOR> {};

// 64 channels of a warpgroup, 16 of each warp, with kTokens tokens, over 16 rows; asynchronous: w
// may not change before it is waited for.
template <class T, int kTokens>
__device__ void multiply_add_async(float (&sums)[kTokens / 8][4], const Pair (&w)[4],
                                   uint64_t tokens) {
  float* const d = &sums[0][0];
  [&]<size_t... I>(std::index_sequence<I...>) {
    Wgmma<T, kTokens>::fma(w[0], w[1], w[2], w[3], tokens, d[I]...);
  }(std::make_index_sequence<kTokens / 2>{});
}

// All products of the calling warp's team by mma, of every kTurns-th chunk from `chunk` on. Leaves
// the last stage in `held`. A stage is released when the next begins: its last products have been
// issued then, so what they were read from has been read. An arrive by itself does not wait for
// loads under way.
template <class T, int kTokens, int kGroups>
__device__ void multiply(float (&sums)[4][kTokens / 8][4], const Worker<kTokens>& on, int chunk,
                         int last, Cursor& at, int& held) {
  constexpr int kTurns = AwqBlock<kTokens>::kTurns;
#pragma unroll 1
  for (; chunk < last; chunk += kTurns) {
    if (held >= 0) on.release(held);
    on.wait(at);
    multiply_stage<T, kTokens, kGroups>(sums, on.stage(at), on.template groups<kGroups>(at),
                                        on.team_warp, on.lane);
    held = at.stage;
    at.advance(kTurns, on.p.stages);
  }
}

// The same by wgmma. Two steps' products run while the weights of the next are made, and the words
// of the one after it are read, from stage to stage: weights go from registers, in sets, of which
// one is made while others are multiplied. ptxas accepts this where products come first in the loop
// and the making of weights after the wait.
template <class T, int kTokens, int kGroups>
__device__ void multiply_async(float (&sums)[AwqBlock<kTokens>::kPairs][kTokens / 8][4],
                               const Worker<kTokens>& on, int chunk, int last, Cursor& at) {
  using Block = AwqBlock<kTokens>;
  constexpr int kPending = Block::kLive == 1 ? 2 : 1;  // steps whose products may run on
  constexpr int kSets = kPending == 1 ? 2 : kSteps;    // of weights
  const LaneChannels<Block::kPairs> channels{on.unit()};
  Pair w[kSets][Block::kPairs][4];
  LaneGroup<T, Block::kPairs> group, next_group;
  uint32_t rows[4];
  constexpr int kGroupSteps = kSteps / kGroups;
  const auto begins_group = [](int step) { return step % kGroupSteps == 0; };
  const auto read_words = [&](int step) {
    LaneWords(on.stage(at), channels.word(), on.lane % 4).load(rows, step);
    if (begins_group(step)) {
      next_group.read(on.template groups<kGroups>(at)[step / kGroupSteps], channels);
    }
  };
  const auto make_weights = [&](int step) {
    if (begins_group(step)) {
      group = next_group;
      group.lift(channels);
    }
    dequantize<T>(w[step % kSets], rows, group, channels);
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
    for (int step = 0; step < kSteps; ++step) {
      cute::warpgroup_arrive();
#pragma unroll
      for (int j = 0; j < Block::kPairs; ++j) {  // 16 rows of K are 32 bytes of a token
        multiply_add_async<T, kTokens>(sums[j], w[step % kSets][j], tokens + 2 * step);
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<kPending>();
      if (step == kPending - 1 && before >= 0) on.release(before);
      if (is_last && step == kSteps - 1) break;
      make_weights((step + 1) % kSteps);
      if (is_last && step == kSteps - 2) continue;
      if (step == kSteps - 2) {
        at.advance(Block::kTurns, on.p.stages);
        on.wait(at);
      }
      read_words((step + 2) % kSteps);
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
  for (; chunk + Block::kTurns < last; chunk += Block::kTurns) multiply_stage(std::false_type{});
  multiply_stage(std::true_type{});
  cute::warpgroup_wait<0>();
  fence();
  on.release(before);
  at.advance(Block::kTurns, on.p.stages);
}

}  // namespace scaled_mm::cuda::sm90
