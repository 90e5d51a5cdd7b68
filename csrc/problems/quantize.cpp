#include "problems/quantize.h"

#include "rules.h"

namespace scaled_mm {
namespace {

// A given scale or azp of the static quantiser: one element, or one for each row of x.
template <class T>
int64_t check_given(const char* argument, const Tensor& t, const Tensor& x, ScalarType dtype,
                    T*& data, std::vector<Tensor>& copies) {
  must_be(argument, t, dtype);
  must_share_device(argument, t, "x", x);
  if (t.numel() != 1 && !is_per_row(t, x)) {
    refuse(argument, cat("have 1 or ", count_rows(x), " elements, in shape ", per_row_text(x)),
           shape(t));
  }
  const EpilogueOperand by_row = operand_along(epilogue::Axis::Col, t, copies);
  data = static_cast<T*>(const_cast<void*>(by_row.data));  // it is given, so it is only read
  return by_row.row_stride;
}

Checked<QuantizeProblem> check_quantizable(const char* argument, const Tensor& x, int64_t rotate) {
  Checked<QuantizeProblem> checked;
  QuantizeProblem& p = checked.problem;
  take_rows(p, argument, x, rotate, checked.inputs);
  const Tensor& q = checked.outputs.emplace_back(new_empty(x, x.sizes(), ScalarType::Char));
  p.q = static_cast<int8_t*>(q.mutable_data_ptr());
  return checked;
}

}  // namespace

void take_rows(QuantizeProblem& p, const char* argument, const Tensor& x, int64_t rotate,
               std::vector<Tensor>& copies) {
  p.x_dtype = must_be_float(argument, x);
  if (x.dim() < 1) refuse(argument, "have at least one dimension [..., K]", shape(x));
  p.rows = count_rows(x);
  p.cols = x.size(x.dim() - 1);
  take_rotation(p, rotate);
  p.x = fold_rows(x, copies);
}

void take_rotation(QuantizeProblem& p, int64_t rotate) {
  p.rotate = rotate;
  if (rotate == 0) return;
  const bool is_block = rotate >= 16 && rotate <= 512 && (rotate & (rotate - 1)) == 0;
  if (is_block && p.cols % rotate == 0) return;
  refuse("rotate", cat("be 16, 32, 64, 128, 256 or 512 and divide K=", p.cols), cat(rotate));
}

void add_scales(QuantizeProblem& p, const Tensor& x, Sizes sizes, bool symmetric, bool per_token,
                std::vector<Tensor>& outputs) {
  p.symmetric = symmetric;
  p.per_token = per_token;
  p.scale_stride = p.azp_stride = per_token ? 1 : 0;
  const Tensor& scale = outputs.emplace_back(new_empty(x, sizes, ScalarType::Float));
  p.scale = static_cast<float*>(scale.mutable_data_ptr());
  if (symmetric) return;
  const Tensor& azp = outputs.emplace_back(new_empty(x, sizes, ScalarType::Int));
  p.azp = static_cast<int32_t*>(azp.mutable_data_ptr());
}

void take_scales(QuantizeProblem& p, const Tensor& x, const Tensor& scale,
                 const std::optional<Tensor>& azp, std::vector<Tensor>& copies) {
  p.given = true;
  p.symmetric = !azp;
  p.scale_stride = check_given("scale", scale, x, ScalarType::Float, p.scale, copies);
  if (azp) p.azp_stride = check_given("azp", *azp, x, ScalarType::Int, p.azp, copies);
}

Checked<QuantizeProblem> check_quantize(const Tensor& x, bool symmetric, bool per_token,
                                        int64_t rotate) {
  Checked<QuantizeProblem> checked = check_quantizable("x", x, rotate);
  const std::vector<int64_t> sizes = per_token ? sizes_with_last(x, 1) : std::vector<int64_t>{1};
  add_scales(checked.problem, x, sizes, symmetric, per_token, checked.outputs);
  return checked;
}

Checked<QuantizeProblem> check_quantize_weight(const Tensor& w, bool per_channel, int64_t rotate) {
  if (w.dim() != 2) refuse("w", "be a matrix [N, K]", shape(w));
  Checked<QuantizeProblem> checked = check_quantizable("w", w, rotate);
  add_scales(checked.problem, w, {1, per_channel ? w.size(0) : 1}, true, per_channel,
             checked.outputs);
  return checked;
}

Checked<QuantizeProblem> check_quantize_static(const Tensor& x, const Tensor& scale,
                                               const std::optional<Tensor>& azp, int64_t rotate) {
  Checked<QuantizeProblem> checked = check_quantizable("x", x, rotate);
  take_scales(checked.problem, x, scale, azp, checked.inputs);
  return checked;
}

}  // namespace scaled_mm
