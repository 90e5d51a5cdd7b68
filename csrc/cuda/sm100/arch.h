// Blackwell for data centres (B200, 10.0; B300, 10.3): the kinds of its kernels and their tables.
// No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm100 {

// mma.sync, which these devices have kept; their own tcgen05 is not used.
constexpr bool serves(int capability) { return capability / 10 == 10; }

inline constexpr mma_sync::Gpus kGpus = {serves, "10.x", true};

}  // namespace scaled_mm::cuda::sm100

#define SCALED_MM_ARCH sm100
#include "cuda/mma_sync/tables.h"
