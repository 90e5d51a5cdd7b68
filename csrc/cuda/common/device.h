// What the host code of every CUDA op needs of the device: its facts, asked once for each device;
// the scope of a call, in which the tensors' device is current and memory can be had; and how a
// status becomes an error.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "dispatch/kernel.h"
#include "problems/tensors.h"

namespace scaled_mm::cuda {

struct Device : Machine {
  int index = 0;
  int shared_memory = 0;       // bytes that one block may ask for
  const Arch* arch = nullptr;  // whose kernels it runs, or null
  // Whether kernels may start before the one before them ends: they must have been compiled for a
  // device that has the instruction to wait for it. sm80's PTX has not, on Hopper either.
  bool launches_early = false;
};

// Does something once for each device, where the device is current: a kernel's attributes are its
// own on every one.
class OncePerDevice {
 public:
  template <class F>
  void operator()(int device, F f) {
    if (device >= 64) return f();
    const uint64_t bit = uint64_t{1} << device;
    if (done_.load(std::memory_order_acquire) & bit) return;
    f();  // twice at the same time does no harm
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> done_ = 0;
};

// Throws std::runtime_error "<what>: <CUDA's text>" unless status is success.
void check(cudaError_t status, const char* what);

// Refuses an argument with 2^31 or more `what`: kernels count them in 32 bits.
void must_fit(const char* argument, const char* what, int64_t size);

// For the time of a call: the device of a tensor, made current if it is not (and put back after),
// and torch's current stream on it, on which all work goes. No other device is touched, which would
// take memory there for a context. Refuses a device that nothing was built for.
class Scope {
  using Guard = torch::stable::accelerator::DeviceGuard;
  std::optional<Guard> guard_;  // made first, gone last

 public:
  explicit Scope(const Tensor& on);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Device& device;
  const cudaStream_t stream;

  // Memory of the device until the call ends, from torch's allocator; null for 0 bytes. Throws
  // OutOfMemory.
  void* allocate(int64_t bytes) const;
  template <class T>
  T* allocate(int64_t count) const {
    return static_cast<T*>(allocate(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  const Tensor& on_;
  mutable std::vector<Tensor> workspace_;
};

// A function of the CUDA driver, found once through the runtime: nothing links against libcuda.
// Throws std::runtime_error where the driver is too old to have it.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

}  // namespace scaled_mm::cuda
