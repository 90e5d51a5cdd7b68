// The lowbit kernels that every arch uses.
#pragma once

#include "cuda/common/device.h"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// W [K, N] to `out`, in rows of N rounded up to a multiple of 8, 16-byte aligned. Rows of the
// weight's scales and of float zero points begin at multiples of 16 bytes, those of eight-bit words
// at multiples of 8. keep: W is read soon, and should stay in L2.
void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope);

// p.x as the kernels want it: its columns in the order of W's rows, scaled, rounded to 16 bits;
// rows that begin at multiples of 16 bytes. p.x itself where it is that, or memory of the scope.
Matrix<const uint16_t> arrange_tokens(const LowbitProblem& p, const Scope& scope);

// D where K is 0: what the ending makes of sums of 0.
void fill(const LowbitProblem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
