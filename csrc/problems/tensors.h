// From tensors to plain structs: what the problems of all op families share. A problem holds
// pointers, sizes and strides; kernels trust it and check nothing.
//
// This is also the one place that allocates: new_empty for an output or for scratch memory,
// row_major_copy for an operand whose strides no kernel follows.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "dtypes.h"
#include "epilogue/expr.h"

namespace scaled_mm {

using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;
using torch::stable::Tensor;

// A matrix whose element (i, j) is data[i * row_stride + j * col_stride]; strides in elements.
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

// A problem, the tensors that it writes, and the copies of arguments that its pointers lead to.
// Most lead into the arguments themselves, which outlive the call.
template <class P>
struct Checked {
  P problem;
  std::vector<Tensor> outputs;
  std::vector<Tensor> inputs;
};

// There is no memory for a tensor. It reaches Python as MemoryError (the stable ABI has no
// exception of torch's own); the public functions raise torch.OutOfMemoryError for it.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Whether t is of that dtype, and which of dtypes.def it has: Tensor::scalar_type() tries all that
// there are.
bool has_dtype(const Tensor& t, ScalarType dtype);
std::optional<DType> dtype_of(const Tensor& t);

// A new row-major tensor on the device of `like`, uninitialised. Throws OutOfMemory.
Tensor new_empty(const Tensor& like, Sizes sizes, ScalarType dtype);

// A row-major copy of t. Throws OutOfMemory.
Tensor row_major_copy(const Tensor& t);

// The product of all sizes but the last.
int64_t count_rows(const Tensor& t);

// t with every dimension but the last folded into one, [..., K] -> [M, K]: t itself where its
// strides allow it, else a copy that `copies` keeps alive.
Matrix<const void> fold_rows(const Tensor& t, std::vector<Tensor>& copies);

template <class T>
Matrix<const T> fold_rows(const Tensor& t, std::vector<Tensor>& copies) {
  const Matrix<const void> folded = fold_rows(t, copies);
  return {static_cast<const T*>(folded.data), folded.row_stride, folded.col_stride};
}

// A float or int32 operand of an epilogue: t's elements in order along the axis, or over all of D.
// A copy is made where no strides lead through them, or where the rows of a matrix have gaps
// between their elements.
EpilogueOperand operand_along(epilogue::Axis axis, const Tensor& t, std::vector<Tensor>& copies);

}  // namespace scaled_mm
