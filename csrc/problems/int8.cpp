#include "problems/int8.h"

#include "rules.h"

namespace scaled_mm {
namespace {

// --- the weight --------------------------------------------------------------------------------

// Far above any weight, far below where the size of its buffer would overflow.
constexpr int64_t kMaxPackedN = int64_t{1} << 40;

void check_k(int64_t k) {
  if (k > kMaxK) {
    refuse("b", cat("have K <= ", kMaxK, " rows (beyond it an int32 sum could wrap)"),
           cat("K=", k));
  }
}

}  // namespace

void check_weight_sizes(int64_t k, int64_t n) {
  check_k(k);
  if (k < 0 || n < 0 || n > kMaxPackedN) {
    refuse("b_shape", cat("have 0 <= K and 0 <= N <= ", kMaxPackedN), shape_text({k, n}));
  }
}

Weight check_packed_weight(const char* name, const Tensor& b, int64_t k, int64_t n) {
  Weight weight;
  weight.k = k;
  weight.n = n;
  check_k(k);
  must_be(name, b, ScalarType::Byte);
  const int64_t bytes = packed_weight_bytes(k, n);
  if (b.dim() != 1 || b.numel() != bytes || !b.is_contiguous()) {
    refuse(name,
           cat("be a contiguous packed buffer of ", bytes, " bytes for a weight of shape ",
               shape_text({k, n})),
           shape(b));
  }
  weight.packed = static_cast<const uint8_t*>(b.const_data_ptr());
  return weight;
}

namespace {

Weight check_weight(const Tensor& b, const Shape& b_shape) {
  if (b_shape) {
    const std::vector<int64_t>& sizes = *b_shape;
    if (sizes.size() != 2) refuse("b_shape", "be (K, N)", shape_text(sizes));
    if (sizes[0] < 0 || sizes[1] < 0 || sizes[1] > kMaxPackedN) {
      refuse("b_shape", cat("be (K, N) with 0 <= K and 0 <= N <= ", kMaxPackedN),
             shape_text(sizes));
    }
    return check_packed_weight("b", b, sizes[0], sizes[1]);
  }
  must_be("b", b, ScalarType::Char);
  if (b.dim() != 2) refuse("b", "be a matrix [K, N]", shape(b));
  Weight weight;
  weight.k = b.size(0);
  weight.n = b.size(1);
  check_k(weight.k);
  weight.plain = {static_cast<const int8_t*>(b.const_data_ptr()), b.stride(0), b.stride(1)};
  return weight;
}

}  // namespace

// --- A times B ---------------------------------------------------------------------------------

Checked<Int8Problem> check_product(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                   bool b_settled) {
  Checked<Int8Problem> checked;
  Int8Problem& p = checked.problem;
  must_be("a", a, ScalarType::Char);
  if (a.dim() < 1) refuse("a", "have at least one dimension [..., K]", shape(a));
  must_share_device("b", b, "a", a);
  p.b = check_weight(b, b_shape);
  if (b_settled && !b_shape)
    refuse("b_settled", "be False for a weight that is not packed", "True");
  p.b.settled = b_settled;
  p.size.m = count_rows(a);
  p.size.n = p.b.n;
  p.size.k = p.b.k;
  if (a.size(a.dim() - 1) != p.size.k) {
    refuse("a", cat("have K=", p.size.k, " columns, the rows of b"), shape(a));
  }
  p.a = fold_rows<int8_t>(a, checked.inputs);
  return checked;
}

namespace {

void add_output(Checked<Int8Problem>& checked, const Factors& factors, ScalarType dtype,
                const std::optional<Tensor>& out) {
  const auto& [a_name, a, b_name, b] = factors;
  Int8Problem& p = checked.problem;
  const std::vector<int64_t> sizes = sizes_with_last(a, p.size.out_columns());
  const Tensor& d = checked.outputs.emplace_back(output_tensor(out, a_name, a, sizes, dtype));
  p.d = d.mutable_data_ptr();
  if (!out) return;
  must_lie_apart(d, a_name, a);
  must_lie_apart(d, b_name, b);
}

// `quantises`: an 8-bit dtype will do as well.
DType check_out_dtype(ScalarType dtype, bool quantises) {
  const std::optional<DType> known = quantises ? out_dtype_of(dtype) : dtype_of(dtype);
  if (known) return *known;
  std::string names, names8;
#define DTYPE(name, scalar_type, storage) names += (names.empty() ? "" : ", ") + std::string(#name);
#define DTYPE8(name, scalar_type, storage) names8 += ", " + std::string(#name);
#include "dtypes.def"
#undef DTYPE8
#undef DTYPE
  refuse("out_dtype", "be one of " + names + (quantises ? names8 : ""), name(dtype));
}

// 8 bits want a scale, and no other output has one; a zero point is an integer's.
void check_quantises(const std::optional<Tensor>& out_scale, const std::optional<Tensor>& out_azp,
                     DType out_dtype) {
  const auto with = [&] { return " with out_dtype=" + name(scalar_type(out_dtype)); };
  if (is_8_bit(out_dtype) && !out_scale) refuse("out_scale", "be given" + with(), "None");
  if (!is_8_bit(out_dtype) && out_scale) {
    refuse("out_scale", "not be given" + with(), shape(*out_scale));
  }
  if (out_dtype != DType::int8 && out_azp) {
    refuse("out_azp", "not be given" + with(), shape(*out_azp));
  }
}

// The shape rules of an operand, by how it lies over D.
template <class Leaf>
void check_shape(const char* argument, const Tensor& t, const Tensor& a,
                 const Int8Problem::Size& size) {
  if (Leaf::scalar_ok && t.numel() == 1) return;
  const char* or_one = Leaf::scalar_ok ? "1 or " : "";
  switch (Leaf::axis) {
    case epilogue::Axis::Row:
      if (is_per_column(t, size.n)) return;
      refuse(argument,
             cat("have ", or_one, "N=", size.n, " elements, in shape ", per_column_text(size.n)),
             shape(t));
    case epilogue::Axis::Col:
      if (is_per_row(t, a)) return;
      refuse(argument, cat("have ", or_one, "M=", size.m, " elements, in shape ", per_row_text(a)),
             shape(t));
    case epilogue::Axis::Full: {
      const std::vector<int64_t> wanted = sizes_with_last(a, size.n);
      if (t.sizes().equals(wanted)) return;
      refuse(argument, "have the output's shape " + shape_text(wanted), shape(t));
    }
  }
}

}  // namespace

void check_operand_dtype(Operand operand, const Tensor& t, DType out_dtype) {
  const char* argument = kOperandNames[static_cast<int>(operand)];
  switch (operand) {
    case Operand::bias:
    case Operand::residual:
      if (is_8_bit(out_dtype)) return static_cast<void>(must_be_float(argument, t));
      return must_be_float32_or(argument, t, "the output's", scalar_type(out_dtype));
    case Operand::scale_a:
    case Operand::scale_b:
    case Operand::out_scale: return must_be(argument, t, ScalarType::Float);
    default: return must_be(argument, t, ScalarType::Int);
  }
}

namespace {

// What the operands must suit: the rows and the device of a tensor, and its name in a refusal.
struct Rows {
  const char* name;
  const Tensor& tensor;
};

// One epilogue operand against what its leaf declares (epilogue/expr.h). Returns its bit.
template <class Leaf>
OperandSet check_operand(const std::optional<Tensor>& given, const Rows& rows,
                         const std::optional<Tensor>& out, Checked<Int8Problem>& checked) {
  if (!given) return 0;
  Int8Problem& p = checked.problem;
  const char* argument = kOperandNames[static_cast<int>(Leaf::id)];
  check_operand_dtype(Leaf::id, *given, p.size.out_dtype);
  must_share_device(argument, *given, rows.name, rows.tensor);
  check_shape<Leaf>(argument, *given, rows.tensor, p.size);
  if (out) must_lie_apart(*out, argument, *given);
  p.operands[static_cast<int>(Leaf::id)] = operand_along(Leaf::axis, *given, checked.inputs);
  return bit(Leaf::id);
}

OperandSet check_operands(const Rows& rows, const Tensor& scale_a, const Tensor& scale_b,
                          const std::optional<Tensor>& azp, const std::optional<Tensor>& azp_adj,
                          const std::optional<Tensor>& azp_with_adj,
                          const std::optional<Tensor>& out, Checked<Int8Problem>& checked) {
  OperandSet given = check_operand<epilogue::ScaleA>(scale_a, rows, out, checked);
  given |= check_operand<epilogue::ScaleB>(scale_b, rows, out, checked);
  given |= check_operand<epilogue::Azp>(azp, rows, out, checked);
  given |= check_operand<epilogue::AzpAdj>(azp_adj, rows, out, checked);
  given |= check_operand<epilogue::AzpWithAdj>(azp_with_adj, rows, out, checked);
  return given;
}

void choose_epilogue(Int8Problem& p, OperandSet given, const Activation& activation) {
  p.size.epilogue = epilogue::choose(given, activation);
  p.size.function = activation.function;
  if (given & bit(Operand::azp_with_adj)) {  // the product of both, for a zero point of 1
    p.operands[static_cast<int>(Operand::azp_adj)] =
        p.operands[static_cast<int>(Operand::azp_with_adj)];
  }
}

}  // namespace

void check_row_operands(const Factors& factors, const Tensor& scale_a,
                        const std::optional<Tensor>& azp, const std::optional<Tensor>& out,
                        Checked<Int8Problem>& checked) {
  const Rows rows{factors.a_name, factors.a};
  check_operand<epilogue::ScaleA>(scale_a, rows, out, checked);
  check_operand<epilogue::Azp>(azp, rows, out, checked);
}

namespace {

// `given`: the operands that are in the problem already.
void check_ending(const Factors& factors, OperandSet given, const Int8Ending& ending,
                  Checked<Int8Problem>& checked) {
  Int8Problem::Size& size = checked.problem.size;
  const Rows rows{factors.a_name, factors.a};
  const Activation wanted = epilogue::check_activation(ending.activation, Form::gated);
  given |= check_operand<epilogue::Bias>(ending.bias, rows, ending.out, checked);
  given |= check_operand<epilogue::Residual>(ending.residual, rows, ending.out, checked);
  given |= check_operand<epilogue::OutScale>(ending.out_scale, rows, ending.out, checked);
  given |= check_operand<epilogue::OutAzp>(ending.out_azp, rows, ending.out, checked);
  choose_epilogue(checked.problem, given, wanted);
  if (size.n % epilogue::entry(size.epilogue).columns()) {
    refuse(factors.b_name, cat("have an even number of columns for activation='", wanted.name, "'"),
           cat("N=", size.n));
  }
  add_output(checked, factors, scalar_type(size.out_dtype), ending.out);
}

}  // namespace

DType check_out_dtype(const Int8Ending& ending) {
  const DType dtype = check_out_dtype(ending.out_dtype.value_or(ScalarType::BFloat16), true);
  check_quantises(ending.out_scale, ending.out_azp, dtype);
  return dtype;
}

void check_ending(const Factors& factors, const Int8Ending& ending, Checked<Int8Problem>& checked,
                  OperandSet given) {
  checked.problem.size.out_dtype = check_out_dtype(ending);
  check_ending(factors, given, ending, checked);
}

Checked<Int8Problem> check_scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                     const Tensor& scale_b, const Int8Ending& ending,
                                     const Shape& b_shape, bool b_settled) {
  const DType dtype = check_out_dtype(ending);
  Checked<Int8Problem> checked = check_product(a, b, b_shape, b_settled);
  checked.problem.size.out_dtype = dtype;
  const OperandSet given = check_operands({"a", a}, scale_a, scale_b, ending.azp, ending.azp_adj,
                                          ending.azp_with_adj, ending.out, checked);
  check_ending({"a", a, "b", b}, given, ending, checked);
  return checked;
}

