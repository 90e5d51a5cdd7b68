// The vocabulary of an epilogue: what is left to compute once the int32 accumulator of one element
// D[m, n] stands. An epilogue is a type built from these words; it has no code of its own. Each
// backend lowers the type to code once (cpu/lower.h, cuda/epilogue/lower.cuh,
// cuda/cutlass3/lower.h). Everything else about an epilogue is read off the type: `reads`, its
// operands; `form`, what the call's activation makes of the columns.
#pragma once

#include <cstdint>
#include <type_traits>

#include "dtypes.h"
#include "functions.h"

namespace scaled_mm {

// The operands that an epilogue may read, in the order of the public signature. The name is the
// argument's name in Python and in every error message.
enum class Operand : int {
  scale_a,
  scale_b,
  bias,
  azp,
  azp_adj,
  azp_with_adj,
  residual,
  out_scale,
  out_azp
};
inline constexpr int kNumOperands = 9;
inline constexpr const char* kOperandNames[kNumOperands] = {"scale_a",  "scale_b",   "bias",
                                                            "azp",      "azp_adj",   "azp_with_adj",
                                                            "residual", "out_scale", "out_azp"};

// A set of operands, one bit each.
using OperandSet = uint32_t;
constexpr OperandSet bit(Operand operand) { return OperandSet{1} << static_cast<int>(operand); }

// What a call's activation makes of the columns: nothing; f(x) of each; or one of two neighbours,
// f(gate) * value. An epilogue is compiled for a form, and f is chosen when it runs.
enum class Form : uint8_t { none, activated, gated };

// What a call may ask for by name besides giving operands.
struct Activation {
  const char* name;
  Form form;
  Function function;
};
inline constexpr Activation kActivations[] = {
    {"none", Form::none, Function::none},
    {"relu", Form::activated, Function::relu},
    {"silu", Form::activated, Function::silu},
    {"gelu", Form::activated, Function::gelu},
    {"gelu_tanh", Form::activated, Function::gelu_tanh},
    {"reglu", Form::gated, Function::relu},
    {"swiglu", Form::gated, Function::silu},
    {"geglu", Form::gated, Function::gelu},
    {"geglu_tanh", Form::gated, Function::gelu_tanh},
};

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
  static constexpr OperandSet reads = 0;
  static constexpr Form form = Form::none;
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
  static constexpr OperandSet reads = bit(Id);
  static constexpr Form form = Form::none;
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
using AzpWithAdj = Row<Operand::azp_with_adj, int32_t>;  // of no epilogue: it becomes AzpAdj
using Residual = Full<Operand::residual, float>;         // widened, as a bias is
using OutScale = ColOrScalar<Operand::out_scale, float>;
using OutAzp = ColOrScalar<Operand::out_azp, int32_t>;

// What an absent operand reads as, so that the bits are those of an epilogue without it. RN(x +
// -0.0) is x for every x, -0.0 and NaN included (+0.0 would turn -0.0 into +0.0), so fma(x, y,
// -0.0) is RN(x * y). A zero point of 1 leaves the column's term as it is, and a term of 0 leaves
// the accumulator as it is. The others have no neutral value: what reads the factors' scales or a
// residual is given them.
template <Operand Id>
struct Neutral;
template <>
struct Neutral<Operand::bias> {
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
template <>
struct Neutral<Operand::out_scale> {  // nothing is divided by it: D's dtype then is no 8-bit one
  static constexpr float value = 1.0f;
};
template <>
struct Neutral<Operand::out_azp> {
  static constexpr int32_t value = 0;
};

template <Operand Id>
concept MayBeAbsent = requires { Neutral<Id>::value; };

// --- operations --------------------------------------------------------------------------------
// Integer operations wrap modulo 2^32; float operations round to nearest even, one rounding each.

struct ToFloat {};  // int32 -> float32, rounded
struct Add {};      // x + y
struct Sub {};      // x - y
struct Mul {};      // x * y
struct Fma {};      // x * y + z, rounded once

template <class Op, class... Args>
struct Apply {
  static constexpr OperandSet reads = (Args::reads | ...);
  static constexpr Form form = Form::none;
};

// --- endings -------------------------------------------------------------------------------------
// What an epilogue may end in: Quantised, or Activated or Gated, or Quantised of one of these.

// D[m, n] = f(E[m, n]), where the call says which f.
template <class E>
struct Activated {
  using inner = E;
  static constexpr OperandSet reads = E::reads;
  static constexpr Form form = Form::activated;
};

// A gated linear unit: D has half as many columns as B, and
// D[m, j] = RN(f(E[m, 2 j]) * E[m, 2 j + 1]). Nothing is rounded to D's dtype in between.
template <class E>
struct Gated {
  using inner = E;
  static constexpr OperandSet reads = E::reads;
  static constexpr Form form = Form::gated;
};

// Where D's dtype has 8 bits, E in units of out_scale:
//   int8            clamp(rne(RN(E / out_scale)) + out_azp, -128, 127), from -127 on without
//                   out_azp; a NaN gives 0
//   float8_e4m3fn   RN8(clamp(RN(E * RN(1 / out_scale)), -448, 448)); a NaN stays
// Where it is a wider float, E as it is.
template <class E>
struct Quantised {
  using inner = E;
  static constexpr OperandSet reads = E::reads | OutScale::reads | OutAzp::reads;
  static constexpr Form form = E::form;
};

// --- what follows from the type ------------------------------------------------------------------

// Columns of B for each column of D.
constexpr int columns_of(Form form) { return form == Form::gated ? 2 : 1; }

// Whether D may be quantised, and whether a matrix is added.
template <class E>
inline constexpr bool is_quantised = (E::reads & OutScale::reads) != 0;
template <class E>
inline constexpr bool has_residual = (E::reads & Residual::reads) != 0;

// The epilogue without its ending.
template <class E>
struct BodyOf {
  using type = E;
};
template <class E>
struct BodyOf<Activated<E>> : BodyOf<E> {};
template <class E>
struct BodyOf<Gated<E>> : BodyOf<E> {};
template <class E>
struct BodyOf<Quantised<E>> : BodyOf<E> {};
template <class E>
using Body = typename BodyOf<E>::type;
template <class E>
inline constexpr bool has_ending = !std::is_same_v<Body<E>, E>;

// Whether D holds the accumulators themselves.
template <class E>
inline constexpr bool is_raw = false;
template <>
inline constexpr bool is_raw<Acc> = true;

}  // namespace epilogue
}  // namespace scaled_mm
