// The operations of a program (epilogue/program.def) on one element, by their names. Each rounds
// once, as scaled_mm/reference/program.py says.
#pragma once

#include "cuda/epilogue/finish.cuh"

namespace scaled_mm::cuda::compiled {

__device__ inline int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }
__device__ inline uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }

__device__ inline int32_t add_int(int32_t x, int32_t y) { return wrapped(bits(x) + bits(y)); }
__device__ inline int32_t sub_int(int32_t x, int32_t y) { return wrapped(bits(x) - bits(y)); }
__device__ inline int32_t mul_int(int32_t x, int32_t y) { return wrapped(bits(x) * bits(y)); }
__device__ inline int32_t neg_int(int32_t x) { return wrapped(0u - bits(x)); }
__device__ inline int32_t abs_int(int32_t x) { return x < 0 ? neg_int(x) : x; }
__device__ inline int32_t min_int(int32_t x, int32_t y) { return x < y ? x : y; }
__device__ inline int32_t max_int(int32_t x, int32_t y) { return x > y ? x : y; }
__device__ inline bool less_int(int32_t x, int32_t y) { return x < y; }
__device__ inline bool at_most_int(int32_t x, int32_t y) { return x <= y; }
__device__ inline bool equal_int(int32_t x, int32_t y) { return x == y; }
__device__ inline int32_t where_int(bool c, int32_t x, int32_t y) { return c ? x : y; }
__device__ inline float to_float(int32_t x) { return __int2float_rn(x); }
__device__ inline int32_t to_int(float x) { return x == x ? __float2int_rn(x) : 0; }
__device__ inline float add(float x, float y) { return __fadd_rn(x, y); }
__device__ inline float sub(float x, float y) { return __fsub_rn(x, y); }
__device__ inline float mul(float x, float y) { return __fmul_rn(x, y); }
__device__ inline float div(float x, float y) { return __fdiv_rn(x, y); }
__device__ inline float fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
__device__ inline float neg(float x) { return __uint_as_float(__float_as_uint(x) ^ 0x80000000u); }
__device__ inline float abs(float x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffffu); }
__device__ inline float min(float x, float y) { return x < y || x != x ? x : y; }
__device__ inline float max(float x, float y) { return x > y || x != x ? x : y; }
__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline bool less(float x, float y) { return x < y; }
__device__ inline bool at_most(float x, float y) { return x <= y; }
__device__ inline bool equal(float x, float y) { return x == y; }
__device__ inline float where(bool c, float x, float y) { return c ? x : y; }
__device__ inline float relu(float x) { return functions::relu<FunctionOps>(x); }
__device__ inline float silu(float x) { return functions::silu<FunctionOps>(x); }
__device__ inline float gelu(float x) { return functions::gelu<FunctionOps>(x); }
__device__ inline float gelu_tanh(float x) { return functions::gelu_tanh<FunctionOps>(x); }
__device__ inline float exp(float x) { return functions::exp<FunctionOps>(x); }
__device__ inline float erf(float x) { return functions::erf<FunctionOps>(x); }
__device__ inline float sigmoid(float x) { return functions::sigmoid<FunctionOps>(x); }
__device__ inline float tanh(float x) { return functions::tanh<FunctionOps>(x); }

template <DType dtype>
__device__ inline float through(float x) {
  return Format<dtype>::widen(Format<dtype>::narrow(x, 0.0f), 0);
}
__device__ inline float to_bfloat16(float x) { return through<DType::bfloat16>(x); }
__device__ inline float to_float16(float x) { return through<DType::float16>(x); }

__device__ inline int32_t quantized(float x, float scale, int32_t azp, bool symmetric) {
  const Quantizer by = quantizer_given(scale, azp, symmetric);
  if (!by.is_quick) return by.exact(x);
  return min_int(max_int(by.quick_limited(x), -128), 127);
}
__device__ inline int32_t to_int8(float x, float scale) { return quantized(x, scale, 0, true); }
__device__ inline int32_t to_int8_azp(float x, float scale, int32_t azp) {
  return quantized(x, scale, azp, false);
}
__device__ inline int32_t to_e4m3(float x, float scale) {
  return static_cast<int32_t>(pack_e4m3(within_e4m3(mul(x, __frcp_rn(scale))), 0.0f) & 0xff);
}

}  // namespace scaled_mm::cuda::compiled
