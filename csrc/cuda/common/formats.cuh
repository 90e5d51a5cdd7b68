// What the bits of the floating-point dtypes mean: floats as they come, as float32, and back. Each
// function is exact or rounds once, to nearest even, subnormals kept.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "epilogue/expr.h"

namespace scaled_mm::cuda {

// A word of 32 bits holds kPerWord elements, the first in its low bits. widen(word, part): one of
// them as float32. narrow(x, y), for 16 bits: both rounded, as a word.
template <DType>
struct Format;

template <>
struct Format<DType::float32> {
  using storage = uint32_t;
  static constexpr int kPerWord = 1;
  static __device__ float widen(uint32_t word, int) { return __uint_as_float(word); }
};

template <>
struct Format<DType::float16> {
  using storage = uint16_t;
  static constexpr int kPerWord = 2;
  static __device__ float widen(uint32_t word, int part) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(part ? word >> 16 : word)));
  }
  static __device__ uint32_t narrow(float x, float y) {
    const __half2 pair = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct Format<DType::bfloat16> {
  using storage = uint16_t;
  static constexpr int kPerWord = 2;
  static __device__ float widen(uint32_t word, int part) {
    return __uint_as_float(part ? word & 0xffff0000u : word << 16);
  }
  static __device__ uint32_t narrow(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// CUDA's type of a 16-bit dtype.
template <DType>
struct Half16;
template <>
struct Half16<DType::float16> {
  using type = __half;
};
template <>
struct Half16<DType::bfloat16> {
  using type = __nv_bfloat16;
};
template <class>
struct DTypeOf;
template <>
struct DTypeOf<__half> : std::integral_constant<DType, DType::float16> {};
template <>
struct DTypeOf<__nv_bfloat16> : std::integral_constant<DType, DType::bfloat16> {};

// Element (m, n) of a float operand, widened.
__device__ inline float load_float(const EpilogueOperand& operand, int64_t m, int64_t n) {
  const int64_t at = m * operand.row_stride + n * operand.col_stride;
  return with_dtype(operand.dtype, [&](auto dtype) {
    using Of = Format<decltype(dtype)::value>;
    return Of::widen(static_cast<const typename Of::storage*>(operand.data)[at], 0);
  });
}

}  // namespace scaled_mm::cuda
