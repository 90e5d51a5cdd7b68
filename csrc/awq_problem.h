// The watershed of the int4 ops: what problem.h is to the int8 ones.
#pragma once

#include "problem.h"

namespace scaled_mm {

// An AWQ weight W [K, N] = (q - z) * s, 4-bit q and z eight to a word: nibble i of word c belongs
// to column 8 c + {0, 2, 4, 6, 1, 3, 5, 7}[i] (docs/lowbit.md). `group` rows share a row of s and
// z. Rows may lie apart; the elements of a row lie side by side.
struct AwqWeight {
  int64_t k = 0;
  int64_t n = 0;                             // a multiple of 8
  int64_t group = 0;                         // rows of a group; divides k
  Matrix<const uint32_t> q;                  // [K, N / 8]
  Matrix<const uint32_t> zeros;              // [K / group, N / 8]
  Matrix<const uint16_t> scales;             // [K / group, N]
  ScalarType dtype = ScalarType::Undefined;  // of the scales and of W: Half or BFloat16
};

// D [M, N] = X [M, K] W [K, N] + bias [N]; without X, D is W itself. D is row-major without gaps, X
// and D are of W's dtype, a bias is of that dtype or float32.
struct AwqProblem {
  int64_t m = 0;
  Matrix<const uint16_t> x;
  AwqWeight w;
  Vector bias;
  uint16_t* d = nullptr;
};

// outputs[0] is D in both.
Checked<AwqProblem> check_awq_dequantize(const Tensor& qweight, const Tensor& scales,
                                         const Tensor& qzeros);
Checked<AwqProblem> check_awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                                   const Tensor& qzeros, const std::optional<Tensor>& bias);

}  // namespace scaled_mm
