// Int8 products whose scales change along K: weights of 4 bits in groups, and int8 in blocks.
//
//   sum[m, n] = over groups g of K: s_g t_g, t_g the exact int32 sum of the group, added up in
//   float32 in the order of docs/numerics.md, section 8
//   D = what the rest of scaled_mm's epilogue makes of it
#pragma once

#include <algorithm>

#include "integers.h"
#include "problems/int8.h"
#include "problems/lowbit.h"

namespace scaled_mm {

// Rows and columns of a block of an int8 weight, columns of a group of its activations.
inline constexpr int64_t kBlock = 128;
// Groups that begin within so many columns of K are one chain of fma: there are 8 such slices at
// most, for all but one of them may have to wait in memory. Part of the bit contract.
constexpr int64_t slice_columns(int64_t k) {
  return std::max<int64_t>(1024, round_up(ceil_div(k, int64_t{8}), kBlock));
}

struct KScalesProblem {
  // All that the choice of a kernel may depend on.
  struct Size {
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    int64_t group = 0;
    bool in_blocks = false;
    DType out_dtype = DType::bfloat16;

    bool operator==(const Size&) const = default;
    // Of the weight, and of every operand once and of D.
    double weight_bytes() const {
      const double weights = double(n) * double(k);
      return in_blocks ? weights : weights / 2 + 2.5 * weights / double(group);
    }
    double bytes() const {
      return weight_bytes() + double(m) * double(k) + double(m) * double(n) * size_of(out_dtype);
    }
  };

  // A, the sizes, the ending and D. Its operand azp is that of t_g = acc_g - azp 1 b_g, which its
  // epilogue does not know of. In blocks its b is the weight, and its scale_a is 1.
  Int8Problem product;
  int64_t group = 1;               // rows of B that share scales
  LowbitWeight w;                  // of 4 bits, where not in blocks
  const int32_t* order = nullptr;  // [K]: its row k meets column order[k] of A; or absent
  EpilogueOperand row_scales;      // in blocks: float32 [M, K/128]; else absent
  EpilogueOperand scales;          // in blocks: float32 [K/128, N/128]

  bool in_blocks() const { return row_scales.data != nullptr; }
  Size size() const {
    const Int8Problem::Size& of = product.size;
    return {of.m, of.n, of.k, group, in_blocks(), of.out_dtype};
  }
};

// Whether scale_b has an element for each block of b; one block in all has a scale per tensor.
bool is_in_blocks(const Tensor& b, const Tensor& scale_b, const Shape& b_shape);

// outputs[0] is D in both: `out`, where it is given.
Checked<KScalesProblem> check_blocks(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                     const Tensor& scale_b, const Shape& b_shape, bool b_settled,
                                     const Int8Ending& ending);

struct W4A8Arguments {
  Tensor x, packed;
  std::vector<int64_t> sizes;  // of the weight, as check_mixed_mm takes them
  Tensor scale_a;
  std::optional<Tensor> order, azp;
  Int8Ending ending;
};
Checked<KScalesProblem> check_w4a8_mm(const W4A8Arguments& given);

}  // namespace scaled_mm
