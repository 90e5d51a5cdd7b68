// The real header, but for loads from other blocks of a cluster.
#pragma once

#include "hopper.h"

#define load_remote load_remote_by_assembly
#include_next "cuda/sm90/wgmma.cuh"
#undef load_remote

namespace scaled_mm::cuda::sm90 {

template <class Vector>
Vector load_remote(uint32_t address, int rank) {
  Vector x;
  std::memcpy(&x, played_memory[rank] + address, sizeof(x));
  return x;
}

}  // namespace scaled_mm::cuda::sm90
