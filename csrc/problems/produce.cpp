#include "problems/produce.h"

#include <cmath>

#include "rules.h"

namespace scaled_mm {
namespace {

Producer check_producer(const std::string& wanted) {
  std::string names;
  int number = 0;
  for (const char* name : kProducerNames) {
    if (wanted == name) return static_cast<Producer>(number);
    names += (number++ ? ", " : "") + std::string(name);
  }
  refuse("producer", "be one of " + names, wanted);
}

// A tensor of x's rows [..., cols] and dtype: its rows, the columns side by side.
Matrix<const void> rows_of(const Tensor& t, std::vector<Tensor>& copies) {
  const int64_t cols = t.size(t.dim() - 1);
  const bool side_by_side = t.stride(t.dim() - 1) == 1 || cols <= 1;
  const Tensor& whole = side_by_side ? t : copies.emplace_back(row_major_copy(t));
  Matrix<const void> rows = fold_rows(whole, copies);
  rows.col_stride = 1;
  return rows;
}

Matrix<const void> check_like(const char* argument, const Tensor& t, const Tensor& x,
                              std::vector<Tensor>& copies) {
  must_be(argument, t, x.scalar_type());
  must_share_device(argument, t, "x", x);
  if (!t.sizes().equals(x.sizes())) refuse(argument, "have x's " + shape(x), shape(t));
  return rows_of(t, copies);
}

EpilogueOperand check_per_column(const char* argument, const std::optional<Tensor>& t,
                                 const Tensor& x, Checked<ProduceProblem>& checked) {
  if (!t) return {};
  const int64_t cols = checked.problem.cols;
  must_be_float32_or(argument, *t, "x's", x.scalar_type());
  must_share_device(argument, *t, "x", x);
  if (!is_per_column(*t, cols)) {
    refuse(argument, cat("have K=", cols, " elements, in shape ", per_column_text(cols)),
           shape(*t));
  }
  const bool flat = t->stride(t->dim() - 1) == 1 || cols <= 1;
  const Tensor& whole = flat ? *t : checked.inputs.emplace_back(row_major_copy(*t));
  EpilogueOperand operand = operand_along(epilogue::Axis::Row, whole, checked.inputs);
  operand.col_stride = 1;
  return operand;
}

// x, and the second factor where x holds both.
void check_x(const ProduceArguments& given, Checked<ProduceProblem>& checked) {
  ProduceProblem& p = checked.problem;
  const Tensor& x = given.x;
  p.x_dtype = must_be_float("x", x);
  if (x.dim() < 1) refuse("x", "have at least one dimension [..., K]", shape(x));
  p.rows = count_rows(x);
  p.cols = x.size(x.dim() - 1);
  p.x = rows_of(x, checked.inputs);
  if (!given.halves) return;
  if (p.cols % 2) refuse("x", "have an even number of columns, both factors'", shape(x));
  p.cols /= 2;
  p.other = p.x;
  if (p.x.data) p.other.data = static_cast<const char*>(p.x.data) + p.cols * size_of(p.x_dtype);
}

// What only norms have, and what only functions have.
void check_operands(const ProduceArguments& given, Checked<ProduceProblem>& checked) {
  ProduceProblem& p = checked.problem;
  const bool norm = is_norm(p.producer);
  const std::optional<Tensor>& other = norm ? given.residual : given.times;
  const char* argument = norm ? "residual" : "times";
  if (other) p.other = check_like(argument, *other, given.x, checked.inputs);
  if (given.normed && !norm) {
    refuse("normed", "be False where the producer is no norm", "True");
  }
  if (norm) {
    p.weight = check_per_column("weight", given.weight, given.x, checked);
    p.bias = check_per_column("bias", given.bias, given.x, checked);
    p.eps = static_cast<float>(given.eps);
    if (!(p.eps >= 0.0f) || std::isinf(p.eps)) {
      refuse("eps", "be finite and not negative", cat(given.eps));
    }
  }
  if (given.smooth) {
    must_be("smooth", *given.smooth, ScalarType::Float);
    const EpilogueOperand smooth = check_per_column("smooth", given.smooth, given.x, checked);
    p.smooth = static_cast<const float*>(smooth.data);
  }
}

}  // namespace

void take_function(ProduceProblem& p, const std::string& producer, const Tensor& x,
                   const std::optional<Tensor>& times, std::vector<Tensor>& copies) {
  p.producer = check_producer(producer);
  if (is_norm(p.producer)) refuse("producer", "be a function", producer);
  p.x = rows_of(x, copies);
  if (times) p.other = check_like("times", *times, x, copies);
}

Checked<ProduceProblem> check_produce(const ProduceArguments& given) {
  Checked<ProduceProblem> checked;
  ProduceProblem& p = checked.problem;
  const Tensor& x = given.x;
  p.producer = check_producer(given.producer);
  check_x(given, checked);
  check_operands(given, checked);
  take_rotation(p, given.rotate);
  const std::vector<int64_t> sizes = sizes_with_last(x, p.cols);
  const Tensor& q = checked.outputs.emplace_back(new_empty(x, sizes, ScalarType::Char));
  p.q = static_cast<int8_t*>(q.mutable_data_ptr());
  if (given.scale) {
    take_scales(p, x, *given.scale, given.azp, checked.inputs);
  } else {
    add_scales(p, x, sizes_with_last(x, 1), given.symmetric, true, checked.outputs);
  }
  const auto add_floats = [&](void*& data) {
    const Tensor& made = checked.outputs.emplace_back(new_empty(x, x.sizes(), x.scalar_type()));
    data = made.mutable_data_ptr();
  };
  if (given.residual && is_norm(p.producer)) add_floats(p.sum);
  if (given.normed) add_floats(p.normed);
  return checked;
}

}  // namespace scaled_mm
