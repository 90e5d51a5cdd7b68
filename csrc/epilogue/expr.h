// The vocabulary of an epilogue: what is left to compute once the int32 accumulator of one element
// D[m, n] stands. An epilogue is a type built from these words; it has no code of its own. Each
// backend lowers the type to code once (cpu/lower.h, cuda/common/lower.cuh, cuda/cutlass3/lower.h).
// Everything else about an epilogue is read off the type: `required`, the
// operands that it needs; `accepted`, those that it reads when they are given; `activation`, the
// attribute that asks for it.
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace scaled_mm {

// The operands that an epilogue may read, in the order of the public signature. The name is the
// argument's name in Python and in every error message.
enum class Operand : int { scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, residual };
inline constexpr int kNumOperands = 7;
inline constexpr const char* kOperandNames[kNumOperands] = {
    "scale_a", "scale_b", "bias", "azp", "azp_adj", "azp_with_adj", "residual"};

// A set of operands, one bit each.
using OperandSet = uint32_t;
constexpr OperandSet bit(Operand operand) { return OperandSet{1} << static_cast<int>(operand); }

// What a call may ask for by name besides giving operands.
enum class Activation : uint8_t { none, reglu };
inline constexpr int kNumActivations = 2;
inline constexpr const char* kActivationNames[kNumActivations] = {"none", "reglu"};

// An operand's elements: element (m, n) is data[m * row_stride + n * col_stride]. A stride of 0
// stands for "the same for all"; a matrix has its columns side by side (col_stride 1); an absent
// operand has no data. `dtype` counts for float operands.
struct EpilogueOperand {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

namespace epilogue {

// --- leaves ------------------------------------------------------------------------------------

// The accumulator: sum_k a[m, k] * b[k, n], int32 and exact; in float32 for 16-bit products.
template <class T>
struct Accumulator {
  using value = T;
  static constexpr OperandSet required = 0, accepted = 0;
  static constexpr Activation activation = Activation::none;
};
using Acc = Accumulator<int32_t>;

// How an operand lies over D. A Row has one element for each column n and is the same for every row
// (a row vector). A Col has one element for each row m. A Full operand has one for each (m, n).
enum class Axis { Row, Col, Full };

template <Operand Id, class T, Axis A, bool ScalarOk>
struct Leaf {
  using value = T;
  static constexpr Operand id = Id;
  static constexpr Axis axis = A;
  static constexpr bool scalar_ok = ScalarOk;  // one element may stand for the whole vector
  static constexpr OperandSet required = bit(Id), accepted = bit(Id);
  static constexpr Activation activation = Activation::none;
};

template <Operand Id, class T>
using Row = Leaf<Id, T, Axis::Row, false>;
template <Operand Id, class T>
using RowOrScalar = Leaf<Id, T, Axis::Row, true>;
template <Operand Id, class T>
using ColOrScalar = Leaf<Id, T, Axis::Col, true>;
template <Operand Id, class T>
using Full = Leaf<Id, T, Axis::Full, false>;

using ScaleA = ColOrScalar<Operand::scale_a, float>;
using ScaleB = RowOrScalar<Operand::scale_b, float>;
using Bias = Row<Operand::bias, float>;  // 16-bit biases are widened, which is exact
using Azp = ColOrScalar<Operand::azp, int32_t>;
using AzpAdj = Row<Operand::azp_adj, int32_t>;
using AzpWithAdj = Row<Operand::azp_with_adj, int32_t>;
using Residual = Full<Operand::residual, float>;  // widened, as a bias is

// An operand that may be absent and then reads as its neutral value.
template <class L>
struct Optional : L {
  static constexpr OperandSet required = 0;
};

// What an absent operand reads as, so that the bits are those of an epilogue without it. identity.h
// proves for every registered epilogue that they are. RN(x + -0.0) is x for every x, -0.0 and NaN
// included (+0.0 would turn -0.0 into +0.0). A zero point of 1 leaves the column's term as it is,
// and a term of 0 leaves the accumulator as it is. Scales have no neutral value: they are always
// given.
template <Operand Id>
struct Neutral;
template <>
struct Neutral<Operand::bias> {
  static constexpr float value = -0.0f;
};
template <>
struct Neutral<Operand::residual> {
  static constexpr float value = -0.0f;
};
template <>
struct Neutral<Operand::azp> {
  static constexpr int32_t value = 1;
};
template <>
struct Neutral<Operand::azp_adj> {
  static constexpr int32_t value = 0;
};

// --- operations --------------------------------------------------------------------------------
// Integer operations wrap modulo 2^32; float operations round to nearest even, one rounding each.

struct ToFloat {};  // int32 -> float32, rounded
struct Add {};      // x + y
struct Sub {};      // x - y
struct Mul {};      // x * y
struct Fma {};      // x * y + z, rounded once

template <class Op, class... Args>
struct Apply {
  static constexpr OperandSet required = (Args::required | ...);
  static constexpr OperandSet accepted = (Args::accepted | ...);
  static constexpr Activation activation = Activation::none;
};

// Two neighbouring columns made into one; only as the root of an epilogue. D then has half as many
// columns as B, and D[m, j] = Op(E[m, 2 j], E[m, 2 j + 1]).
template <class Op, class E>
struct PairOfColumns {
  static constexpr OperandSet required = E::required, accepted = E::accepted;
  static constexpr Activation activation = Op::activation;
};

// ReGLU: RN(max(x, +0) * y), where max(NaN, +0) is NaN and max(-0, +0) is +0.
struct ReGLU {
  static constexpr Activation activation = Activation::reglu;
};

// --- what follows from the type ------------------------------------------------------------------

// Columns of B for each column of D.
template <class E>
inline constexpr int columns_of = 1;
template <class Op, class E>
inline constexpr int columns_of<PairOfColumns<Op, E>> = 2;

// Whether D holds the accumulators themselves.
template <class E>
inline constexpr bool is_raw = false;
template <>
inline constexpr bool is_raw<Acc> = true;

}  // namespace epilogue
}  // namespace scaled_mm
