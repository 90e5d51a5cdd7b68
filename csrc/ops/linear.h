// A layer's product in one op: its activation is quantised, then multiplied.
#pragma once

#include "problems/linear.h"

namespace scaled_mm {

// As the dispatcher calls it, over what runs a checked problem on a backend, for an x.
template <void (*run)(LinearProblem&, const Tensor&)>
Tensor scaled_linear(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                     const std::optional<Tensor>& bias, int64_t k, bool settled,
                     const std::optional<Tensor>& input_smooth, bool symmetric, bool per_token,
                     const std::optional<Tensor>& input_scale,
                     const std::optional<Tensor>& input_azp, const std::optional<Tensor>& azp_term,
                     int64_t rotate, const std::optional<std::string>& producer,
                     const std::optional<Tensor>& times) {
  LinearProblem p =
      check_scaled_linear({x, weight, weight_scale, bias, k, settled, input_smooth, symmetric,
                           per_token, input_scale, input_azp, azp_term, rotate, producer, times});
  run(p, x);
  return p.product.outputs[0];
}

}  // namespace scaled_mm
