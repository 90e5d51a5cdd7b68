#pragma once

#include <cuda.h>

#include <cstdint>

namespace scaled_mm::cuda::sm90 {

// TMA's map of a row-major int8 matrix [rows, cols] in boxes of box_rows x box_cols bytes, 128 or
// 64, swizzled by as many; what a box has outside the matrix reads as 0. data and row_stride:
// multiples of 16.
CUtensorMap tensor_map(const int8_t* data, int64_t rows, int64_t cols, int64_t row_stride,
                       int box_rows, int box_cols = 128);

}  // namespace scaled_mm::cuda::sm90
