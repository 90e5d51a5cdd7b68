// The products of weights of few bits as the dispatcher calls them.
#pragma once

#include "problems/lowbit.h"

namespace scaled_mm {

// Into a new tensor or into `out`, over what runs a checked problem on a backend; x is for a
// backend that has to copy it first.
template <void (*run)(Checked<LowbitProblem>&, const Tensor& x)>
struct LowbitOps {
  static Tensor awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                         const Tensor& qzeros, const std::optional<Tensor>& bias) {
    Checked<LowbitProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias, std::nullopt);
    run(checked, x);
    return checked.outputs[0];
  }
  static void awq_gemm_out(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                           const Tensor& qzeros, const std::optional<Tensor>& bias,
                           const Tensor& out) {
    Checked<LowbitProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias, out);
    run(checked, x);
  }
  static Tensor mixed_mm(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                         const std::optional<Tensor>& order, const std::optional<Tensor>& pre_scale,
                         const std::optional<Tensor>& bias,
                         const std::optional<std::string>& activation, bool settled) {
    Checked<LowbitProblem> checked = check_mixed_mm(
        {x, packed, sizes, order, pre_scale, bias, activation, settled, std::nullopt});
    run(checked, x);
    return checked.outputs[0];
  }
  static void mixed_mm_out(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                           const std::optional<Tensor>& order,
                           const std::optional<Tensor>& pre_scale,
                           const std::optional<Tensor>& bias,
                           const std::optional<std::string>& activation, bool settled,
                           const Tensor& out) {
    Checked<LowbitProblem> checked =
        check_mixed_mm({x, packed, sizes, order, pre_scale, bias, activation, settled, out});
    run(checked, x);
  }
};

}  // namespace scaled_mm
