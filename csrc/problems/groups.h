// Mixtures of experts: products of rows that lie together and share a weight, and what sorts and
// sums tokens for them.
#pragma once

#include <algorithm>

#include "problems/int8.h"

namespace scaled_mm {

// Where all experts are equally likely, on average: those of `experts` that have one of m rows, and
// tiles of at most so many rows of one.
double experts_hit(int64_t m, int64_t experts);
double usual_tiles(int64_t m, int64_t experts, int rows);

// The size of a product of several experts' rows: that of one product, whose m are all rows.
template <class Of>
struct GroupedSize : Of {
  int64_t experts = 0;

  bool operator==(const GroupedSize&) const = default;
  double weight_bytes() const { return experts_hit(this->m, experts) * Of::weight_bytes(); }
  double bytes() const { return weight_bytes() + Of::bytes() - Of::weight_bytes(); }
  // Tiles of at most so many rows of one expert, or of none: never more than these.
  int64_t most_tiles(int rows) const {
    const int64_t groups = std::min(this->m, experts + 1);
    return groups + (this->m - groups) / rows;
  }
  double usual_tiles(int rows) const { return scaled_mm::usual_tiles(this->m, experts, rows); }
};

// D [M, N / columns]: of expert e's rows, offsets[e - 1] <= m < offsets[e], the epilogue of A's
// rows times B[e]; rows behind the last offset are 0. Offsets are on the device: the choice of a
// kernel cannot depend on them.
struct GroupedInt8Problem {
  using Size = GroupedSize<Int8Problem::Size>;

  Size size;
  // b: the first expert's, expert_stride before the next; CUDA kernels take b.plain whose column
  // e * N + n is column n of expert e. An operand with an element for each column has row_stride
  // from an expert to the next. scale_a and azp are of the rows of A.
  Int8Problem product;
  int64_t expert_stride = 0;
  const int32_t* offsets = nullptr;  // [experts]
  const int32_t* rows = nullptr;     // [M]: the row of A that each row is; null: it is the same
  int64_t a_rows = 0;                // of A
};

// Where moe_sort puts the rows of each expert, one expert's behind another's.
struct SortedTokens {
  int32_t* rows = nullptr;     // [tokens * top_k]: of each sorted row the token,
  int32_t* offsets = nullptr;  // [experts]: where each expert's rows end
  int32_t* places = nullptr;   // [tokens, top_k]: of each token's j-th expert the sorted row
};

// D [tokens, columns] = sum over j, in its order, of RN(weights[t, j] * y[places[t, j]]), +
// residual, in float32.
struct CombinedTokens {
  EpilogueOperand y;                // [rows, columns], sorted
  EpilogueOperand weights;          // [tokens, top_k]
  EpilogueOperand residual;         // [tokens, columns]; or absent
  const int32_t* places = nullptr;  // [tokens, top_k]
  int64_t rows = 0;                 // of y
  int64_t tokens = 0;
  int64_t columns = 0;
  int top_k = 1;
  void* d = nullptr;
  DType dtype = DType::bfloat16;
};

// A call of moe_sort.
struct TopK {
  const void* expert_of = nullptr;  // [tokens, top_k]
  bool is_wide = false;             // int64, else int32
  int64_t tokens = 0;
  int64_t top_k = 1;
  int64_t experts = 0;
  SortedTokens to;
};
// outputs: rows, offsets, places.
Checked<TopK> check_moe_sort(const Tensor& top_k_index, int64_t num_experts);

// A call of grouped_mm. b_shape is (E, K, N) where b is a packed stack [E, bytes].
struct GroupedArguments {
  const Tensor &a, &b, &offsets, &scale_a, &scale_b;
  const std::optional<Tensor>& rows;
  const Shape& b_shape;
  Int8Ending ending;
};
// outputs[0] is D in both. Values of offsets, rows and places are not looked at.
Checked<GroupedInt8Problem> check_grouped_mm(const GroupedArguments& given);
// The elements of offsets or rows: int32 [count], or of any length where that is -1.
const int32_t* check_index(const char* argument, const Tensor& t, int64_t count, const char* of,
                           const Tensor& a, std::vector<Tensor>& copies);
Checked<CombinedTokens> check_moe_combine(const Tensor& y, const Tensor& weights,
                                          const Tensor& places,
                                          const std::optional<Tensor>& residual,
                                          const std::optional<ScalarType>& out_dtype);

}  // namespace scaled_mm
