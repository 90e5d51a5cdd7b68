// Ended sums of a CUTLASS 3.x kernel (ended.h) as elements of D: their rounding, in the registers
// that the sums had, and how CUTLASS's epilogue takes them from there.
//
// Include after CUTLASS's collective builders.
#pragma once

#include "cuda/epilogue/finish.cuh"
#ifdef SCALED_MM_COMPILED
#include "cuda/epilogue/compiled.cuh"
#endif

namespace scaled_mm::cuda::cutlass3 {

// What the fragments of ended sums hold: of the two columns of two rows of a thread, narrow
// elements lie in the place of the first column, those of both rows together where they have 8
// bits.
template <class Out>
struct Unpack {
  template <class>
  struct Function {
    template <int kSize>
    CUTLASS_DEVICE auto operator()(const cutlass::Array<int32_t, kSize>& ended) const {
      cutlass::Array<Out, kSize> all;
      auto* const words = reinterpret_cast<int32_t*>(all.data());
      constexpr int kPerWord = 4 / sizeof(Out);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize / kPerWord; ++i) words[i] = ended[kPerWord * i];
      return all;
    }
  };
};

// The rounding to D's dtype of elements of two rows, as Unpack takes them. Out: the storage type of
// D.
template <class Out>
struct Rounding {
  DType dtype;

  template <class Operands>
  CUTLASS_DEVICE Rounding(const Destination& to, const Operands&, int) : dtype(to.out.dtype) {}

  template <int kSize, int kWords>
  CUTLASS_DEVICE void operator()(const float (&x)[kSize], int32_t (&word)[kWords]) const {
    if constexpr (sizeof(Out) == 4) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) word[i] = __float_as_int(x[i]);
    } else {
      with_dtype16(dtype, [&](auto to) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize; i += 2) {
          word[i] = static_cast<int32_t>(Format<decltype(to)::value>::narrow(x[i], x[i + 1]));
        }
      });
    }
  }
};
template <>
struct Rounding<uint8_t> {
  bool to_int8, quick, symmetric;
  Quantizer by[2];

  template <class Operands>
  CUTLASS_DEVICE Rounding(const Destination& to, const Operands& operands, int first_row)
      : to_int8(to.out.dtype == DType::int8), symmetric(to.symmetric) {
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < 2; ++row) {
      const auto get = [&](auto leaf) { return operands.at(leaf, first_row + 8 * row, 0); };
      by[row] = quantizer_given(get(epilogue::OutScale{}), get(epilogue::OutAzp{}), to.symmetric);
    }
    quick = by[0].is_quick && by[1].is_quick;
  }

  template <int kSize, int kWords>
  CUTLASS_DEVICE void operator()(const float (&x)[kSize], int32_t (&word)[kWords]) const {
    const auto each = [&](const auto& four) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; i += 4) {
        word[i] = static_cast<int32_t>(four(x[i], x[i + 1], x[i + 2], x[i + 3]));
      }
    };
    const auto all_finite = [&] {
      float poison = 0.0f;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) poison = __fmaf_rn(x[i], 0.0f, poison);
      return poison == 0.0f;
    };
    if (to_int8 && quick && symmetric && all_finite()) {
      each([&](float x0, float x1, float x2, float x3) {
        const auto of = [](float x, const Quantizer& by) {
          return by.low_byte(fminf(fmaxf(x, -by.limit), by.limit));
        };
        return __byte_perm(__byte_perm(of(x0, by[0]), of(x1, by[0]), 0x0040),
                           __byte_perm(of(x2, by[1]), of(x3, by[1]), 0x0040), 0x5410);
      });
    } else if (to_int8 && quick) {
      each([&](float x0, float x1, float x2, float x3) {
        return pack(by[0].quick_limited(x0), by[0].quick_limited(x1), by[1].quick_limited(x2),
                    by[1].quick_limited(x3));
      });
    } else if (to_int8) {
      each([&](float x0, float x1, float x2, float x3) {
        return pack(by[0].exact(x0), by[0].exact(x1), by[1].exact(x2), by[1].exact(x3));
      });
    } else {
      each([&](float x0, float x1, float x2, float x3) {
        const auto of = [](float x, float r) { return within_e4m3(__fmul_rn(x, r)); };
        return pack_e4m3(of(x0, by[0].reciprocal), of(x1, by[0].reciprocal)) |
               pack_e4m3(of(x2, by[1].reciprocal), of(x3, by[1].reciprocal)) << 16;
      });
    }
  }
};

#ifdef SCALED_MM_COMPILED
// Of a program, which has rounded already but for the bits that are left out.
template <class P>
struct CompiledRounding {
  using Of = CompiledFormat<P::kDtypes[0]>;

  template <class Operands>
  CUTLASS_DEVICE CompiledRounding(const Destination&, const Operands&, int) {}

  template <int kSize, int kWords>
  CUTLASS_DEVICE void operator()(const float (&x)[kSize], int32_t (&word)[kWords]) const {
    uint32_t bits[kSize], packed[kSize];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; ++i) bits[i] = __float_as_uint(x[i]);
    Of::pack(bits, packed);
    constexpr int kPerWord = 4 / Of::kBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; i += kPerWord) {
      word[i] = static_cast<int32_t>(packed[i / kPerWord]);
    }
  }
};

#endif

}  // namespace scaled_mm::cuda::cutlass3
