// How the lowbit kernels end: bias, residual, function or gate, and D.
#pragma once

#include <type_traits>

#include "cuda/common/formats.cuh"
#include "cuda/epilogue/functions.cuh"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// What comes behind the sums of a token's channels. Rows of D, `ldd` elements apart, and of the
// residual begin at multiples of 16 bytes and have room for whole eights of channels.
struct LowbitEnd {
  EpilogueOperand bias, residual;
  int channels = 0;  // that the bias has: a kernel may have some more, up to a multiple of 8
  Function function = Function::none;
  bool gated = false;  // channels 2 j and 2 j + 1 make column j of D
  uint16_t* d = nullptr;
  int64_t ldd = 0;

  // Whether D is the sums and the bias, rounded.
  __device__ bool is_plain() const {
    return !residual.data && !gated && function == Function::none;
  }
};

inline LowbitEnd end_of(const LowbitProblem& p) {
  return {p.bias, p.residual, static_cast<int>(p.columns), p.function, p.gated, p.d, p.ldd};
}

// What the bias, or an expert's, adds to neighbouring channels. RN(x - 0.0) is x for every x.
template <int kCount>
__device__ inline void load_bias(const LowbitEnd& end, int channel, float (&bias)[kCount],
                                 int expert = 0) {
#pragma unroll
  for (float& x : bias) x = -0.0f;
  if (!end.bias.data) return;  // asked once: a short kernel waits for its code, what it skips too
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (channel + i < end.channels) bias[i] = load_float(end.bias, expert, channel + i);
  }
}

template <DType dtype, int kCount>
__device__ inline void add_residual(const LowbitEnd& end, int64_t token, int channel,
                                    float (&x)[kCount]) {
  struct alignas(2 * kCount) Halves {
    uint32_t word[kCount / 2];
  };
  const auto* const row =
      static_cast<const uint16_t*>(end.residual.data) + token * end.residual.row_stride;
  const Halves all = *reinterpret_cast<const Halves*>(row + channel);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = __fadd_rn(x[i], Format<dtype>::widen(all.word[i / 2], i % 2));
  }
}

// Neighbouring columns of a row, rounded to 16 bits.
template <DType dtype, int kCount>
__device__ inline void store_narrow(uint16_t* to, const float (&x)[kCount]) {
  if constexpr (kCount == 1) {
    *to = static_cast<uint16_t>(Format<dtype>::narrow(x[0], 0.0f));
  } else {
    using Bits =
        std::conditional_t<kCount == 8, uint4, std::conditional_t<kCount == 4, uint2, uint32_t>>;
    static_assert(sizeof(Bits) == 2 * kCount);
    uint32_t bits[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      bits[i] = Format<dtype>::narrow(x[2 * i], x[2 * i + 1]);
    }
    *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(bits);
  }
}

// The ending of neighbouring channels of a token, whose bias is in x already; the first is even.
template <DType dtype, int kCount>
__device__ inline void store_ended(const LowbitEnd& end, int64_t token, int channel,
                                   float (&x)[kCount]) {
  if (end.residual.data) add_residual<dtype>(end, token, channel, x);
  uint16_t* const row = end.d + token * end.ldd;
  if (!end.gated) {
    activate_once(x, end.function);
    store_narrow<dtype>(row + channel, x);
    return;
  }
  float gates[kCount == 2 ? 2 : kCount / 2] = {}, made[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) gates[i] = x[2 * i];
  activate_once(gates, end.function);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) made[i] = __fmul_rn(gates[i], x[2 * i + 1]);
  store_narrow<dtype>(row + channel / 2, made);
}

}  // namespace scaled_mm::cuda
