#include "cuda/common/device.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <deque>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>

#include "cuda/common/probe.h"
#include "refuse.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kLeastCapability = 75;  // of GPUs that there are sources for

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

Device ask(int index) {
  Device device;
  device.index = index;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  DriverFacts facts{.name = properties.name};
  facts.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                     attribute(cudaDevAttrComputeCapabilityMinor, index);
  facts.sms = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_memory = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  // kHz, two transfers a clock; bits
  facts.bytes_per_us = 2e-3 * attribute(cudaDevAttrMemoryClockRate, index) *
                       attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;
  facts.mhz = 1e-3 * attribute(cudaDevAttrClockRate, index);
  static_cast<Machine&>(device) = machine_of(facts);
  const int code = common_code(index);
  if (code > 0) device.arch = find_arch(device.capability);
  device.launches_early = device.capability >= 90 && code >= 90;
  return device;
}

const Device& facts(int index) {
  static std::mutex mutex;
  static std::deque<Device> known;  // a deque: references stay good
  const std::lock_guard lock(mutex);
  while (static_cast<int>(known.size()) <= index) {
    known.push_back(ask(static_cast<int>(known.size())));
  }
  return known[index];
}

cudaStream_t current_stream(int index) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would report it again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

void must_fit(const char* argument, const char* what, int64_t size) {
  if (size > std::numeric_limits<int32_t>::max()) {
    refuse(argument, cat("have fewer than 2^31 ", what, " on CUDA"), std::to_string(size));
  }
}

Scope::Scope(const Tensor& on)
    : device(facts(on.get_device_index())), stream(current_stream(on.get_device_index())), on_(on) {
  if (!device.arch) {
    const std::string is = cat(device.capability / 10, ".", device.capability % 10);
    throw std::runtime_error(
        cat("scaled_mm has no kernels for cuda:", device.index, " (compute capability ", is,
            "); built for: ", arch_names(),
            device.capability < kLeastCapability
                ? ""
                : cat("; build them with TORCH_CUDA_ARCH_LIST=", is, " make cuda")));
  }
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device.index) return;
  check(cudaSetDevice(device.index), "cudaSetDevice");
  previous_ = current;
}

Scope::~Scope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

void* Scope::allocate(int64_t bytes) const {
  if (bytes == 0) return nullptr;
  return workspace_.emplace_back(new_empty(on_, {bytes}, ScalarType::Byte)).mutable_data_ptr();
}

}  // namespace scaled_mm::cuda
