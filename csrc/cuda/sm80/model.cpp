#include "cuda/sm80/arch.h"

#include "cuda/mma_sync/kernels.h"
