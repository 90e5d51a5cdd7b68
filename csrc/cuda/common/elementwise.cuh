// The operations of the vocabulary on CUTLASS's fragments, for visitor trees.
#pragma once

#include <cutlass/array.h>

#include "cuda/common/lower.cuh"

namespace scaled_mm::cuda {

// An operation on fragments, in the form that CUTLASS's compute nodes take.
template <class Op>
struct Elementwise {
  template <class>
  struct Function {
    template <class T, int kSize, class... Ts>
    CUTLASS_DEVICE auto operator()(const cutlass::Array<T, kSize>& first,
                                   const cutlass::Array<Ts, kSize>&... rest) const {
      cutlass::Array<decltype(apply(Op{}, first[0], rest[0]...)), kSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) result[i] = apply(Op{}, first[i], rest[i]...);
      return result;
    }
  };
};

// The last operation: float32 to D's dtype. One kernel serves both 16-bit dtypes.
struct RoundingArguments {
  DType dtype;
};
template <class>
struct RoundTo16Bits {
  using Arguments = RoundingArguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<uint16_t, kSize> operator()(
      const cutlass::Array<float, kSize>& value, const Arguments& to) const {
    static_assert(kSize % 2 == 0);
    cutlass::Array<uint16_t, kSize> rounded;
    uint32_t* const pairs = reinterpret_cast<uint32_t*>(rounded.data());
    with_dtype16(to.dtype, [&](auto dtype) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize / 2; ++i) {
        pairs[i] = Format<decltype(dtype)::value>::narrow(value[2 * i], value[2 * i + 1]);
      }
    });
    return rounded;
  }
};

}  // namespace scaled_mm::cuda
