// A layer's product: its activation is quantised, and multiplied by the weight.
#pragma once

#include "problems/int8.h"
#include "problems/produce.h"

namespace scaled_mm {

struct LinearArguments {
  const Tensor &x, &weight, &weight_scale;  // weight int8 [N, K] or packed; the scales [N, 1]
  const std::optional<Tensor>& bias;
  int64_t k = 0;
  bool settled = false;
  const std::optional<Tensor>& input_smooth;  // float32 [K]: the activation is multiplied by it
  bool symmetric = true, per_token = true;
  // Static: the activation's scale and, asymmetric, its zero point. azp_term is the azp_adj of a
  // dynamic asymmetric quantiser, the azp_with_adj of a static one.
  const std::optional<Tensor>&input_scale, &input_azp, &azp_term;
  int64_t rotate = 0;
  // A function of x, and its second factor: what is quantised in the place of x.
  const std::optional<std::string>& producer;
  const std::optional<Tensor>& times;
};
struct LinearProblem {
  ProduceProblem activation;
  Checked<Int8Problem> product;

  // What stands between the two, q and what a dynamic quantiser makes besides: its size, and where
  // it is to lie, at a multiple of 16 bytes.
  int64_t scratch_bytes() const;
  void place(void* scratch);
};
LinearProblem check_scaled_linear(const LinearArguments& given);

}  // namespace scaled_mm
