// The lowbit kernels that every arch uses.
#pragma once

#include "cuda/common/device.h"
#include "cuda/common/relayout.h"
#include "integers.h"
#include "problems/mixed_groups.h"

namespace scaled_mm::cuda {

// W [K, N] to `out`, in rows of N rounded up to a multiple of 8, 16-byte aligned. Rows of the
// weight's scales and of float zero points begin at multiples of 16 bytes, those of eight-bit words
// at multiples of 8. keep: W is read soon, and should stay in L2.
void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope);

// p.x as the kernels want it: its columns in the order of W's rows, scaled, rounded to 16 bits;
// rows that begin at multiples of 16 bytes. p.x itself where it is that, or memory of the scope.
Matrix<const uint16_t> arrange_tokens(const LowbitProblem& p, const Scope& scope);

// The residual as the kernels read it, by vectors: p.residual itself, or memory of the scope.
void align_residual(LowbitProblem& p, const Scope& scope);

// What the kernels write has rows of whole vectors: launch(d, ldd) writes those, into D itself or
// into memory that is copied to D.
template <class Launch>
void with_padded_rows(uint16_t* d, int64_t rows, int64_t columns, const Scope& scope,
                      const Launch& launch) {
  const int64_t padded = round_up(columns, 8);
  if (padded == columns) return launch(d, columns);
  auto* const wide = scope.allocate<uint16_t>(rows * padded);
  launch(wide, padded);
  copy_rows(wide, 2 * padded, d, 2 * columns, rows, scope.stream);
}

// D where K is 0: what the ending makes of sums of 0.
void fill(const LowbitProblem& p, const Scope& scope);

// Of a grouped product (mixed_groups.cu): X' of all rows of D, sorted, each in the order of its
// expert's weight where there is one.
Matrix<const uint16_t> arrange_rows(const GroupedLowbitProblem& p, const Scope& scope);

// A grouped product by a weight in words, of any groups, and by one without rows: slow.
void multiply_words(const GroupedLowbitProblem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
