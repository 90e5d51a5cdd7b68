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
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, int shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> shift % 32);
}
