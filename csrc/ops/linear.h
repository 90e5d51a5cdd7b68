// A layer's product in one op: its activation is quantised, then multiplied.
#pragma once

#include "problems/linear.h"

namespace scaled_mm {

// As the dispatcher calls it, over what runs checked problems on a backend: `quantize` the
// quantiser's, on the device of a tensor, and `multiply` the product's. Scratch(x, bytes) is memory
// on the device of x, at data().
template <void (*quantize)(const LinearProblem&, const Tensor&),
          void (*multiply)(Checked<Int8Problem>&), class Scratch>
struct LinearOps {
  using Maybe = std::optional<Tensor>;

  static Tensor scaled_linear(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                              const Maybe& bias, int64_t k, bool settled, bool symmetric,
                              bool per_token, const Maybe& input_scale, const Maybe& input_azp,
                              const Maybe& azp_term, int64_t rotate,
                              std::optional<ScalarType> out_dtype, const Maybe& input_smooth) {
    LinearProblem p =
        check_scaled_linear({x, weight, weight_scale, bias, k, settled, symmetric, per_token,
                             input_scale, input_azp, azp_term, rotate, out_dtype, input_smooth});
    Scratch scratch(x, p.scratch_bytes());
    p.place(scratch.data());
    quantize(p, x);
    multiply(p.product);
    return p.product.outputs[0];
  }
};

}  // namespace scaled_mm
