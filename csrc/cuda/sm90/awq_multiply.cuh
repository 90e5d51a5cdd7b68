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

// What a lane needs of a group for its eight channels, two neighbours in a register: what lower()
// takes away, and the scales.
template <class T>
struct LaneGroup {
  Pair base[4], scale[4];

  __device__ void load(const AwqGroup& group, int word) {
    Nibbles<T>::lift(group.zeros[word], base);
#pragma unroll
    for (int j = 0; j < 4; ++j) base[j] = Nibbles<T>::base(base[j], j);
    const uint4 s = *reinterpret_cast<const uint4*>(group.scales + 8 * word);
    scale[0] = s.x, scale[1] = s.y, scale[2] = s.z, scale[3] = s.w;
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

// The weights of 16 rows of channels 2 j and 2 j + 1, j from kFirst on, as (w)gmma takes them.
template <class T, int kFirst, int kPairs>
__device__ void dequantize(Pair (&w)[kPairs][4], const uint32_t (&rows)[4],
                           const LaneGroup<T>& of) {
  Pair lifted[4][4];
  Nibbles<T>::lift(__byte_perm(rows[0], rows[1], 0x5410), lifted[0]);
  Nibbles<T>::lift(__byte_perm(rows[0], rows[1], 0x7632), lifted[1]);
  Nibbles<T>::lift(__byte_perm(rows[2], rows[3], 0x5410), lifted[2]);
  Nibbles<T>::lift(__byte_perm(rows[2], rows[3], 0x7632), lifted[3]);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[j][i] = of.weight(lifted[i][kFirst + j], i % 2, kFirst + j);
  }
}

// A stage's products by mma: 64 channels of the calling warp with kTokens tokens, over 64 rows.
template <class T, int kTokens>
__device__ void multiply_stage(float (&sums)[4][kTokens / 8][4], const uint8_t* stage,
                               const AwqGroup* groups, bool two_groups, int team_warp, int lane) {
  const int word = 8 * team_warp + lane / 4;
  const LaneWords words(stage, word, lane % 4);
  const uint32_t tokens = cute::cast_smem_ptr_to_uint(stage) + AwqBlock<kTokens>::kWordBytes;
  LaneGroup<T> of;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step == 0 || (two_groups && step == kSteps / 2)) of.load(groups[step > 0], word);
    uint32_t rows[4];
    Pair x[kTokens / 8][2], w[4][4];
    words.load(rows, step);
    load_tokens<kTokens>(x, tokens, step, lane);
    dequantize<T, 0>(w, rows, of);
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

template <int kPairs>
__device__ void keep_until_here(Pair (&w)[kPairs][4]) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) cute::warpgroup_fence_operand(w[j][i]);
  }
}

// All products of the calling warp's team by mma, every kTeams-th stage.
template <class T, int kTokens>
__device__ void multiply(float (&sums)[4][kTokens / 8][4], const Worker<kTokens>& on) {
  constexpr int kTeams = AwqBlock<kTokens>::kTeams;
  Cursor at{0};
  at.advance(on.team, on.p.stages);
  for (int chunk = on.first + on.team; chunk < on.last; chunk += kTeams) {
    on.wait(at);
    multiply_stage<T, kTokens>(sums, on.stage(at), on.group(at), on.two_groups(), on.team_warp,
                               on.lane);
    on.release(at.stage);
    at.advance(kTeams, on.p.stages);
  }
}

// The same by wgmma, of a lane's channel pairs from kFirst on. Dequantising runs beside it: weights
// go from registers, in two sets, of which one is read while the other is made.
template <class T, int kTokens, int kFirst>
__device__ void multiply_async(float (&sums)[AwqBlock<kTokens>::kPairs][kTokens / 8][4],
                               const Worker<kTokens>& on) {
  using Block = AwqBlock<kTokens>;
  constexpr int kStride = Block::kHalves ? 1 : Block::kTeams;
  const int word = 8 * on.team_warp + on.lane / 4;
  Cursor at{0};
  if (!Block::kHalves) at.advance(on.team, on.p.stages);
  for (int chunk = on.first + (Block::kHalves ? 0 : on.team); chunk < on.last; chunk += kStride) {
    on.wait(at);
    const LaneWords words(on.stage(at), word, on.lane % 4);
    const uint64_t tokens = descriptor(on.stage(at) + Block::kWordBytes);
    LaneGroup<T> of;
    Pair w[2][Block::kPairs][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == 0 || (on.two_groups() && step == kSteps / 2)) {
        of.load(on.group(at)[step > 0], word);
      }
      uint32_t rows[4];
      words.load(rows, step);
      if (step >= 2) {
        cute::warpgroup_wait<1>();  // the set made two steps ago has been read
        keep_until_here(w[step % 2]);
      }
      dequantize<T, kFirst>(w[step % 2], rows, of);
      cute::warpgroup_arrive();
#pragma unroll
      for (int j = 0; j < Block::kPairs; ++j) {
        multiply_add_async<T, kTokens>(sums[j], w[step % 2][j], tokens + 2 * step);  // 32 bytes on
      }
      cute::warpgroup_commit_batch();
    }
    cute::warpgroup_wait<0>();
    keep_until_here(w[0]);
    keep_until_here(w[1]);
    on.release(at.stage);
    at.advance(kStride, on.p.stages);
  }
}

}  // namespace scaled_mm::cuda::sm90
