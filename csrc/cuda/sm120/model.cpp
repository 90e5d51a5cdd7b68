#include "cuda/sm120/arch.h"

#include "cuda/mma_sync/kernels.h"
