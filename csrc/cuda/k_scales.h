// Products with scales along K on CUDA: what every arch has.
#pragma once

#include "cuda/common/device.h"
#include "problems/k_scales.h"

namespace scaled_mm::cuda {

// scaled_mm in blocks (int8.cpp registers it).
void multiply_blocks(Checked<KScalesProblem>& checked);

// The tokens of a weight of 4 bits as rows of whole units, zeros behind K: their columns in the
// order of the weight's rows, and each 16 as the lanes of the tensor cores have rows of units
// (k_scales/tile.cuh). Memory of the scope.
Matrix<const int8_t> arrange_columns(const KScalesProblem& p, const Scope& scope);

// D where K is 0: what the ending makes of sums of 0.
void end_nothing(const KScalesProblem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