Checked<Int8Problem> check_sums(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                bool b_settled) {
  Checked<Int8Problem> checked = check_product(a, b, b_shape, b_settled);
  checked.problem.size.epilogue = epilogue::Id::RawAccumulator;
  return checked;
}

Checked<Int8Problem> check_int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                   bool b_settled, const std::optional<Tensor>& out) {
  Checked<Int8Problem> checked = check_sums(a, b, b_shape, b_settled);
  add_output(checked, {"a", a, "b", b}, ScalarType::Int, out);
  return checked;
}

Checked<Int8Problem> check_scaled_epilogue(const Tensor& acc, const Tensor& scale_a,
                                           const Tensor& scale_b, const std::optional<Tensor>& bias,
                                           const std::optional<Tensor>& azp,
                                           const std::optional<Tensor>& azp_adj,
                                           const std::optional<Tensor>& azp_with_adj,
                                           ScalarType out_dtype) {
  Checked<Int8Problem> checked;
  Int8Problem::Size& size = checked.problem.size;
  size.out_dtype = check_out_dtype(out_dtype, false);
  must_be("acc", acc, ScalarType::Int);
  if (acc.dim() < 1) refuse("acc", "have at least one dimension [..., N]", shape(acc));
  size.m = count_rows(acc);
  size.n = acc.size(acc.dim() - 1);
  checked.problem.acc = operand_along(epilogue::Axis::Full, acc, checked.inputs);
  const Rows rows{"acc", acc};
  OperandSet given =
      check_operands(rows, scale_a, scale_b, azp, azp_adj, azp_with_adj, std::nullopt, checked);
  given |= check_operand<epilogue::Bias>(bias, rows, std::nullopt, checked);
  choose_epilogue(checked.problem, given, kActivations[0]);
  add_output(checked, {"acc", acc, "acc", acc}, out_dtype, std::nullopt);
  return checked;
}

