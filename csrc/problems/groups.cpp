#include "problems/groups.h"

#include <algorithm>
#include <cmath>

#include "rules.h"

namespace scaled_mm {

const int32_t* check_index(const char* argument, const Tensor& t, int64_t count, const char* of,
                           const Tensor& a, std::vector<Tensor>& copies) {
  must_be(argument, t, ScalarType::Int);
  must_share_device(argument, t, of, a);
  if (t.dim() != 1 || (count >= 0 && t.numel() != count)) {
    refuse(argument, count < 0 ? "be a vector" : "have shape " + shape_text({count}), shape(t));
  }
  const Tensor& packed = t.is_contiguous() ? t : copies.emplace_back(row_major_copy(t));
  return static_cast<const int32_t*>(packed.const_data_ptr());
}

namespace {

// The stack of weights, and the sizes that it has.
void check_stack(const Tensor& b, const Shape& b_shape, GroupedInt8Problem& p) {
  Weight& weight = p.product.b;
  if (b_shape && b_shape->size() != 3) refuse("b_shape", "be (E, K, N)", shape_text(*b_shape));
  must_be("b", b, b_shape ? ScalarType::Byte : ScalarType::Char);
  if (!b_shape && b.dim() != 3) refuse("b", "be a stack of matrices [E, K, N]", shape(b));
  p.size.experts = b_shape ? (*b_shape)[0] : b.size(0);
  weight.k = b_shape ? (*b_shape)[1] : b.size(1);
  weight.n = b_shape ? (*b_shape)[2] : b.size(2);
  check_weight_sizes(weight.k, weight.n);
  if (!b_shape) {
    weight.plain = {static_cast<const int8_t*>(b.const_data_ptr()), b.stride(1), b.stride(2)};
    p.expert_stride = b.stride(0);
    return;
  }
  const int64_t bytes = packed_weight_bytes(weight.k, weight.n);
  if (b.dim() != 2 || b.size(0) != p.size.experts || b.size(1) != bytes || !b.is_contiguous()) {
    refuse("b", "be contiguous packed buffers of shape " + shape_text({p.size.experts, bytes}),
           shape(b));
  }
  weight.packed = static_cast<const uint8_t*>(b.const_data_ptr());
  p.expert_stride = bytes;
}

// The operands of one call, each put where the kernels find it.
class Operands {
 public:
  Operands(const Tensor& a, Checked<GroupedInt8Problem>& checked) : a_(a), checked_(checked) {}

  OperandSet given() const { return given_; }

  // One element for each of `rows`, or one for all.
  void along_rows(Operand id, const std::optional<Tensor>& t, int64_t rows) {
    if (!begin(id, t)) return;
    const bool fits = (t->dim() == 1 || (t->dim() == 2 && t->size(1) == 1)) && t->size(0) == rows;
    if (t->numel() != 1 && !fits) {
      refuse(name(id),
             cat("have 1 or ", rows, " elements, in shape (", rows, ",) or (", rows, ", 1)"),
             shape(*t));
    }
    put(id, operand_along(epilogue::Axis::Col, *t, checked_.inputs));
  }

  // One element for each column of each expert.
  void along_columns(Operand id, const std::optional<Tensor>& t) {
    if (!begin(id, t)) return;
    const GroupedInt8Problem::Size& size = checked_.problem.size;
    must_have_shape(id, *t, {size.experts, size.n});
    const DType dtype = dtype_of(*t).value_or(DType::float32);
    put(id, {t->const_data_ptr(), dtype, t->stride(0), t->stride(1)});
  }

  void over_all(Operand id, const std::optional<Tensor>& t) {
    if (!begin(id, t)) return;
    const GroupedInt8Problem::Size& size = checked_.problem.size;
    must_have_shape(id, *t, {size.m, size.n});
    put(id, operand_along(epilogue::Axis::Full, *t, checked_.inputs));
  }

 private:
  static const char* name(Operand id) { return kOperandNames[static_cast<int>(id)]; }

