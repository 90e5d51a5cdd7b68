#include "cuda/sm89/arch.h"

#include "cuda/mma_sync/kernels.h"
