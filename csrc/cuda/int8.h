// The weight of an int8 product as kernels read it.
#pragma once

#include "cuda/common/relayout.h"
#include "problems/int8.h"

namespace scaled_mm::cuda {

// B^T, whose rows are the weight's columns.
inline Matrix<const int8_t> transposed(const Weight& b) {
  if (b.packed) return {reinterpret_cast<const int8_t*>(b.packed), packed_stride(b.k), 1};
  return {b.plain.data, b.plain.col_stride, b.plain.row_stride};
}

}  // namespace scaled_mm::cuda
