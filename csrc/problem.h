// The watershed. Tensors come in here once, every question about them is asked here once, and what
// goes on is a plain struct: pointers, sizes, strides. Kernels trust it and check nothing.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "epilogue/expr.h"

namespace scaled_mm {

using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The largest K for which no sum of products of any int8 values leaves int32
// (131072 * 128 * 128 = 2^31 is the first that does).
inline constexpr int64_t kMaxK = 131071;

// A matrix whose element (i, j) is data[i * row_stride + j * col_stride]; strides in elements.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

// An epilogue operand: element i is data[i * stride]. A stride of 0 is one element for all, an
// absent operand has no data. Elements are the leaf's value type (epilogue/expr.h), except a bias,
// which may also be in the output's dtype.
struct Vector {
  const void* data = nullptr;
  ScalarType dtype = ScalarType::Undefined;
  int64_t stride = 0;
};

// The weight B [K, N]: plain int8 with any strides, or a buffer that pack_weight_int8 made.
struct Weight {
  int64_t k = 0;
  int64_t n = 0;
  Matrix<const int8_t> plain;       // row index k, column index n
  const uint8_t* packed = nullptr;  // when set, plain is empty
};

// D [M, N] = epilogue(A [M, K] B [K, N]). D is row-major without gaps.
struct Problem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Matrix<const int8_t> a;
  Weight b;
  Vector operands[kNumOperands];
  OperandSet given = 0;  // which operands the caller gave
  void* d = nullptr;
  ScalarType out_dtype = ScalarType::Undefined;  // of the epilogues, or Int for int8_mm
};

// What quantize_int8 reads and writes. Rows are tokens; per tensor they share one scale.
struct QuantizeProblem {
  int64_t rows = 0;
  int64_t cols = 0;
  Matrix<const void> x;
  ScalarType x_dtype = ScalarType::Undefined;
  bool symmetric = true;
  bool per_token = true;
  bool given = false;      // static: scale (and azp) are inputs; otherwise they are outputs
  int8_t* q = nullptr;     // row-major without gaps
  float* scale = nullptr;  // element r * scale_stride
  int32_t* azp = nullptr;  // element r * azp_stride; absent when symmetric
  int64_t scale_stride = 0;
  int64_t azp_stride = 0;
};

// A problem, the tensors that it writes, and the copies of arguments that its pointers lead to.
// Most lead into the arguments themselves, which outlive the call.
template <class P>
struct Checked {
  P problem;
  std::vector<Tensor> outputs;
  std::vector<Tensor> inputs;
};

using Shape = std::optional<std::vector<int64_t>>;

// Each refuses with an error or returns a problem that a kernel can run as it stands. `b_shape` is
// the shape (K, N) of the weight when b is a packed buffer, and absent when b is the weight itself.
Checked<Problem> check_scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                 const Tensor& scale_b, const std::optional<Tensor>& bias,
                                 const std::optional<Tensor>& azp,
                                 const std::optional<Tensor>& azp_adj,
                                 const std::optional<Tensor>& azp_with_adj, ScalarType out_dtype,
                                 const Shape& b_shape);
Checked<Problem> check_int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape);
// outputs[0] is the int32 [1, N] row to fill; azp is what its sums are multiplied by, or absent.
struct ColumnSums {
  Weight b;
  const int32_t* azp = nullptr;
  int32_t* out = nullptr;
};
Checked<ColumnSums> check_azp_adj(const Tensor& b, const std::optional<Tensor>& azp,
                                  const Shape& b_shape);
// outputs[0] is the uint8 buffer of packed_weight_bytes(K, N) bytes to fill.
Checked<Weight> check_pack_weight(const Tensor& b);
// outputs: q, scale and (unless symmetric) azp.
Checked<QuantizeProblem> check_quantize(const Tensor& x, bool symmetric, bool per_token);
// outputs: q [N, K], scale [1, N] or [1, 1].
Checked<QuantizeProblem> check_quantize_weight(const Tensor& w, bool per_channel);
// outputs: q.
Checked<QuantizeProblem> check_quantize_static(const Tensor& x, const Tensor& scale,
                                               const std::optional<Tensor>& azp);

// A new row-major tensor on the device of `like`, uninitialised. Where there is no memory for it, a
// std::runtime_error that begins with "could not allocate".
Tensor new_empty(const Tensor& like, Sizes sizes, ScalarType dtype);

// Size of a packed weight; each backend has its own layout and defines it.
int64_t packed_weight_bytes(int64_t k, int64_t n);

}  // namespace scaled_mm
