// The rules that arguments of several ops share, and how values read in a message.
#pragma once

#include "problems/tensors.h"
#include "refuse.h"

namespace scaled_mm {

// How values read in a message.
std::string name(ScalarType dtype);
std::string shape_text(Sizes sizes);
std::string shape(const Tensor& t);
std::string device_text(const Tensor& t);

void must_be(const char* argument, const Tensor& t, ScalarType dtype);
void must_share_device(const char* argument, const Tensor& t, const char* other_name,
                       const Tensor& other);

// The dtype of t, which must be one of dtypes.def; or one of its 16-bit ones.
DType must_be_float(const char* argument, const Tensor& t);
DType must_be_16_bit_float(const char* argument, const Tensor& t);

// A float operand of a product, which may be in the output's dtype or in float32.
void must_be_float32_or(const char* argument, const Tensor& t, const char* whose, ScalarType dtype);

// A vector of the rows of a matrix [..., K] has shape [...] or [..., 1].
bool is_per_row(const Tensor& t, const Tensor& matrix);
std::string per_row_text(const Tensor& matrix);

// A vector of the columns of a matrix [..., N] has shape [N] or [1, N].
bool is_per_column(const Tensor& t, int64_t n);
std::string per_column_text(int64_t n);

// The tensor that an op writes. Without `out` a new one, row-major, on the device of `like`. Else
// `out` itself, which must be such a tensor already, and share no memory with what the op reads:
// the range from its first element to its last must hold none of any operand's.
Tensor output_tensor(const std::optional<Tensor>& out, const char* like_name, const Tensor& like,
                     Sizes sizes, ScalarType dtype);
void must_lie_apart(const Tensor& out, const char* argument, const Tensor& t);

// The shape of `like` with another last size.
std::vector<int64_t> sizes_with_last(const Tensor& like, int64_t last);

}  // namespace scaled_mm
