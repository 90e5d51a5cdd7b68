// The rules that arguments of several ops share, and how values read in a message. For the checks
// in problem.cpp and awq_problem.cpp, which include nothing else of each other.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "problem.h"

namespace scaled_mm {

// How values read in a message.
std::string name(ScalarType dtype);
std::string shape_text(Sizes sizes);
std::string shape(const Tensor& t);

void must_be(const char* argument, const Tensor& t, ScalarType dtype);
void must_share_device(const char* argument, const Tensor& t, const char* other_name,
                       const Tensor& other);

// A vector of the columns of a matrix [..., N] has shape [N] or [1, N].
bool is_per_column(const Tensor& t, int64_t n);
std::string per_column_text(int64_t n);

// t with every dimension but the last folded into one, [..., K] -> [M, K]: t itself where its
// strides allow it, else a copy that `copies` keeps alive.
template <class T>
Matrix<const T> fold_rows(const Tensor& t, int64_t rows, std::vector<Tensor>& copies);
extern template Matrix<const void> fold_rows<void>(const Tensor&, int64_t, std::vector<Tensor>&);

// t's elements in order as a vector: t itself where one stride leads through them, else a copy.
Vector as_vector(const Tensor& t, std::vector<Tensor>& copies);

// The product of all sizes but the last.
int64_t count_rows(const Tensor& t);

}  // namespace scaled_mm
