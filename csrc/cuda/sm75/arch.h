// Turing (T4, RTX 20): the kinds of its kernels and their tables. No CUDA here: the CPU library
// reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm75 {

// Newer devices run the folder's code where it was built with PTX; where there is a folder of their
// own, that one serves them.
constexpr bool serves(int capability) { return capability >= 75; }

inline constexpr mma_sync::Gpus kGpus = {serves, "7.5 or newer", false};

}  // namespace scaled_mm::cuda::sm75

#define SCALED_MM_ARCH sm75
#include "cuda/mma_sync/tables.h"
