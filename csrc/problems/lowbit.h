// The lowbit family: weights of few bits in groups, beside 16-bit activations.
//
//   W[k, n] = (q[k, n] - z[g, n]) * s[g, n]   or   q[k, n] * s[g, n] + z[g, n],   g = k / group
//
// Bits, packing, group and kind of zero point are fields, so that a kernel can say which it takes.
#pragma once

#include <string>

#include "epilogue/expr.h"
#include "integers.h"
#include "problems/tensors.h"

namespace scaled_mm {

// Where the values of a weight lie in its words. A value is stored unsigned: where q is signed,
// with 2^(bits - 1) added.
//   awq: 4 bits. Eight columns to a word of q [K, N / 8]; nibble i of word c belongs to column
//        8 c + {0, 2, 4, 6, 1, 3, 5, 7}[i] (docs/lowbit.md). Integer zero points are packed alike.
//   plain: 8 bits. Four columns to a word, the first in its lowest byte. Zero points alike.
//   units: blocks of kUnitChannels x kUnitRows with their scales and zero points, in the order of
//        the tensor cores' registers (docs/lowbit.md, "The packed form").
enum class Packing : uint8_t { awq, plain, units };

inline constexpr int kUnitChannels = 64, kUnitRows = 128;
inline constexpr int kBlockColumns = 128;  // layout 2 of a packed weight, for the CPU

// What W is of a value q and its group's scale s and zero point z, rounded once:
//   none:    q s         q signed
//   integer: (q - z) s   q and z unsigned, of as many bits
//   real:    q s + z     q signed, z a float of the scales' dtype
enum class ZeroPoint : uint8_t { none, integer, real };
inline constexpr int kNumZeroPoints = 3;

// Bits that a group takes for a column besides its rows' values.
constexpr int group_bits(int bits, ZeroPoint zero_point) {
  return 16 + (zero_point == ZeroPoint::none ? 0 : zero_point == ZeroPoint::real ? 16 : bits);
}

constexpr int unit_word_bytes(int bits) { return kUnitChannels * kUnitRows * bits / 8; }
// Of a unit's set: scales and zero points of its channels. Four bits without zero points have those
// all the same, 8, as values are stored with 8 added: one kernel serves both.
constexpr int unit_set_bytes(int bits, ZeroPoint zero_point) {
  const bool all_same = bits == 4 && zero_point == ZeroPoint::none;
  return kUnitChannels * group_bits(bits, all_same ? ZeroPoint::integer : zero_point) / 8;
}
// Sets of a unit of a weight of k rows, each of which serves as many of its rows as it may; groups
// are all rows or multiples of 32.
constexpr int unit_sets(int64_t k, int64_t group) {
  return group == k || group % 128 == 0 ? 1 : group % 64 == 0 ? 2 : 4;
}
constexpr int unit_bytes(int bits, ZeroPoint zero_point, int sets) {
  return unit_word_bytes(bits) + sets * unit_set_bytes(bits, zero_point);
}

// A weight W [K, N]. Rows may lie apart; the elements of a row lie side by side. Packed in units it
// has those instead of q, zeros and scales.
struct LowbitWeight {
  int64_t k = 0;
  int64_t n = 0;
  int64_t group = 0;  // rows of W that share a row of scales and zero points; divides k
  int bits = 4;       // of a value: 4 or 8
  Packing packing = Packing::awq;
  ZeroPoint zero_point = ZeroPoint::integer;
  Matrix<const uint32_t> q;  // [K, padded_n() * bits / 32]
  // Of q in blocks of kBlockColumns columns: words from block to block. 0: its rows are whole.
  int64_t block_stride = 0;
  Matrix<const uint32_t> zeros;       // [K / group, padded_n() * bits / 32], if they are integers
  Matrix<const uint16_t> scales;      // [K / group, padded_n()]
  Matrix<const uint16_t> real_zeros;  // the same, if they are real
  const uint8_t* units = nullptr;     // [ceil(K / kUnitRows), ceil(N / kUnitChannels)]
  DType dtype = DType::float16;       // of the scales and of W; a 16-bit one
  bool settled = false;               // nothing still to run writes `units` (docs/tuning.md)

