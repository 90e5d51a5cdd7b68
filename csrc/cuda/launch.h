// What a row of a tuning table can be asked for. Its kernels are compiled one row to a file, and
// each such file specialises this for its row.
#pragma once

#include "cuda/device.h"
#include "cuda/product.h"

namespace scaled_mm::cuda {

template <auto kRow>
struct Launch {
  static void run(const Product& p, const Device& device, cudaStream_t stream);
};

}  // namespace scaled_mm::cuda
