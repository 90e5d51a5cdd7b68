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
  static __device__ float at_least(float x, float least) { return fmaxf(x, least); }
  static __device__ float at_most(float x, float most) { return fminf(x, most); }
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

}  // namespace scaled_mm::cuda
