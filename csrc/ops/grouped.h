// A product of several experts as the dispatcher calls it.
#pragma once

#include "problems/groups.h"

namespace scaled_mm {

template <void (*run)(Checked<GroupedInt8Problem>&)>
Tensor grouped_mm(const Tensor& a, const Tensor& b, const Tensor& offsets, const Tensor& scale_a,
                  const Tensor& scale_b, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& azp, const std::optional<Tensor>& azp_adj,
                  const std::optional<Tensor>& azp_with_adj, const std::optional<Tensor>& residual,
                  const std::optional<std::string>& activation,
                  const std::optional<ScalarType>& out_dtype,
                  const std::optional<Tensor>& out_scale, const std::optional<Tensor>& out_azp,
                  const Shape& b_shape, const std::optional<Tensor>& rows) {
  const Int8Ending ending{bias,       azp,       azp_adj,   azp_with_adj, residual,
                          activation, out_dtype, out_scale, out_azp,      {}};
  auto checked = check_grouped_mm(a, b, offsets, scale_a, scale_b, ending, b_shape, rows);
  run(checked);
  return checked.outputs[0];
}

}  // namespace scaled_mm
