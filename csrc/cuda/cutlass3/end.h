// What stands at either end of a visitor tree: 16-bit floats made float32, and float32 rounded to
// them. Which of both dtypes is told when the kernel runs: one branch for a fragment.
#pragma once

#include <cutlass/array.h>

#include "cuda/common/formats.cuh"

namespace scaled_mm::cuda::cutlass3 {

struct Dtype16Arguments {
  DType dtype;
};

// A matrix operand's elements as float32.
template <class>
struct Widen {
  using Arguments = Dtype16Arguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<float, kSize> operator()(
      const cutlass::Array<uint16_t, kSize>& from, const Arguments& of) const {
    const auto* const words = reinterpret_cast<const uint32_t*>(from.data());
    cutlass::Array<float, kSize> wide;
    with_dtype16(of.dtype, [&](auto dtype) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        wide[i] = Format<decltype(dtype)::value>::widen(words[i / 2], i % 2);
      }
    });
    return wide;
  }
};

// To 16 bits.
template <class>
struct Narrow {
  using Arguments = Dtype16Arguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<uint16_t, kSize> operator()(
      const cutlass::Array<float, kSize>& value, const Arguments& to) const {
    cutlass::Array<uint16_t, kSize> rounded;
    auto* const pairs = reinterpret_cast<uint32_t*>(rounded.data());
    with_dtype16(to.dtype, [&](auto dtype) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize / 2; ++i) {
        pairs[i] = Format<decltype(dtype)::value>::narrow(value[2 * i], value[2 * i + 1]);
      }
    });
    return rounded;
  }
};

}  // namespace scaled_mm::cuda::cutlass3
