#include "cuda/sm75/arch.h"

#include "cuda/mma_sync/kernels.h"
