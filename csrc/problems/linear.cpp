#include "problems/linear.h"

#include "integers.h"
#include "rules.h"

namespace scaled_mm {
namespace {

Weight check_layer_weight(const LinearArguments& given, int64_t n) {
  const Tensor& w = given.weight;
  must_share_device("weight", w, "x", given.x);
  Weight weight;
  if (w.dim() == 1) {
    weight = check_packed_weight("weight", w, given.k, n);
    weight.settled = given.settled;
    return weight;
  }
  must_be("weight", w, ScalarType::Char);
  if (w.dim() != 2 || w.size(0) != n || w.size(1) != given.k) {
    refuse("weight", "be packed or have shape [N, K]=" + shape_text({n, given.k}), shape(w));
  }
  if (given.settled) refuse("settled", "be False for a weight that is not packed", "True");
  weight.k = given.k;
  weight.n = n;
  weight.plain = {static_cast<const int8_t*>(w.const_data_ptr()), w.stride(1), w.stride(0)};
  return weight;
}

// Returns N.
int64_t check_scales(const LinearArguments& given, Int8Problem& p) {
  const Tensor& scales = given.weight_scale;
  must_be("weight_scale", scales, ScalarType::Float);
  must_share_device("weight_scale", scales, "x", given.x);
  if (scales.dim() != 2 || scales.size(1) != 1) {
    refuse("weight_scale", "have shape [N, 1]", shape(scales));
  }
  p.operands[static_cast<int>(Operand::scale_b)] = {scales.const_data_ptr(), DType::float32, 0,
                                                    scales.stride(0)};
  return scales.size(0);
}

const float* check_smooth(const Tensor& smooth, const LinearArguments& given,
                          std::vector<Tensor>& copies) {
  must_be("input_smooth", smooth, ScalarType::Float);
  must_share_device("input_smooth", smooth, "x", given.x);
  if (!is_per_column(smooth, given.k)) {
    refuse("input_smooth",
           cat("have K=", given.k, " elements, in shape ", per_column_text(given.k)),
           shape(smooth));
  }
  const bool flat = smooth.stride(smooth.dim() - 1) == 1 || given.k <= 1;
  const Tensor& whole = flat ? smooth : copies.emplace_back(row_major_copy(smooth));
  return static_cast<const float*>(whole.const_data_ptr());
}

void check_activation(const LinearArguments& given, ProduceProblem& p,
                      std::vector<Tensor>& copies) {
  take_rows(p, "x", given.x, given.rotate, copies);
  if (given.k < 0 || given.k > kMaxK) refuse("k", cat("be in 0..", kMaxK), cat(given.k));
  if (p.cols != given.k) refuse("x", cat("have K=", given.k, " columns"), shape(given.x));
  if (given.producer) {
    take_function(p, *given.producer, given.x, given.times, copies);
  } else if (given.times) {
    refuse("times", "be given with a producer", shape(*given.times));
  }
  if (given.input_smooth) p.smooth = check_smooth(*given.input_smooth, given, copies);
  const bool shifts = given.input_scale && !given.symmetric;  // by a zero point that is given
  if (given.input_azp.has_value() != shifts) {
    refuse("input_azp",
           shifts ? "be given with input_scale and symmetric=False"
                  : "be given with input_scale and symmetric=False alone",
           shifts ? "None" : shape(*given.input_azp));
  }
  if (given.input_scale) {
    take_scales(p, given.x, *given.input_scale, given.input_azp, copies);
    return;
  }
  if (given.producer && !given.per_token) {
    refuse("per_token", "be True with a producer and no input_scale", "False");
  }
  p.symmetric = given.symmetric;
  p.per_token = given.per_token;
  p.scale_stride = p.azp_stride = given.per_token ? 1 : 0;
}

// The term of zero points: azp_adj, or azp_with_adj of those given. Returns the operands' bits.
OperandSet check_term(const LinearArguments& given, Checked<Int8Problem>& checked) {
  const std::optional<Tensor>& term = given.azp_term;
  if (term.has_value() == given.symmetric) {
    refuse("azp_term",
           given.symmetric ? "be None with symmetric=True" : "be given with symmetric=False",
           term ? shape(*term) : "None");
  }
  if (!term) return 0;
  Int8Problem& p = checked.problem;
  must_be("azp_term", *term, ScalarType::Int);
  must_share_device("azp_term", *term, "x", given.x);
  if (!is_per_column(*term, p.size.n)) {
    refuse("azp_term", cat("have N=", p.size.n, " elements, in shape ", per_column_text(p.size.n)),
           shape(*term));
  }
  const Operand slot = given.input_scale ? Operand::azp_with_adj : Operand::azp_adj;
  p.operands[static_cast<int>(slot)] = operand_along(epilogue::Axis::Row, *term, checked.inputs);
  return given.input_scale ? bit(slot) : bit(slot) | bit(Operand::azp);
}

}  // namespace

LinearProblem check_scaled_linear(const LinearArguments& given) {
  LinearProblem checked;
  Int8Problem& p = checked.product.problem;
  check_activation(given, checked.activation, checked.product.inputs);
  p.b = check_layer_weight(given, check_scales(given, p));
  p.size.m = checked.activation.rows;
  p.size.n = p.b.n;
  p.size.k = p.b.k;
  p.a = {nullptr, p.size.k, 1};
  const OperandSet operands =
      bit(Operand::scale_a) | bit(Operand::scale_b) | check_term(given, checked.product);
  Int8Ending ending;
  ending.bias = given.bias;
  ending.out_dtype = scalar_type(checked.activation.x_dtype);
  check_ending({"x", given.x, "weight", given.weight}, ending, checked.product, operands);
  return checked;
}

int64_t LinearProblem::scratch_bytes() const {
  const QuantizeProblem& p = activation;
  const int64_t scales = p.given ? 0 : p.per_token ? p.rows : 1;
  return round_up(p.rows * p.cols, 16) + 4 * scales * (p.symmetric ? 1 : 2);
}

void LinearProblem::place(void* scratch) {
  QuantizeProblem& p = activation;
  Int8Problem& to = product.problem;
  to.a.data = p.q = static_cast<int8_t*>(scratch);
  if (!p.given) {
    p.scale = reinterpret_cast<float*>(p.q + round_up(p.rows * p.cols, 16));
    if (!p.symmetric) {
      p.azp = reinterpret_cast<int32_t*>(p.scale + (p.per_token ? p.rows : 1));
      to.operands[static_cast<int>(Operand::azp)] = {p.azp, DType::float32, p.azp_stride, 0};
    }
  }
  to.operands[static_cast<int>(Operand::scale_a)] = {p.scale, DType::float32, p.scale_stride, 0};
}

}  // namespace scaled_mm
