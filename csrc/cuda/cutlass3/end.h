// What stands at either end of a visitor tree: 16-bit floats made float32; float32 activated, and
// rounded to 16 or 8 bits. Which function and dtype is told when the kernel runs: one branch for a
// fragment.
#pragma once

#include <cutlass/array.h>

#include "cuda/common/formats.cuh"
#include "cuda/epilogue/finish.cuh"

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

struct ActivateArguments {
  Function function;
};

// x = f(x)
template <class>
struct Activate {
  using Arguments = ActivateArguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<float, kSize> operator()(cutlass::Array<float, kSize> x,
                                                         const Arguments& by) const {
    apply_function(by.function, reinterpret_cast<float (&)[kSize]>(x));
    return x;
  }
};

// x = f(gate) x of neighbouring columns, gate and x in turns: half as many elements, and zeros.
template <class>
struct Gate {
  using Arguments = ActivateArguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<float, kSize> operator()(const cutlass::Array<float, kSize>& x,
                                                         const Arguments& by) const {
    float gate[kSize / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize / 2; ++i) gate[i] = x[2 * i];
    apply_function(by.function, gate);
    cutlass::Array<float, kSize> gated{};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize / 2; ++i) gated[i] = __fmul_rn(gate[i], x[2 * i + 1]);
    return gated;
  }
};

// The first half of the elements, each as two of half as many bits, the low ones first.
template <class Half>
struct Halve {
  template <class>
  struct Function {
    template <class T, int kSize>
    CUTLASS_DEVICE cutlass::Array<Half, kSize> operator()(const cutlass::Array<T, kSize>& x) const {
      static_assert(sizeof(cutlass::Array<Half, kSize>) == sizeof(cutlass::Array<T, kSize / 2>));
      return reinterpret_cast<const cutlass::Array<Half, kSize>&>(x);
    }
  };
};

struct QuantiseArguments {
  DType dtype;
  bool symmetric;
};

// To 8 bits, by each element's scale and zero point, which a whole row has in common.
template <class>
struct Quantise {
  using Arguments = QuantiseArguments;
  template <int kSize>
  CUTLASS_DEVICE cutlass::Array<uint8_t, kSize> operator()(
      const cutlass::Array<float, kSize>& x, const cutlass::Array<float, kSize>& scale,
      const cutlass::Array<float, kSize>& azp, const Arguments& to) const {
    cutlass::Array<uint8_t, kSize> q;
    auto* const words = reinterpret_cast<uint32_t*>(q.data());
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; i += 4) {
      if (to.dtype == DType::int8) {
        int32_t four[4];
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < 4; ++e) {
          const auto by =
              quantizer_given(scale[i + e], static_cast<int32_t>(azp[i + e]), to.symmetric);
          four[e] = by.is_quick ? by.quick_limited(x[i + e]) : by.exact(x[i + e]);
        }
        words[i / 4] = pack(four[0], four[1], four[2], four[3]);
      } else {
        const auto of = [&](int e) {
          return within_e4m3(__fmul_rn(x[i + e], __frcp_rn(scale[i + e])));
        };
        words[i / 4] = pack_e4m3(of(0), of(1)) | pack_e4m3(of(2), of(3)) << 16;
      }
    }
    return q;
  }
};

}  // namespace scaled_mm::cuda::cutlass3
