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
