// The rounding of ended sums of a CUTLASS 3.x kernel (ended.h) to elements of D.
//
// Include after CUTLASS's collective builders.
#pragma once

#include "cuda/epilogue/finish.cuh"
#ifdef SCALED_MM_COMPILED
#include "cuda/epilogue/compiled.cuh"
#endif

namespace scaled_mm::cuda::cutlass3 {

// use(constant) with index as an integral_constant, of kFirst <= index < kFirst + kCount. Registers
// have no index: this is how a loop that is not unrolled takes some of them in turn.
template <int kFirst, int kCount, class Use>
CUTLASS_DEVICE void with_index(int index, const Use& use) {
  if constexpr (kCount == 1) {
    use(cute::Int<kFirst>{});
  } else if (index < kFirst + kCount / 2) {
    with_index<kFirst, kCount / 2>(index, use);
  } else {
    with_index<kFirst + kCount / 2, kCount - kCount / 2>(index, use);
  }
}

// To D's dtype, of which Out is the storage type: elements of two rows, two columns of each row and
// then the next eight columns. Narrow elements lie in the word of the first column, those of both
// rows together where they have 8 bits.
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
    const auto limited = [](float x, const Quantizer& by) {
      return fminf(fmaxf(x, -by.limit), by.limit);
    };
    const bool at_once = to_int8 && quick && all_finite();
    if (at_once && symmetric) {
      each([&](float x0, float x1, float x2, float x3) {
        const auto of = [&](float x, const Quantizer& by) { return by.low_byte(limited(x, by)); };
        return __byte_perm(__byte_perm(of(x0, by[0]), of(x1, by[0]), 0x0040),
                           __byte_perm(of(x2, by[1]), of(x3, by[1]), 0x0040), 0x5410);
      });
    } else if (at_once) {
      each([&](float x0, float x1, float x2, float x3) {
        const auto of = [&](float x, const Quantizer& by) { return by.quick(limited(x, by)); };
        return pack(of(x0, by[0]), of(x1, by[0]), of(x2, by[1]), of(x3, by[1]));
      });
    } else if (to_int8) {
      // Seldom, and a division each: in a loop, so that they do not take all registers.
      CUTLASS_PRAGMA_NO_UNROLL
      for (int four = 0; four < kSize / 4; ++four) {
        float some[4];
        with_index<0, kSize / 4>(four, [&](auto index) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 4; ++i) some[i] = x[4 * decltype(index)::value + i];
        });
        const uint32_t packed = pack(by[0].exact(some[0]), by[0].exact(some[1]),
                                     by[1].exact(some[2]), by[1].exact(some[3]));
        with_index<0, kSize / 4>(four, [&](auto index) {
          word[4 * decltype(index)::value] = static_cast<int32_t>(packed);
        });
      }
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
