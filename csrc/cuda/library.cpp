// What the CUDA library tells of itself.
#include <torch/csrc/stable/library.h>

#include "dispatch/library.h"
#include "ops/namespace.h"

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) { scaled_mm::register_kernels(ops); }
