// Products with scales along K on CUDA: what every arch has.
#pragma once

#include "cuda/common/device.h"
#include "problems/k_scales.h"

namespace scaled_mm::cuda {

// scaled_mm in blocks (int8.cpp registers it).
void multiply_blocks(Checked<KScalesProblem>& checked);

// The tokens of a weight of 4 bits as rows of whole units, zeros behind K: their columns in the
// order of the weight's rows, and each 16 as the lanes of the tensor cores have rows of units
// (common/k_scales_tile.cuh). Memory of the scope.
Matrix<const int8_t> arrange_columns(const KScalesProblem& p, const Scope& scope);

// By the kernel that all GPUs have. Rows of A are aligned to 16 bytes, as those of B's transpose in
// blocks; of a weight of 4 bits A is arranged.
void multiply_groups(const KScalesProblem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
