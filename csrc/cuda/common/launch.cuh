// Launches, and programmatic dependent launch: a kernel may begin while the one before it on the
// stream ends, and waits for its results itself. Devices before compute capability 9.0 have no such
// thing: there the device functions are nothing, and launches are plain.
#pragma once

#include "cuda/common/device.h"

namespace scaled_mm::cuda {

// The next kernel may start now.
__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// What the kernel before has written is there from here on; nothing is read or written earlier. Nor
// is it read by ld.global.nc (__ldg): that is for memory that nobody writes while the kernel runs,
// and compilers move it past this. __ldca they do not.
__device__ inline void wait_for_dependencies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class = void>
__global__ void nothing() {}

// An ordinary, empty launch. It begins when all that the stream was given before has ended and is
// visible to the device; what the stream is given after it begins later still. So a kernel launched
// early may read at once, without wait_for_dependencies, what was written before this
// (docs/tuning.md, "Early weights").
inline void settle(const Scope& scope) {
  if (scope.device.capability < 90) return;  // where nothing is launched early
  nothing<><<<1, 1, 0, scope.stream>>>();
  check(cudaGetLastError(), "settle");
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int shared_bytes = 0;
  dim3 cluster = 1;  // blocks
};

// Launches a kernel that calls wait_for_dependencies before it touches memory, settled memory that
// it reads excepted.
struct LaunchOn {
  bool early;  // Device::launches_early
  cudaStream_t stream;

  LaunchOn(bool early, cudaStream_t stream) : early(early), stream(stream) {}
  LaunchOn(const Scope& scope) : early(scope.device.launches_early), stream(scope.stream) {}
};
template <class... Params, class... Args>
void launch_early(void (*kernel)(Params...), const LaunchShape& shape, const LaunchOn& on,
                  const Args&... args) {
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (on.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster.x * shape.cluster.y > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster.x, shape.cluster.y, 1};
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = shape.grid;
  launch.blockDim = shape.block;
  launch.dynamicSmemBytes = shape.shared_bytes;
  launch.stream = on.stream;
  launch.attrs = attributes;
  launch.numAttrs = count;
  check(cudaLaunchKernelEx(&launch, kernel, Params(args)...), "cudaLaunchKernelEx");
}

// Shared memory, its fixed 1 KiB with it, of a block of the small kernels between products. A
// product leaves room for two on a multiprocessor, so that the next small kernel begins beside it;
// with room for one that is often late.
constexpr int kSmallBlock = 6 << 10;

// Has a small kernel run on multiprocessors as products have them set up, with all their memory
// shared: they change over only when they are empty. Once for each device.
template <auto kKernel>
void run_beside_products(const Device& device) {
  static OncePerDevice once;
  once(device.index, [] {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          "cudaFuncSetAttribute");
  });
}

// Lets a kernel have all the shared memory that a block may ask for; once for each device.
template <auto kKernel>
void allow_all_shared_memory(const Device& device) {
  static OncePerDevice once;
  once(device.index, [&] {
    cudaFuncAttributes has;
    check(cudaFuncGetAttributes(&has, kKernel), "cudaFuncGetAttributes");
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               device.shared_memory - static_cast<int>(has.sharedSizeBytes)),
          "cudaFuncSetAttribute");
  });
}

}  // namespace scaled_mm::cuda
