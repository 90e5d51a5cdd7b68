// Programmatic dependent launch.
#pragma once

#include "cuda/device.h"

namespace scaled_mm::cuda {

// Launches a kernel that may begin while the one before it ends, and waits for its results itself
// (griddepcontrol.wait).
template <class... Params, class... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, int threads, int shared,
                  cudaStream_t stream, Args... args) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = grid;
  launch.blockDim = dim3(threads);
  launch.dynamicSmemBytes = shared;
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  check(cudaLaunchKernelEx(&launch, kernel, args...), "cudaLaunchKernelEx");
}

}  // namespace scaled_mm::cuda