  bool begin(Operand id, const std::optional<Tensor>& t) const {
    if (!t) return false;
    check_operand_dtype(id, *t, checked_.problem.size.out_dtype);
    must_share_device(name(id), *t, "a", a_);
    return true;
  }
  void must_have_shape(Operand id, const Tensor& t, const std::vector<int64_t>& sizes) const {
    if (!t.sizes().equals(sizes)) refuse(name(id), "have shape " + shape_text(sizes), shape(t));
  }
  void put(Operand id, const EpilogueOperand& operand) {
    checked_.problem.product.operands[static_cast<int>(id)] = operand;
    given_ |= bit(id);
  }

  const Tensor& a_;
  Checked<GroupedInt8Problem>& checked_;
  OperandSet given_ = 0;
};

}  // namespace

double experts_hit(int64_t m, int64_t experts) {
  if (m == 0 || experts == 0) return 0;
  return -double(experts) * std::expm1(double(m) * std::log1p(-1 / double(experts)));
}

// An expert has about normally many rows, and more than j times `rows` of them where it has tile j.
double usual_tiles(int64_t m, int64_t experts, int rows) {
  double tiles = experts_hit(m, experts);
  if (tiles == 0) return 0;
  const double mean = double(m) / double(experts), spread = std::sqrt(mean - mean / experts);
  if (spread > rows) return double(experts) * (mean / rows + 0.5);
  const auto certain = static_cast<int64_t>(std::max(0.0, (mean - 4 * spread) / rows - 1));
  tiles += double(experts * certain);
  for (double more = (certain + 1.0) * rows + 0.5; more < mean + 4 * spread; more += rows) {
    tiles += double(experts) * std::erfc((more - mean) / (spread * std::sqrt(2.0))) / 2;
  }
  return tiles;
}

Checked<GroupedInt8Problem> check_grouped_mm(const GroupedArguments& given) {
  const auto& [a, b, offsets, scale_a, scale_b, row_of, b_shape, ending] = given;
  Checked<GroupedInt8Problem> checked;
  GroupedInt8Problem& p = checked.problem;
  GroupedInt8Problem::Size& size = p.size;
  size.out_dtype = check_out_dtype(ending);
  must_be("a", a, ScalarType::Char);
  if (a.dim() != 2) refuse("a", "be a matrix [T, K]", shape(a));
  must_share_device("b", b, "a", a);
  check_stack(b, b_shape, p);
  size.k = p.product.b.k;
  size.n = p.product.b.n;
  if (a.size(1) != size.k) {
    refuse("a", cat("have K=", size.k, " columns, the rows of b"), shape(a));
  }
  p.a_rows = size.m = a.size(0);
  p.product.a = {static_cast<const int8_t*>(a.const_data_ptr()), a.stride(0), a.stride(1)};
  p.offsets = check_index("offsets", offsets, size.experts, "a", a, checked.inputs);
  if (row_of) {
    p.rows = check_index("rows", *row_of, -1, "a", a, checked.inputs);
    size.m = row_of->numel();
  }
  Operands operands(a, checked);
  operands.along_rows(Operand::scale_a, scale_a, p.a_rows);
  operands.along_columns(Operand::scale_b, scale_b);
  operands.along_columns(Operand::bias, ending.bias);
  operands.along_rows(Operand::azp, ending.azp, p.a_rows);
  operands.along_columns(Operand::azp_adj, ending.azp_adj);
  operands.over_all(Operand::residual, ending.residual);
  operands.along_rows(Operand::out_scale, ending.out_scale, size.m);
  operands.along_rows(Operand::out_azp, ending.out_azp, size.m);
  const Activation wanted = epilogue::check_activation(ending.activation, Form::gated);
  size.epilogue = epilogue::choose(operands.given(), wanted);
  size.function = wanted.function;
  if (size.n % epilogue::entry(size.epilogue).columns()) {
    refuse("b", cat("have an even number of columns for activation='", wanted.name, "'"),
           cat("N=", size.n));
  }
  p.product.size = size;
  const Tensor& d = checked.outputs.emplace_back(
      new_empty(a, {size.m, size.out_columns()}, scalar_type(size.out_dtype)));
  p.product.d = d.mutable_data_ptr();
  return checked;
}

Checked<CombinedTokens> check_moe_combine(const Tensor& y, const Tensor& weights,
                                          const Tensor& places,
                                          const std::optional<Tensor>& residual,
                                          const std::optional<ScalarType>& out_dtype) {
  Checked<CombinedTokens> checked;
  CombinedTokens& p = checked.problem;
  const DType of_y = must_be_float("y", y);
  if (y.dim() != 2) refuse("y", "be a matrix [R, N]", shape(y));
  must_be_float("weights", weights);
  must_share_device("weights", weights, "y", y);
  if (weights.dim() != 2) refuse("weights", "be a matrix [T, k]", shape(weights));
  p.tokens = weights.size(0);
  p.top_k = static_cast<int>(weights.size(1));
  p.rows = y.size(0);
  p.columns = y.size(1);
  must_be("places", places, ScalarType::Int);
  must_share_device("places", places, "y", y);
  if (!places.sizes().equals(weights.sizes())) {
    refuse("places", "have the shape of weights, " + shape(weights), shape(places));
  }
  const Tensor& packed =
      places.is_contiguous() ? places : checked.inputs.emplace_back(row_major_copy(places));
  p.places = static_cast<const int32_t*>(packed.const_data_ptr());
  p.y = operand_along(epilogue::Axis::Full, y, checked.inputs);
  p.weights = operand_along(epilogue::Axis::Full, weights, checked.inputs);
  if (residual) {
    must_be_float("residual", *residual);
    must_share_device("residual", *residual, "y", y);
    const std::vector<int64_t> sizes{p.tokens, p.columns};
    if (!residual->sizes().equals(sizes)) {
      refuse("residual", "have the output's shape " + shape_text(sizes), shape(*residual));
    }
    p.residual = operand_along(epilogue::Axis::Full, *residual, checked.inputs);
  }
  p.dtype = of_y;
  if (out_dtype) {
    if (!dtype_of(*out_dtype))
      refuse("out_dtype", "be bfloat16, float16 or float32", name(*out_dtype));
    p.dtype = *dtype_of(*out_dtype);
  }
  const Tensor& d =
      checked.outputs.emplace_back(new_empty(y, {p.tokens, p.columns}, scalar_type(p.dtype)));
  p.d = d.mutable_data_ptr();
  return checked;
}

Checked<TopK> check_moe_sort(const Tensor& top_k_index, int64_t num_experts) {
  Checked<TopK> checked;
  TopK& p = checked.problem;
  p.is_wide = top_k_index.scalar_type() == ScalarType::Long;
  if (!p.is_wide) must_be("top_k_index", top_k_index, ScalarType::Int);
  if (top_k_index.dim() != 2 || !top_k_index.is_contiguous()) {
    refuse("top_k_index", "be a contiguous matrix [T, k]", shape(top_k_index));
  }
  if (num_experts < 0) refuse("num_experts", "be a size", std::to_string(num_experts));
  p.expert_of = top_k_index.const_data_ptr();
  p.tokens = top_k_index.size(0);
  p.top_k = top_k_index.size(1);
  p.experts = num_experts;
  const auto add = [&](std::vector<int64_t> sizes) {
    const Tensor& out =
        checked.outputs.emplace_back(new_empty(top_k_index, std::move(sizes), ScalarType::Int));
    return static_cast<int32_t*>(out.mutable_data_ptr());
  };
  p.to.rows = add({p.tokens * p.top_k});
  p.to.offsets = add({num_experts});
  p.to.places = add({p.tokens, p.top_k});
  return checked;
}

}  // namespace scaled_mm
