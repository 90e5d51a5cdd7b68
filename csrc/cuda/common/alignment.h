// Operands as the kernels' wide loads and stores want them.
#pragma once

#include "cuda/common/device.h"
#include "cuda/common/relayout.h"
#include "integers.h"
#include "problems/int8.h"

namespace scaled_mm::cuda {

// The rows of x [rows, cols], elements side by side, beginning at multiples of 16 bytes: x itself,
// or a copy that the scope keeps. Elements wider than a byte lie side by side already.
template <class T>
Matrix<const T> aligned_rows(const Matrix<const T>& x, int64_t rows, int64_t cols,
                             const Scope& scope) {
  constexpr int64_t kSize = sizeof(T);
  const int64_t stride = round_up(kSize * cols, 16);  // bytes
  const bool side_by_side = x.col_stride == 1 || cols == 1;
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       (rows == 1 || (kSize * x.row_stride % 16 == 0 && x.row_stride >= cols));
  if (cols == 0 || (side_by_side && aligned)) {
    return {x.data, rows == 1 ? stride / kSize : x.row_stride, 1};
  }
  auto* copy = scope.allocate<int8_t>(rows * stride);
  relayout({reinterpret_cast<const int8_t*>(x.data), kSize * x.row_stride,
            kSize == 1 ? x.col_stride : 1},
           rows, kSize * cols, copy, stride, scope.stream);
  return {reinterpret_cast<const T*>(copy), stride / kSize, 1};
}

// launch(d, ldd), where rows of D, ldd elements apart, begin at multiples of 16 bytes: D itself, or
// memory of the scope that is copied to D afterwards.
template <class Launch>
void with_aligned_output(const Int8Problem& p, const Scope& scope, const Launch& launch) {
  const int64_t bytes = p.size.out_bytes(), columns = p.size.out_columns();
  const int64_t aligned = round_up(columns, 16 / bytes);
  if (aligned == columns) return launch(p.d, columns);
  void* const padded = scope.allocate(p.size.m * aligned * bytes);
  launch(padded, aligned);
  copy_rows(padded, aligned * bytes, p.d, columns * bytes, p.size.m, scope.stream);
}

}  // namespace scaled_mm::cuda