  // Columns that words, scales and zero points have: whole words.
  int64_t padded_n() const { return round_up(n, 8); }
  // What is taken from a stored value, where that is the same for all.
  int offset() const { return zero_point == ZeroPoint::integer ? 0 : 1 << (bits - 1); }
};

// D [M, N] = f(X' [M, K] W [K, N] + bias [N] + residual [M, N]); without X, D is W itself. X, D and
// the residual are of W's dtype, a bias and a pre_scale of that dtype or float32. Gated, channels
// 2 j and 2 j + 1 make column j of D [M, N / 2]: f of the first times the second.
//
//   X'[m, k] = RN16(x[m, order[k]] * pre_scale[order[k]]), the product in float32
struct LowbitProblem {
  // All that the choice of a kernel may depend on.
  struct Size {
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    int64_t group = 0;
    int bits = 4;
    Packing packing = Packing::awq;
    ZeroPoint zero_point = ZeroPoint::integer;
    DType dtype = DType::float16;  // of X, W and D

    bool operator==(const Size&) const = default;
    // Of the weight: words, scales and zero points. Of every operand once and of D.
    double weight_bytes() const {
      const double weights = double(n) * double(k);
      const double of_groups = group_bits(bits, zero_point) / 8.0;
      return weights * bits / 8 + (group ? of_groups * weights / double(group) : 0.0);
    }
    double bytes() const { return weight_bytes() + 2 * double(m) * (double(n) + double(k)); }
  };

  int64_t m = 0;
  Matrix<const uint16_t> x;
  const int32_t* gather = nullptr;  // [M]: the row of x that each row is; null: the same. CPU only
  LowbitWeight w;
  const int32_t* order = nullptr;  // [K], elements of 0 .. K - 1; or absent
  EpilogueOperand pre_scale;       // [K], one for each column of x; or absent
  EpilogueOperand bias, residual;
  Function function = Function::none;
  bool gated = false;
  int64_t columns = 0;    // of bias and residual: w.n, or fewer where a kernel is given more
  uint16_t* d = nullptr;  // row-major
  int64_t ldd = 0;

  int64_t out_columns() const { return gated ? columns / 2 : columns; }
  Size size() const { return {m, w.n, w.k, w.group, w.bits, w.packing, w.zero_point, w.dtype}; }
};

// outputs[0] is D in both: `out`, where it is given.
Checked<LowbitProblem> check_awq_dequantize(const Tensor& qweight, const Tensor& scales,
                                            const Tensor& qzeros);

// What comes behind the sums of a product, and where it goes.
struct LowbitEnding {
  std::optional<Tensor> bias, residual;
  std::optional<std::string> activation;
  std::optional<Tensor> out;
};
Checked<LowbitProblem> check_awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                                      const Tensor& qzeros, const LowbitEnding& ending);

// A weight as pack_weight and pack_awq lay it out (scaled_mm/ops/packed_words.py, docs/lowbit.md),
// of `sizes` (K, N, G, bits, zero point, layout). Layout 0 is words, layout 1 units,
// layout 2 words in blocks of columns.
Checked<LowbitProblem> check_mixed_dequantize(const Tensor& packed,
                                              const std::vector<int64_t>& sizes);

// Parts of these, for other products by such a weight (k_scales.h).
LowbitWeight check_packed_weight(const Tensor& packed, const std::vector<int64_t>& sizes);
// The same of a stack of buffers [E, elements]: the first one's.
LowbitWeight check_packed_stack(const Tensor& packed, const std::vector<int64_t>& sizes);
const int32_t* check_order(const Tensor& order, const Tensor& x, int64_t k,
                           std::vector<Tensor>& copies);

// And of grouped_mixed_mm (mixed_groups.h). `weight` is the argument that holds q, `scales` the one
// whose dtype is that of the scales; D has `rows` sizes before its last.
void check_tokens(Checked<LowbitProblem>& checked, const Tensor& x, const char* weight,
                  const char* scales);
void check_lowbit_ending(Checked<LowbitProblem>& checked, const Tensor& x, const char* weight,
                         std::vector<int64_t> rows, const LowbitEnding& ending);
void must_be_tokens(const Tensor& x, const char* weight_name, const Tensor& weight);

struct MixedArguments {
  Tensor x, packed;
  std::vector<int64_t> sizes;
  std::optional<Tensor> order, pre_scale;
  LowbitEnding ending;
  bool settled;
};
Checked<LowbitProblem> check_mixed_mm(const MixedArguments& given);

}  // namespace scaled_mm
