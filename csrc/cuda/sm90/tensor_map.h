#pragma once

#include <cuda.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/common/device.h"

namespace scaled_mm::cuda::sm90 {

// TMA's map of a row-major int8 matrix [rows, cols] in boxes of box_rows x box_cols bytes, 128 or
// 64, swizzled by as many; what a box has outside the matrix reads as 0. data and row_stride:
// multiples of 16.
inline CUtensorMap tensor_map(const int8_t* data, int64_t rows, int64_t cols, int64_t row_stride,
                              int box_rows, int box_cols = 128) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const auto swizzle = box_cols == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  CUtensorMap map;
  const CUresult status =
      tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<int8_t*>(data), sizes,
                           strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: CUDA driver error " +
                             std::to_string(static_cast<int>(status)));
  }
  return map;
}

}  // namespace scaled_mm::cuda::sm90
