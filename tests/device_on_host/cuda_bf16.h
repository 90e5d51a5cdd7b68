// Of CUDA's header, what formats.cuh takes from it.
#pragma once

#include "block.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  uint16_t low, high;
};

inline uint16_t bfloat16_bits(float x) {
  if (x != x) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {bfloat16_bits(x), bfloat16_bits(y)};
}
