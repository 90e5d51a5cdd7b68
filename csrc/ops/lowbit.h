// The products of weights of few bits as the dispatcher calls them.
#pragma once

#include "problems/lowbit.h"

namespace scaled_mm {

// Into a new tensor or into `out`, over what runs a checked problem on a backend; x is for a
// backend that has to copy it first.
template <void (*run)(Checked<LowbitProblem>&, const Tensor& x)>
struct LowbitOps {
  using Text = std::optional<std::string>;
  using Maybe = std::optional<Tensor>;

  static Tensor awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                         const Tensor& qzeros, const Maybe& bias, const Maybe& residual,
                         const Text& activation) {
    return into(x, check_awq_gemm(x, qweight, scales, qzeros, {bias, residual, activation, {}}));
  }
  static void awq_gemm_out(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                           const Tensor& qzeros, const Maybe& bias, const Maybe& residual,
                           const Text& activation, const Tensor& out) {
    into(x, check_awq_gemm(x, qweight, scales, qzeros, {bias, residual, activation, out}));
  }
  static Tensor mixed_mm(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                         const Maybe& order, const Maybe& pre_scale, const Maybe& bias,
                         const Maybe& residual, const Text& activation, bool settled) {
    return into(
        x, check_mixed_mm(
               {x, packed, sizes, order, pre_scale, {bias, residual, activation, {}}, settled}));
  }
  static void mixed_mm_out(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                           const Maybe& order, const Maybe& pre_scale, const Maybe& bias,
                           const Maybe& residual, const Text& activation, bool settled,
                           const Tensor& out) {
    into(x, check_mixed_mm(
                {x, packed, sizes, order, pre_scale, {bias, residual, activation, out}, settled}));
  }

 private:
  static Tensor into(const Tensor& x, Checked<LowbitProblem> checked) {
    run(checked, x);
    return checked.outputs[0];
  }
};

}  // namespace scaled_mm
