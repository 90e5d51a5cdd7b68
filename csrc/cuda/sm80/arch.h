// Ampere (A100; A10 and RTX 30, 8.6; Orin, 8.7): the kinds of its kernels and their tables. No CUDA
// here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm80 {

// Newer devices run the folder's code where it was built with PTX; where there is a folder of their
// own, that one serves them. What 8.6 has no shared memory for, a line refuses.
constexpr bool serves(int capability) { return capability >= 80; }

inline constexpr mma_sync::Gpus kGpus = {serves, "8.0 or newer", true};

}  // namespace scaled_mm::cuda::sm80

#define SCALED_MM_ARCH sm80
#include "cuda/mma_sync/tables.h"
