#include "problems/groups.h"

#include "rules.h"

namespace scaled_mm {
namespace {

void check_numbers(const char* argument, const Tensor& t, const Tensor& a) {
  must_be(argument, t, ScalarType::Int);
  must_share_device(argument, t, "a", a);
  if (t.dim() != 1 || !t.is_contiguous()) refuse(argument, "be a contiguous vector", shape(t));
}

void check_stack(const Tensor& b, const Shape& b_shape, GroupedInt8Problem& p) {
  Weight& weight = p.product.b;
  if (b_shape) {
    if (b.dim() != 2 || !b.is_contiguous()) {
      refuse("b", "be contiguous packed buffers [E, bytes]", shape(b));
    }
    if (b_shape->size() != 2) refuse("b_shape", "be (K, N)", shape_text(*b_shape));
    weight.k = (*b_shape)[0], weight.n = (*b_shape)[1];
    must_be("b", b, ScalarType::Byte);
    const int64_t bytes = packed_weight_bytes(weight.k, weight.n);
    if (weight.k < 0 || weight.n < 0 || b.size(1) != bytes) {
      refuse("b",
             cat("have buffers of ", bytes, " bytes for weights of shape ", shape_text(*b_shape)),
             shape(b));
    }
    weight.packed = static_cast<const uint8_t*>(b.const_data_ptr());
    p.expert_stride = bytes;
  } else {
    must_be("b", b, ScalarType::Char);
    if (b.dim() != 3) refuse("b", "be weights [E, K, N]", shape(b));
    weight.k = b.size(1), weight.n = b.size(2);
    weight.plain = {static_cast<const int8_t*>(b.const_data_ptr()), b.stride(1), b.stride(2)};
    p.expert_stride = b.stride(0);
  }
  if (weight.k > kMaxK) refuse("b", cat("have K <= ", kMaxK), cat("K=", weight.k));
  p.size.experts = b.size(0);
}

// An operand [E, N]; the bit of it.
OperandSet check_columns(Operand id, const std::optional<Tensor>& given, const Tensor& a,
                         Checked<Int8Problem>& checked, int64_t experts) {
  if (!given) return 0;
  const char* argument = kOperandNames[static_cast<int>(id)];
  const Int8Problem::Size& size = checked.problem.size;
  if (id != Operand::bias) {
    must_be(argument, *given, id == Operand::scale_b ? ScalarType::Float : ScalarType::Int);
  } else if (is_8_bit(size.out_dtype)) {
    must_be_float(argument, *given);
  } else {
    must_be_float32_or(argument, *given, "the output's", scalar_type(size.out_dtype));
  }
  must_share_device(argument, *given, "a", a);
  if (!given->sizes().equals({experts, size.n})) {
    refuse(argument, "have shape " + shape_text({experts, size.n}), shape(*given));
  }
  checked.problem.operands[static_cast<int>(id)] = {
      given->const_data_ptr(), dtype_of(given->scalar_type()).value_or(DType::float32),
      given->stride(0), given->stride(1)};
  return bit(id);
}

}  // namespace

Checked<GroupedInt8Problem> check_grouped_mm(const Tensor& a, const Tensor& b,
                                             const Tensor& offsets, const Tensor& scale_a,
                                             const Tensor& scale_b, const Int8Ending& ending,
                                             const Shape& b_shape,
                                             const std::optional<Tensor>& rows) {
  GroupedInt8Problem p;
  must_be("a", a, ScalarType::Char);
  if (a.dim() != 2) refuse("a", "be a matrix [T, K]", shape(a));
  must_share_device("b", b, "a", a);
  check_stack(b, b_shape, p);
  const int64_t experts = p.size.experts;
  check_numbers("offsets", offsets, a);
  if (offsets.size(0) != experts) {
    refuse("offsets", cat("have E=", experts, " elements"), shape(offsets));
  }
  if (rows) check_numbers("rows", *rows, a);
  p.a_rows = a.size(0);
  if (rows && rows->size(0) > 0 && p.a_rows == 0) {
    refuse("rows", "be empty where a has no rows", shape(*rows));
  }
  p.offsets = static_cast<const int32_t*>(offsets.const_data_ptr());
  p.rows = rows ? static_cast<const int32_t*>(rows->const_data_ptr()) : nullptr;

  Checked<Int8Problem> product;
  product.problem = p.product;
  Int8Problem::Size& size = product.problem.size;
  size.m = p.a_rows, size.n = product.problem.b.n, size.k = product.problem.b.k;
  if (a.size(1) != size.k) refuse("a", cat("have K=", size.k, " columns, as b has rows"), shape(a));
  product.problem.a = fold_rows<int8_t>(a, product.inputs);
  check_row_operands({"a", a, "b", b}, scale_a, ending.azp, std::nullopt, product);

  // What belongs to D's rows is checked against a matrix that has as many.
  const Tensor sorted = rows ? new_empty(a, {rows->size(0), 0}, ScalarType::Char) : a;
  size.m = sorted.size(0);
  size.out_dtype = out_dtype_of(ending.out_dtype.value_or(ScalarType::BFloat16))
                       .value_or(DType::bfloat16);  // which check_ending may refuse
  OperandSet given = ending.azp ? bit(Operand::azp) : 0;
  given |= check_columns(Operand::scale_b, scale_b, a, product, experts);
  given |= check_columns(Operand::bias, ending.bias, a, product, experts);
  given |= check_columns(Operand::azp_adj, ending.azp_adj, a, product, experts);
  given |= check_columns(Operand::azp_with_adj, ending.azp_with_adj, a, product, experts);
  Int8Ending rest;  // without what has been checked
  rest.residual = ending.residual, rest.activation = ending.activation;
  rest.out_dtype = ending.out_dtype, rest.out_scale = ending.out_scale;
  rest.out_azp = ending.out_azp;
  check_ending({rows ? "rows" : "a", sorted, "b", b}, rest, product, given);

  p.product = product.problem;
  static_cast<Int8Problem::Size&>(p.size) = size;
  return {p, std::move(product.outputs), std::move(product.inputs)};
}

Checked<TopK> check_moe_sort(const Tensor& top_k_index, int64_t experts) {
  Checked<TopK> checked;
  TopK& p = checked.problem;
  p.wide = top_k_index.scalar_type() == ScalarType::Long;
  if (!p.wide) must_be("top_k_index", top_k_index, ScalarType::Int);
  if (top_k_index.dim() != 2 || !top_k_index.is_contiguous() || top_k_index.size(1) == 0) {
    refuse("top_k_index", "be contiguous [tokens, k], k > 0", shape(top_k_index));
  }
  if (experts < 1) refuse("num_experts", "be positive", std::to_string(experts));
  p.expert_of = top_k_index.const_data_ptr();
  p.tokens = top_k_index.size(0), p.top_k = top_k_index.size(1), p.experts = experts;
  const auto add = [&](int64_t size) {
    Tensor& out = checked.outputs.emplace_back(new_empty(top_k_index, {size}, ScalarType::Int));
    return static_cast<int32_t*>(out.mutable_data_ptr());
  };
  p.to.rows = add(p.tokens * p.top_k);
  p.to.offsets = add(experts);
  p.to.order = add(p.tokens * p.top_k);
  return checked;
}

Checked<CombinedTokens> check_moe_combine(const Tensor& y, const Tensor& weights,
                                          const Tensor& order) {
  Checked<CombinedTokens> checked;
  CombinedTokens& p = checked.problem;
  p.dtype = must_be_float("y", y);
  must_be_float("weights", weights);
  must_share_device("weights", weights, "y", y);
  check_numbers("order", order, y);
  if (y.dim() != 2) refuse("y", "be a matrix [tokens * k, N]", shape(y));
  if (weights.dim() != 2 || weights.size(1) == 0 || weights.numel() != y.size(0)) {
    refuse("weights", cat("be [tokens, k], k > 0, of y's ", y.size(0), " rows"), shape(weights));
  }
  if (order.size(0) != y.size(0)) {
    refuse("order", cat("have an element for each of y's ", y.size(0), " rows"), shape(order));
  }
  p.tokens = weights.size(0), p.top_k = weights.size(1), p.columns = y.size(1);
  p.y = operand_along(epilogue::Axis::Full, y, checked.inputs);
  p.weights = operand_along(epilogue::Axis::Full, weights, checked.inputs);
  p.order = static_cast<const int32_t*>(order.const_data_ptr());
  checked.outputs.push_back(new_empty(y, {p.tokens, p.columns}, y.scalar_type()));
  p.d = checked.outputs[0].mutable_data_ptr();
  return checked;
}

}  // namespace scaled_mm
