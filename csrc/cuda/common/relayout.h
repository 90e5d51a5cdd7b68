// Copies of matrices into the form that the product reads and writes: rows of int8 that TMA can
// read, and the packed weight, which is such a copy of the weight's transpose:
//
//   column 0     k = 0 1 2 ... K-1, then 0       packed_stride(K) bytes
//   column 1     k = 0 1 2 ... K-1, then 0
//   ...          N of them
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "integers.h"
#include "problems/tensors.h"

namespace scaled_mm::cuda {

// Bytes from row to row of a matrix of int8 with rows of `k` that is laid out for TMA.
inline int64_t packed_stride(int64_t k) { return std::max<int64_t>(16, round_up(k, 16)); }

// to[r * to_stride + c] = from(r, c) for c < cols, and 0 for cols <= c < to_stride. `to` is aligned
// to 16 bytes, to_stride is a multiple of 16 and not below cols; `from` is as it comes.
void relayout(const Matrix<const int8_t>& from, int64_t rows, int64_t cols, int8_t* to,
              int64_t to_stride, cudaStream_t stream);

// Rows of row_bytes that begin every from_pitch_bytes, one after another into `to`. `from` and its
// pitch are aligned to 16 bytes, `to` to 2.
void copy_rows(const void* from, int64_t from_pitch_bytes, void* to, int64_t row_bytes,
               int64_t rows, cudaStream_t stream);

}  // namespace scaled_mm::cuda
