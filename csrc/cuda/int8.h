// An int8 product, and its factors as kernels read them.
#pragma once

#include "cuda/common/alignment.h"

namespace scaled_mm::cuda {

// B^T, whose rows are the weight's columns.
inline Matrix<const int8_t> transposed(const Weight& b) {
  if (b.packed) return {reinterpret_cast<const int8_t*>(b.packed), packed_stride(b.k), 1};
  return {b.plain.data, b.plain.col_stride, b.plain.row_stride};
}

// A, and B column by column, as aligned_rows has them.
inline void align_factors(Int8Problem& p, const Scope& scope) {
  const int64_t n = p.size.n, k = p.size.k;
  const auto* const packed = reinterpret_cast<const int8_t*>(p.b.packed);
  p.a = aligned_rows(p.a, p.size.m, k, scope);
  const Matrix<const int8_t> columns = aligned_rows(transposed(p.b), n, k, scope);
  p.b = {.k = k,
         .n = n,
         .plain = {columns.data, 1, columns.row_stride},
         .settled = p.b.settled && columns.data == packed};  // a copy was written a moment ago
}

// Launches the kernel chosen for a product of at least one row and column.
void multiply(Int8Problem& p, const Scope& scope);

// D = epilogue(the sum of the slices): partials is int32 [slices, M, N], the products of slices of
// K.
void finish_partials(const int32_t* partials, int slices, const Int8Problem& p, const Scope& scope);

}  // namespace scaled_mm::cuda
