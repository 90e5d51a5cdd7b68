// Stands for CUDA's header.
#pragma once

#include "block.h"

#define __noinline__

using cudaStream_t = void*;

struct float2 {
  float x, y;
};
struct int2 {
  int x, y;
};
struct uint2 {
  uint32_t x, y;
};
struct float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
inline int __dp4a(int x, int y, int sum) {
  for (int i = 0; i < 4; ++i) sum += int8_t(x >> 8 * i) * int8_t(y >> 8 * i);
  return sum;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, int shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift % 32);
}
