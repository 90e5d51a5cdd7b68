// Stores of the lowbit kernels: sums of neighbouring channels into D.
#pragma once

#include "cuda/lowbit/end.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::lowbit {

// Four channels of D, from their sums.
template <class T>
__device__ void store_quad(const LowbitEnd& end, int token, int channel, const float4& sum) {
  float bias[4];
  load_bias(end, channel, bias);
  float x[4] = {sum.x + bias[0], sum.y + bias[1], sum.z + bias[2], sum.w + bias[3]};
  store_ended<DTypeOf<T>::value>(end, token, channel, x);
}

// f of all sums of a lane, in place. Of four, the first two are channels 2 j of two tokens and the
// others channels 2 j + 1 of them: gated, the first two become those tokens' columns j. The sums
// pass through the first registers, a few at a time: code for every one of them would be large.
template <int kCount>
__device__ void activate_sums(float (&sums)[kCount], const LowbitEnd& end) {
  if (end.function == Function::none) return;
  constexpr int kAtOnce = kCount < 8 ? kCount : 8;
  static_assert(kCount % kAtOnce == 0 && kAtOnce % 4 == 0);
#pragma unroll 1
  for (int done = 0; done < kCount; done += kAtOnce) {
    float now[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) now[i] = sums[i];
    apply_function(end.function, now);
    if (end.gated) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) now[i] = __fmul_rn(now[i], sums[(i + 2) % kAtOnce]);
    }
#pragma unroll
    for (int i = 0; i < kCount - kAtOnce; ++i) sums[i] = sums[i + kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sums[kCount - kAtOnce + i] = now[i];
  }
}

// D of pairs of channels, each(token, channel, x, y) of them, or of the columns that activate_sums
// made of them: asked once, not for each.
template <class T, class Each>
__device__ void store_pairs(const LowbitEnd& end, const Each& each) {
  if (end.gated) {
    each([&](int token, int channel, float x, float) {
      store_narrow<DTypeOf<T>::value>(end.d + token * end.ldd + channel / 2, {x});
    });
  } else {
    each([&](int token, int channel, float x, float y) {
      store_narrow<DTypeOf<T>::value>(end.d + token * end.ldd + channel, {x, y});
    });
  }
}

}  // namespace scaled_mm::cuda::sm90::lowbit
