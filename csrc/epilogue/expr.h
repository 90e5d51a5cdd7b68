// The vocabulary of an epilogue: what is left to compute once the int32 accumulator of one element
// D[m, n] stands. An epilogue is a type built from these words; it has no code of its own.
// Each backend lowers the type once (cpu/lower.h, cuda/lower.cuh), and
// everything else about an epilogue is read off the type: `required`, the operands it needs, and
// `accepted`, those it reads when they are given.
#pragma once

#include <cstdint>

namespace scaled_mm {

// The operands an epilogue may read, in the order of the public signature. The name is the
// argument's name in Python and in every error message.
enum class Operand : int { scale_a, scale_b, bias, azp, azp_adj, azp_with_adj };
inline constexpr int kNumOperands = 6;
inline constexpr const char* kOperandNames[kNumOperands] = {"scale_a", "scale_b", "bias",
                                                            "azp",     "azp_adj", "azp_with_adj"};

// A set of operands, one bit each.
using OperandSet = uint32_t;
constexpr OperandSet bit(Operand operand) { return OperandSet{1} << static_cast<int>(operand); }

namespace epilogue {

// --- leaves ------------------------------------------------------------------------------------

// The accumulator sum_k a[m, k] * b[k, n].
struct Acc {
  using value = int32_t;
  static constexpr OperandSet required = 0, accepted = 0;
};

// Along which axis of D an operand runs: Row operands hold one element per column n and are the
// same for every row (a row vector); Col operands hold one element per row m.
enum class Axis { Row, Col };

template <Operand Id, class T, Axis A, bool ScalarOk>
struct Leaf {
  using value = T;
  static constexpr Operand id = Id;
  static constexpr Axis axis = A;
  static constexpr bool scalar_ok = ScalarOk;  // one element may stand for the whole vector
  static constexpr OperandSet required = bit(Id), accepted = bit(Id);
};

template <Operand Id, class T>
using Row = Leaf<Id, T, Axis::Row, false>;
template <Operand Id, class T>
using RowOrScalar = Leaf<Id, T, Axis::Row, true>;
template <Operand Id, class T>
using ColOrScalar = Leaf<Id, T, Axis::Col, true>;

using ScaleA = ColOrScalar<Operand::scale_a, float>;
using ScaleB = RowOrScalar<Operand::scale_b, float>;
using Bias = Row<Operand::bias, float>;  // float16 and bfloat16 biases are widened, which is exact
using Azp = ColOrScalar<Operand::azp, int32_t>;
using AzpAdj = Row<Operand::azp_adj, int32_t>;
using AzpWithAdj = Row<Operand::azp_with_adj, int32_t>;

// An operand that may be absent and then reads as a neutral value. The only one is the bias:
// RN(x + -0.0) is x for every x, -0.0 and NaN included, so -0.0 leaves no trace in the bits
// (+0.0 would turn -0.0 into +0.0).
template <class L>
struct Optional : L {
  static constexpr OperandSet required = 0;
};
inline constexpr float kAbsentBias = -0.0f;

// What an absent operand reads as where the bits must be those of an epilogue without it: a bias as
// above; a zero point is 1 once it has been multiplied into the column sums. No other can be
// absent.
template <class L>
constexpr typename L::value neutral() {
  return L::id == Operand::bias ? typename L::value(kAbsentBias) : typename L::value(1);
}

// --- operations --------------------------------------------------------------------------------
// Integer operations wrap modulo 2^32; float operations round to nearest even, one rounding each.

struct ToFloat {};  // int32 -> float32, rounded
struct Mul {};      // x * y
struct Sub {};      // x - y
struct Fma {};      // x * y + z, rounded once

template <class Op, class... Args>
struct Apply {
  static constexpr OperandSet required = (Args::required | ...);
  static constexpr OperandSet accepted = (Args::accepted | ...);
};

}  // namespace epilogue
}  // namespace scaled_mm
