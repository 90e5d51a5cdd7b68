// Functions of the CUDA driver, found once through the runtime: nothing links against libcuda.
#pragma once

#include <cuda.h>

namespace scaled_mm::cuda {

// Throws std::runtime_error where the driver is too old to have it.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

}  // namespace scaled_mm::cuda
