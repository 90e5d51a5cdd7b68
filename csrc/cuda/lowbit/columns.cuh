// A weight in words, eight columns of a row at a time: words to weights in registers.
#pragma once

#include "cuda/lowbit/convert.cuh"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// Eight columns of a row, in order, as pairs. lift() leaves pair i lifted; subtract() takes from it
// a zero point that went through lift() and base() in the same place, or fixed(), which is that of
// signed values.
template <class T, int kBits>
struct Columns;

template <class T>
struct Columns<T, 4> {
  using Words = uint32_t;
  static __device__ void lift(Words words, Pair (&pair)[4]) { Nibbles<T>::lift(words, pair); }
  static __device__ Pair base(Pair lifted, int i) { return Nibbles<T>::base(lifted, i); }
  static __device__ Pair fixed(int i) { return Nibbles<T>::fixed(true, i); }
  static __device__ Pair subtract(Pair lifted, Pair base, int i) {
    return Nibbles<T>::subtract_base(lifted, base, i);
  }
};

template <class T>
struct Columns<T, 8> {
  using Words = uint2;
  static __device__ void lift(Words words, Pair (&pair)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Pair apart[2];  // bytes 0 and 2, 1 and 3
      Bytes<T>::lift(i ? words.y : words.x, apart);
      pair[2 * i] = __byte_perm(apart[0], apart[1], 0x5410);
      pair[2 * i + 1] = __byte_perm(apart[0], apart[1], 0x7632);
    }
  }
  static __device__ Pair base(Pair lifted, int) { return lifted; }
  static __device__ Pair fixed(int) { return Bytes<T>::kOf128; }
  static __device__ Pair subtract(Pair lifted, Pair base, int) {
    return Half2Ops<T>::subtract(lifted, base);
  }
};

// The terms of a group in a lane's eight columns.
template <class T, int kBits, ZeroPoint kZero>
struct ColumnGroup {
  using Of = Columns<T, kBits>;
  Pair base[4], scale[4], zero[4];

  __device__ void read(const LowbitWeight& w, int64_t group, int64_t eight) {
    eight_floats(w.scales, group, eight, scale);
    if constexpr (kZero == ZeroPoint::real) eight_floats(w.real_zeros, group, eight, zero);
    if constexpr (kZero == ZeroPoint::integer) {
      const auto* row =
          reinterpret_cast<const typename Of::Words*>(w.zeros.data + group * w.zeros.row_stride);
      Of::lift(__ldca(row + eight), base);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      base[j] = kZero == ZeroPoint::integer ? Of::base(base[j], j) : Of::fixed(j);
    }
  }
  __device__ void weights(typename Of::Words words, Pair (&pair)[4]) const {
    Of::lift(words, pair);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Pair value = Of::subtract(pair[j], base[j], j);
      if constexpr (kZero == ZeroPoint::real) {
        pair[j] = Half2Ops<T>::fma(value, scale[j], zero[j]);
      } else {
        pair[j] = Half2Ops<T>::multiply(value, scale[j]);
      }
    }
  }

 private:
  static __device__ void eight_floats(const Matrix<const uint16_t>& rows, int64_t group,
                                      int64_t eight, Pair (&to)[4]) {
    const uint4 s =
        __ldca(reinterpret_cast<const uint4*>(rows.data + group * rows.row_stride) + eight);
    to[0] = s.x, to[1] = s.y, to[2] = s.z, to[3] = s.w;
  }
};

// use(constant) with an integral_constant of the kind.
template <class Use>
void with_zero_point(ZeroPoint zero, const Use& use) {
  switch (zero) {
    case ZeroPoint::none: return use(std::integral_constant<ZeroPoint, ZeroPoint::none>{});
    case ZeroPoint::integer: return use(std::integral_constant<ZeroPoint, ZeroPoint::integer>{});
    case ZeroPoint::real: return use(std::integral_constant<ZeroPoint, ZeroPoint::real>{});
  }
}

}  // namespace scaled_mm::cuda
