// Blackwell for desks (RTX 50, RTX PRO, 12.0; GB10, 12.1): the kinds of its kernels and their
// tables. No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm120 {

constexpr bool serves(int capability) { return capability / 10 == 12; }

inline constexpr mma_sync::Gpus kGpus = {serves, "12.x", true};

}  // namespace scaled_mm::cuda::sm120

#define SCALED_MM_ARCH sm120
#include "cuda/mma_sync/tables.h"
