#include "cuda/common/driver.h"

#include <stdexcept>

#include "cuda/common/device.h"

namespace scaled_mm::cuda {
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
