// The kernels for products with scales along K, beside those of an Arch.
#pragma once

#include "dispatch/kernel.h"
#include "problems/k_scales.h"

namespace scaled_mm {

template <>
std::span<const Kernel<KScalesProblem>> kernels_of<KScalesProblem>(const Arch& arch);

}  // namespace scaled_mm
