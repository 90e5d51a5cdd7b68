// The lowbit kernels that every arch uses.
#pragma once

#include "cuda/common/device.h"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// W [K, N] row-major, 16-byte aligned; rows of w.scales, where it has them, are 16-byte aligned
// too. keep: it is read
// soon, and should stay in L2.
void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope);

// D where K is 0: the bias in every row, or zeros.
void fill_with_bias(const LowbitProblem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
