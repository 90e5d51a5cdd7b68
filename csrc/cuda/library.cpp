// What the CUDA library tells of itself.
#include <torch/csrc/stable/library.h>

#include "dispatch/library.h"
#include "ops/namespace.h"

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("_archs", TORCH_BOX(&scaled_mm::list_archs));
  ops.impl("_arch_of", TORCH_BOX(&scaled_mm::arch_of));
  ops.impl("_kernels", TORCH_BOX(&scaled_mm::list_kernels));
  ops.impl("_force_kernels", TORCH_BOX(&scaled_mm::force_kernels));
  ops.impl("_tune", TORCH_BOX(&scaled_mm::tune));
  ops.impl("_untune", TORCH_BOX(&scaled_mm::untune));
}
