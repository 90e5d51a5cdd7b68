// w4a8_mm as the dispatcher calls it.
#pragma once

#include "problems/k_scales.h"

namespace scaled_mm {

// Into a new tensor or into `out`, over what runs a checked problem on a backend.
template <void (*run)(Checked<KScalesProblem>&)>
struct W4A8Ops {
  using Text = std::optional<std::string>;
  using Maybe = std::optional<Tensor>;
  using DtypeOrNone = std::optional<ScalarType>;

  static Tensor w4a8_mm(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                        const Tensor& scale_a, const Maybe& order, const Maybe& azp,
                        const Maybe& bias, const Maybe& residual, const Text& activation,
                        const DtypeOrNone& out_dtype) {
    return computed(
        {x, packed, sizes, scale_a, order, azp, ending(bias, residual, activation, out_dtype, {})});
  }
  static void w4a8_mm_out(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                          const Tensor& scale_a, const Maybe& order, const Maybe& azp,
                          const Maybe& bias, const Maybe& residual, const Text& activation,
                          const DtypeOrNone& out_dtype, const Tensor& out) {
    computed({x, packed, sizes, scale_a, order, azp,
              ending(bias, residual, activation, out_dtype, out)});
  }

 private:
  static Tensor computed(const W4A8Arguments& given) {
    Checked<KScalesProblem> checked = check_w4a8_mm(given);
    run(checked);
    return checked.outputs[0];
  }
  static Int8Ending ending(const Maybe& bias, const Maybe& residual, const Text& activation,
                           const DtypeOrNone& out_dtype, const Maybe& out) {
    Int8Ending made;
    made.bias = bias;
    made.residual = residual;
    made.activation = activation;
    made.out_dtype = out_dtype;
    made.out = out;
    return made;
  }
};

}  // namespace scaled_mm
