// Arithmetic on sizes. constexpr: host and device code both use it.
#pragma once

#include <cstdint>

namespace scaled_mm {

template <class T>
constexpr T ceil_div(T x, T y) {
  return (x + y - 1) / y;
}
constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }

}  // namespace scaled_mm
