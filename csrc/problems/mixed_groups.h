// Mixtures of experts whose weights have few bits: the lowbit family's products of each expert's
// rows.
#pragma once

#include "problems/groups.h"
#include "problems/lowbit.h"

namespace scaled_mm {

// D [M, N], or [M, N / 2] gated: of expert e's rows, offsets[e - 1] <= m < offsets[e], what
// `product` says of rows x[rows[m]] and the weight e; rows behind the last offset are 0.
struct GroupedLowbitProblem {
  using Size = GroupedSize<LowbitProblem::Size>;

  // x: all rows there are, which `rows` chooses from; m: rows of D. w: the first expert's, and the
  // others behind it. bias: row_stride from an expert to the next. order: [experts, K], or absent.
  LowbitProblem product;
  int64_t experts = 0;
  int64_t expert_bytes = 0;  // of a weight, a multiple of 16
  const int32_t* offsets = nullptr;
  const int32_t* rows = nullptr;  // [M]; null: row m is x[m]
  int64_t x_rows = 0;

  Size size() const { return {product.size(), experts}; }
};

// A call of grouped_mixed_mm: packed is [E, elements], sizes are of one of its rows.
struct GroupedMixedArguments {
  const Tensor &x, &packed;
  const std::vector<int64_t>& sizes;
  const Tensor& offsets;
  const std::optional<Tensor>&order, &rows;
  bool settled;
  LowbitEnding ending;
};
// outputs[0] is D. Values of offsets, rows and order are not looked at.
Checked<GroupedLowbitProblem> check_grouped_mixed_mm(const GroupedMixedArguments& given);

}  // namespace scaled_mm
