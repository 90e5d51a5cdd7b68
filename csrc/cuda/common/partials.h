#pragma once

#include "cuda/common/device.h"
#include "problems/int8.h"

namespace scaled_mm::cuda {

// D = epilogue(the sum of the slices): partials is int32 [slices, M, N], the products of slices of
// K.
void finish_partials(const int32_t* partials, int slices, const Int8Problem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
