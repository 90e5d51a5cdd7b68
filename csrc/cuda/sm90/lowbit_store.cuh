// Stores of the lowbit kernels: sums of neighbouring channels into D, and what other blocks of a
// cluster have.
#pragma once

#include <type_traits>

#include "cuda/common/formats.cuh"
#include "cuda/common/functions.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// The bits of floats in T, side by side.
template <class T, int kCount>
__device__ void store_narrow(uint16_t* to, const float (&x)[kCount]) {
  using Bits =
      std::conditional_t<kCount == 8, uint4, std::conditional_t<kCount == 4, uint2, uint32_t>>;
  uint32_t bits[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    bits[i] = Format<DTypeOf<T>::value>::narrow(x[2 * i], x[2 * i + 1]);
  }
  *reinterpret_cast<Bits*>(to) = *reinterpret_cast<const Bits*>(bits);
}

// Four channels of D, with the bias, activated.
template <class T, class Params>
__device__ void store_quad(const Params& p, int token, int channel, const float4& sum) {
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  if (p.bias.data) {
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] += load_float(p.bias, 0, channel + c);
  }
  apply_function(p.function, x);
  store_narrow<T>(p.d + int64_t{token} * p.n + channel, x);
}

// Of all sums of a lane, in place. They pass through the first registers, a few at a time: code for
// every one of them would be large.
template <int kCount>
__device__ void activate_sums(float (&sums)[kCount], Function function) {
  if (function == Function::none) return;
  constexpr int kAtOnce = kCount < 8 ? kCount : 8;
  static_assert(kCount % kAtOnce == 0);
#pragma unroll 1
  for (int done = 0; done < kCount; done += kAtOnce) {
    float now[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) now[i] = sums[i];
    apply_function(function, now);
#pragma unroll
    for (int i = 0; i < kCount - kAtOnce; ++i) sums[i] = sums[i + kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[kCount - kAtOnce + i] = now[i];
  }
}

// What the rank-th block of the cluster has at the address of shared memory.
__device__ inline float4 load_remote(uint32_t address, int rank) {
  float4 x;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(address), "r"(rank));
  return x;
}

}  // namespace scaled_mm::cuda::sm90::lowbit
