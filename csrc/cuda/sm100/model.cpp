#include "cuda/sm100/arch.h"

#include "cuda/mma_sync/kernels.h"
