// The functions of functions.h on the device.
#pragma once

#include "epilogue/expr.h"
#include "functions.h"

namespace scaled_mm::cuda {

// Where functions.h has its operations from.
struct FunctionOps {
  static __device__ float fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
  static __device__ uint32_t bits(float x) { return __float_as_uint(x); }
  static __device__ float from_bits(uint32_t x) { return __uint_as_float(x); }
  static __device__ float size(float x) { return fabsf(x); }
  static __device__ float at_least(float x, float least) { return fmaxf(x, least); }
  static __device__ float at_most(float x, float most) {
#if __CUDA_ARCH__ >= 800
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
    return x;
#else
    return x > most ? most : x;
#endif
  }
  // The approximation is within 1 ulp, and one step makes it RN(1 / x): tried for all 2^23 + 1 x.
  static __device__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
  }
};

// x = f(x)
template <int kSize>
__device__ inline void apply_function(Function function, float (&x)[kSize]) {
  with_function(function, [&](auto f) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = functions::value<FunctionOps, decltype(f)::value>(x[i]);
  });
}

// Behind epilogues that are written out for every register of a tile: the function is called there,
// not written out as well.
namespace detail {

__device__ __noinline__ inline float2 activated(float2 x, Function function) {
  float both[2] = {x.x, x.y};
  apply_function(function, both);
  return {both[0], both[1]};
}

}  // namespace detail

template <int kCount>
__device__ inline void activate_once(float (&x)[kCount], Function function) {
  if (function == Function::none) return;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float2 both = detail::activated({x[i], x[i + 1]}, function);
    x[i] = both.x, x[i + 1] = both.y;
  }
}

}  // namespace scaled_mm::cuda
