// The short ways that eager calls take to the products: ops whose arguments go by position, and
// which take the shape of a packed weight as two numbers, since a list costs a call more than all
// of them.
#pragma once

#include "problems/int8.h"

namespace scaled_mm {

// The b_shape of other ops: absent, for a plain weight, where k and n are -1.
inline Shape shape_of(int64_t k, int64_t n) {
  if (k == -1 && n == -1) return std::nullopt;
  return Shape({k, n});
}

// _scaled_mm_plain, over the products of a backend.
template <class Ops>
Tensor scaled_mm_plain(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                       const Tensor& scale_b, const std::optional<Tensor>& bias, int64_t k,
                       int64_t n, bool b_settled) {
  return Ops::scaled_mm_plain(a, b, scale_a, scale_b, bias, shape_of(k, n), b_settled);
}

}  // namespace scaled_mm
