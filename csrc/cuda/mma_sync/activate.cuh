// Activations behind epilogues that are written out for every register of a tile: the functions are
// called there, not written out as well.
#pragma once

#include "cuda/common/functions.cuh"

namespace scaled_mm::cuda::mma_sync {

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

}  // namespace scaled_mm::cuda::mma_sync
