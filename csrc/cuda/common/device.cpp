#include "cuda/common/device.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "refuse.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kLeastCapability = 75;  // of GPUs that there are sources for

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

// None of the calls makes a context.
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
  device.arch = find_arch(device.capability);
  device.launches_early = device.arch && device.arch->number() >= 90;
  return device;
}

const Device& facts(int index) {
  thread_local const Device* last = nullptr;
  if (last && last->index == index) return *last;
  static std::mutex mutex;
  static std::map<int, Device> known;  // references stay good
  const std::lock_guard lock(mutex);
  const auto found = known.find(index);
  last = &(found != known.end() ? found : known.emplace(index, ask(index)).first)->second;
  return *last;
}

// Torch's, which leaves alone a device that has no context when it is put back.
template <class Guard>
std::optional<Guard> guard_for(int index) {
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  return current == index ? std::nullopt : std::optional<Guard>(std::in_place, index);
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
    : guard_(guard_for<Guard>(on.get_device_index())),
      device(facts(on.get_device_index())),
      stream(current_stream(on.get_device_index())),
      on_(on) {
  if (!device.arch) {
    const std::string is = cat(device.capability / 10, ".", device.capability % 10);
    throw std::runtime_error(
        cat("scaled_mm has no kernels for cuda:", device.index, " (compute capability ", is,
            "); built for: ", arch_names(),
            device.capability < kLeastCapability
                ? ""
                : cat("; build them with TORCH_CUDA_ARCH_LIST=", is, " make cuda")));
  }
}

void* Scope::allocate(int64_t bytes) const {
  if (bytes == 0) return nullptr;
  return workspace_.emplace_back(new_empty(on_, {bytes}, ScalarType::Byte)).mutable_data_ptr();
}

namespace {

auto find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error(
        "the CUDA driver has no cuTensorMapEncodeTiled: it is older than 12.0");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encode = find_encoder();
  return encode;
}

}  // namespace scaled_mm::cuda
