// The packed weight: one layout for every instruction set.
//
//   panel 0: columns 0..15          panel 1: columns 16..31     ...
//   +-------------------------+
//   | k = 0..3   64 bytes     |     the 64 bytes of a group of four k:
//   | k = 4..7   64 bytes     |
//   | ...                     |       column 0          column 1           column 15
//   | last group, k past K: 0 |       k k+1 k+2 k+3     k k+1 k+2 k+3  ... k k+1 k+2 k+3
//   | skew       64 bytes     |
//   +-------------------------+
//
// An element is b ^ 0x80, that is b + 128 as uint8: the unsigned side of the u8 x s8 dot products.
//   sum_k a*(b + 128) = sum_k a*b + 128 * sum_k a
// so a row's accumulators start at -128 times its sum. Elements past K are 0 and multiply A's
// padding; columns past N are computed and dropped. The skew keeps equal offsets of neighbouring
// panels out of one cache set when K is a power of two.
#pragma once

#include <cstdint>
#include <type_traits>

#include "integers.h"
#include "problems/int8.h"

namespace scaled_mm::cpu {

inline constexpr int kPanel = 16;                    // columns of a panel
inline constexpr int kGroup = 4;                     // values of k that lie together
inline constexpr int kGroupBytes = kPanel * kGroup;  // one cache line

constexpr int64_t groups(int64_t k) { return ceil_div(k, kGroup); }
constexpr int64_t panels(int64_t n) { return ceil_div(n, kPanel); }
constexpr int64_t panel_bytes(int64_t k) { return (groups(k) + 1) * kGroupBytes; }

// Rows of A as a microkernel reads them: each instruction set has its own form for the values
// (Micro::load_row), zeros after the last.
struct ARows {
  const char* data;
  int64_t stride;       // bytes from row to row
  const int32_t* init;  // -128 * sum_k a[m, k], see above

  template <class T>
  const T* row(int r) const {
    return reinterpret_cast<const T*>(data + r * stride);
  }
};

// Calls use(integral_constant<int, n>) for 1 <= n <= Max.
template <int Max, class Use>
inline void with_constant(int n, const Use& use) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, use);
  }
  use(std::integral_constant<int, Max>{});
}

// Lays panel `panel` of a plain weight out, in panel_bytes(k) bytes (weight.cpp).
void pack_panel(const Weight& b, int64_t panel, uint8_t* out);

}  // namespace scaled_mm::cpu
