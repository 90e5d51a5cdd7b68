// Of CUDA's header, what formats.cuh takes from it.
#pragma once

#include "block.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  uint16_t low, high;
};

inline uint16_t half_bits(float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); }
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline float __half2float(__half x) { return std::bit_cast<_Float16>(x.bits); }
inline __half2 __floats2half2_rn(float x, float y) { return {half_bits(x), half_bits(y)}; }