Checked<ColumnSums> check_azp_adj(const Tensor& b, const std::optional<Tensor>& azp,
                                  const Shape& b_shape) {
  Checked<ColumnSums> checked;
  checked.problem.b = check_weight(b, b_shape);
  if (azp) {
    must_be("azp", *azp, ScalarType::Int);
    must_share_device("azp", *azp, "b", b);
    if (azp->numel() != 1) refuse("azp", "have 1 element (one zero point per tensor)", shape(*azp));
    checked.problem.azp = static_cast<const int32_t*>(azp->const_data_ptr());
  }
  const Tensor& out =
      checked.outputs.emplace_back(new_empty(b, {1, checked.problem.b.n}, ScalarType::Int));
  checked.problem.out = static_cast<int32_t*>(out.mutable_data_ptr());
  return checked;
}

Checked<Weight> check_pack_weight(const Tensor& b) {
  Checked<Weight> checked;
  checked.problem = check_weight(b, std::nullopt);
  if (checked.problem.n > kMaxPackedN) {
    refuse("b", cat("have N <= ", kMaxPackedN, " columns"), cat("N=", checked.problem.n));
  }
  const int64_t bytes = packed_weight_bytes(checked.problem.k, checked.problem.n);
  checked.outputs.push_back(new_empty(b, {bytes}, ScalarType::Byte));
  return checked;
}

}  // namespace scaled_mm
