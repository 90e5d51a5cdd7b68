// The int8 products, and column sums of their weights, as the dispatcher calls them.
#pragma once

#include "problems/k_scales.h"

namespace scaled_mm {

// The b_shape of other ops: absent, for a plain weight, where k and n are -1.
inline Shape shape_of(int64_t k, int64_t n) {
  if (k == -1 && n == -1) return std::nullopt;
  return Shape({k, n});
}

// Into a new tensor or into `out`, over what runs a checked problem on a backend. With scales in
// blocks that is run_blocks.
template <void (*run)(Checked<Int8Problem>&), void (*run_blocks)(Checked<KScalesProblem>&)>
struct Int8Ops {
  static Tensor scaled_mm(
      const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
      const std::optional<Tensor>& bias, const std::optional<Tensor>& azp,
      const std::optional<Tensor>& azp_adj, const std::optional<Tensor>& azp_with_adj,
      const std::optional<Tensor>& residual, const std::optional<std::string>& activation,
      const std::optional<ScalarType>& out_dtype, const std::optional<Tensor>& out_scale,
      const std::optional<Tensor>& out_azp, const Shape& b_shape, bool b_settled) {
    return product(a, b, scale_a, scale_b, b_shape, b_settled,
                   {bias,
                    azp,
                    azp_adj,
                    azp_with_adj,
                    residual,
                    activation,
                    out_dtype,
                    out_scale,
                    out_azp,
                    {}});
  }
  // The commonest operands, by position; the weight's shape as two numbers, since a list costs an
  // eager call more than all of them.
  static Tensor scaled_mm_plain(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                const Tensor& scale_b, const std::optional<Tensor>& bias, int64_t k,
                                int64_t n, bool b_settled,
                                const std::optional<ScalarType>& out_dtype) {
    Int8Ending ending;
    ending.bias = bias;
    ending.out_dtype = out_dtype;
    return product(a, b, scale_a, scale_b, shape_of(k, n), b_settled, ending);
  }
  static void scaled_mm_out(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                            const Tensor& scale_b, const std::optional<Tensor>& bias,
                            const std::optional<Tensor>& azp, const std::optional<Tensor>& azp_adj,
                            const std::optional<Tensor>& azp_with_adj,
                            const std::optional<Tensor>& residual,
                            const std::optional<std::string>& activation,
                            const std::optional<ScalarType>& out_dtype,
                            const std::optional<Tensor>& out_scale,
                            const std::optional<Tensor>& out_azp, const Shape& b_shape,
                            bool b_settled, const Tensor& out) {
    product(a, b, scale_a, scale_b, b_shape, b_settled,
            {bias, azp, azp_adj, azp_with_adj, residual, activation, out_dtype, out_scale, out_azp,
             out});
  }
  static Tensor int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape, bool b_settled) {
    return computed(check_int8_mm(a, b, b_shape, b_settled, std::nullopt));
  }
  static void int8_mm_out(const Tensor& a, const Tensor& b, const Shape& b_shape, bool b_settled,
                          const Tensor& out) {
    computed(check_int8_mm(a, b, b_shape, b_settled, out));
  }

 private:
  static Tensor product(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                        const Tensor& scale_b, const Shape& b_shape, bool b_settled,
                        const Int8Ending& ending) {
    if (is_in_blocks(b, scale_b, b_shape)) {
      Checked<KScalesProblem> checked =
          check_blocks(a, b, scale_a, scale_b, b_shape, b_settled, ending);
      run_blocks(checked);
      return checked.outputs[0];
    }
    return computed(check_scaled_mm(a, b, scale_a, scale_b, ending, b_shape, b_settled));
  }
  static Tensor computed(Checked<Int8Problem> checked) {
    run(checked);
    return checked.outputs[0];
  }
};

template <Tensor (*sum)(const Checked<ColumnSums>&)>
struct AzpOps {
  static Tensor azp_adj(const Tensor& b, Shape b_shape) {
    return sum(check_azp_adj(b, std::nullopt, b_shape));
  }
  static Tensor azp_with_adj(const Tensor& b, const Tensor& azp, Shape b_shape) {
    return sum(check_azp_adj(b, azp, b_shape));
  }
};

}  // namespace scaled_mm
