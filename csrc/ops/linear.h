// A layer's product in one op: its activation is quantised, then multiplied.
#pragma once

#include "ops/int8.h"
#include "problems/quantize.h"

namespace scaled_mm {

// A layer's scales [N, 1] as the vector [N] that a product takes; the same memory.
Tensor vector_of_scales(const Tensor& scales);

// As the dispatcher calls it, over what runs checked problems on a backend: `quantize` the
// quantiser's, on the device of q, and `multiply` the product's.
template <void (*quantize)(const QuantizeProblem&, const Tensor& q),
          void (*multiply)(Checked<Int8Problem>&)>
struct LinearOps {
  static Tensor scaled_linear(const Tensor& x, const Tensor& b, const Tensor& scale_b,
                              const std::optional<Tensor>& bias, int64_t k, int64_t n,
                              bool b_settled) {
    const Checked<QuantizeProblem> activation = check_quantize(x, true, true, 0);
    const Tensor& q = activation.outputs[0];
    const Tensor& scale_a = activation.outputs[1];
    quantize(activation.problem, q);
    Int8Ending ending;
    ending.bias = bias;
    ending.out_dtype = x.scalar_type();
    Checked<Int8Problem> product = check_scaled_mm(q, b, scale_a, vector_of_scales(scale_b), ending,
                                                   shape_of(k, n), b_settled);
    multiply(product);
    return product.outputs[0];
  }
};

}  // namespace scaled_mm
