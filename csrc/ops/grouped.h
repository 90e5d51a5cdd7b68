// The products of experts' rows as the dispatcher calls them.
#pragma once

#include "problems/groups.h"
#include "problems/mixed_groups.h"

namespace scaled_mm {

// Over what runs a checked problem on a backend.
template <void (*run)(Checked<GroupedInt8Problem>&)>
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offsets, const Tensor& scale_a,
                  const Tensor& scale_b, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& azp, const std::optional<Tensor>& azp_adj,
                  const std::optional<Tensor>& residual,
                  const std::optional<std::string>& activation,
                  const std::optional<ScalarType>& out_dtype,
                  const std::optional<Tensor>& out_scale, const std::optional<Tensor>& out_azp,
                  const std::optional<Tensor>& rows, const Shape& b_shape) {
  Checked<GroupedInt8Problem> checked = check_grouped_mm(
      {a,
       b,
       offsets,
       scale_a,
       scale_b,
       rows,
       b_shape,
       {bias, azp, azp_adj, {}, residual, activation, out_dtype, out_scale, out_azp, {}}});
  run(checked);
  return checked.outputs[0];
}

// The same of weights of few bits; x is for a backend that has to copy it first.
template <void (*run)(Checked<GroupedLowbitProblem>&, const Tensor& x)>
Tensor grouped_mixed_mm(const Tensor& x, const Tensor& packed, const std::vector<int64_t>& sizes,
                        const Tensor& offsets, const std::optional<Tensor>& order,
                        const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                        const std::optional<std::string>& activation,
                        const std::optional<Tensor>& rows, bool settled) {
  Checked<GroupedLowbitProblem> checked = check_grouped_mixed_mm(
      {x, packed, sizes, offsets, order, rows, settled, {bias, residual, activation, {}}});
  run(checked, x);
  return checked.outputs[0];
}

}  // namespace scaled_mm
