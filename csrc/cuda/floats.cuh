// Floats of the dtypes that tensors have, as float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "problem.h"

namespace scaled_mm::cuda {

// Element i of a vector of floats, widened.
__device__ inline float load_float(const Vector& v, int64_t i) {
  i *= v.stride;
  if (v.dtype == ScalarType::BFloat16) {
    return __bfloat162float(static_cast<const __nv_bfloat16*>(v.data)[i]);
  }
  if (v.dtype == ScalarType::Half) return __half2float(static_cast<const __half*>(v.data)[i]);
  return static_cast<const float*>(v.data)[i];
}

// The bits of two floats rounded to one of the 16-bit dtypes, the first in the low half.
__device__ inline uint32_t narrow_pair(float x, float y, bool bfloat16) {
  if (bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  const __half2 pair = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace scaled_mm::cuda
