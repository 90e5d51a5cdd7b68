// The factors of an int8 product as kernels read them.
#pragma once

#include "cuda/common/alignment.h"

namespace scaled_mm::cuda {

// A, and B column by column, as aligned_rows has them.
inline void align_factors(Int8Problem& p, const Scope& scope) {
  const int64_t n = p.size.n, k = p.size.k;
  const auto* const packed = reinterpret_cast<const int8_t*>(p.b.packed);
  const Matrix<const int8_t>& plain = p.b.plain;
  const Matrix<const int8_t> transposed =
      packed ? Matrix<const int8_t>{packed, packed_stride(p.b.k), 1}
             : Matrix<const int8_t>{plain.data, plain.col_stride, plain.row_stride};
  p.a = aligned_rows(p.a, p.size.m, k, scope);
  const Matrix<const int8_t> columns = aligned_rows(transposed, n, k, scope);
  p.b = {.k = k,
         .n = n,
         .plain = {columns.data, 1, columns.row_stride},
         .settled = p.b.settled && columns.data == packed};  // a copy was written a moment ago
}

}  // namespace scaled_mm::cuda
