// Column sums of a weight as the dispatcher calls them.
#pragma once

#include "problems/int8.h"

namespace scaled_mm {

// Over what runs a checked problem on a backend.
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
