// Ada (L4, L40S, RTX 40): the kinds of its kernels and their tables. No CUDA here: the CPU library
// reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm89 {

// Newer devices by PTX, as sm80's code.
constexpr bool serves(int capability) { return capability >= 89; }

inline constexpr mma_sync::Gpus kGpus = {serves, "8.9 or newer", true};

}  // namespace scaled_mm::cuda::sm89

#define SCALED_MM_ARCH sm89
#include "cuda/mma_sync/tables.h"
