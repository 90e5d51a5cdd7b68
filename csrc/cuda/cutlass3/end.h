// The end of an epilogue as the root of a visitor tree: the activation, and D's dtype. Which of
// them is told when the kernel runs: one branch for a fragment, the same for all threads.
//
// Out is what D is stored as:
//
//     uint16_t   both 16-bit dtypes
//     uint8_t    both 8-bit ones; of a gate, whose columns of sums are twice those of D, both
//                16-bit ones: two neighbouring sums of a thread make the two bytes of an element
#pragma once

#include "cuda/common/elementwise.cuh"
#include "cuda/common/finish.cuh"

namespace scaled_mm::cuda::cutlass3 {

template <class E, class Out>
inline constexpr bool quantises =
    epilogue::is_quantised<E> && sizeof(Out) == 1 && E::form != Form::gated;

// A matrix operand's elements as float32.
struct WidenArguments {
  DType dtype;
};
template <class>
struct Widen {
  using Arguments = WidenArguments;
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

struct EndArguments {
  Destination to;
};

template <class E, class Out>
struct End {
  template <class>
  struct Function {
    using Arguments = EndArguments;
    template <int kSize>
    using Floats = cutlass::Array<float, kSize>;

    // To 16 bits.
    template <int kSize>
    CUTLASS_DEVICE auto operator()(const Floats<kSize>& value, const Arguments& end) const {
      constexpr int kMade = kSize / epilogue::columns_of(E::form);
      static_assert(kMade % 2 == 0 && kMade * 2 == kSize * sizeof(Out));
      float made[kMade];
      activate(value, end, made);
      cutlass::Array<Out, kSize> rounded;
      auto* const pairs = reinterpret_cast<uint32_t*>(rounded.data());
      with_dtype16(end.to.out.dtype, [&](auto dtype) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMade / 2; ++i) {
          pairs[i] = Format<decltype(dtype)::value>::narrow(made[2 * i], made[2 * i + 1]);
        }
      });
      return rounded;
    }

    // To 8 bits, in units of a scale that each of the fragment's two rows has:
    //
    //     row     0 0 1 1 0 0 1 1 ...
    template <int kSize>
    CUTLASS_DEVICE auto operator()(const Floats<kSize>& value, const Floats<kSize>& scale,
                                   const Floats<kSize>& azp, const Arguments& end) const {
      float made[kSize];
      activate(value, end, made);
      cutlass::Array<Out, kSize> rounded;
      auto& words = *reinterpret_cast<uint32_t (*)[kSize / 4]>(rounded.data());
      if (end.to.out.dtype == DType::int8) {
        const auto of_row = [&](int i) {
          return quantizer_given(scale[i], static_cast<int32_t>(azp[i]), end.to.symmetric);
        };
        const Quantizer by0 = of_row(0), by1 = of_row(2);
        if (by0.is_quick && by1.is_quick) {
          quantise(made, words, [&](float x0, float x1, float x2, float x3) {
            return pack(by0.quick_limited(x0), by0.quick_limited(x1), by1.quick_limited(x2),
                        by1.quick_limited(x3));
          });
        } else {
          quantise(made, words, [&](float x0, float x1, float x2, float x3) {
            return pack(by0.exact(x0), by0.exact(x1), by1.exact(x2), by1.exact(x3));
          });
        }
      } else {
        const float r0 = __frcp_rn(scale[0]), r1 = __frcp_rn(scale[2]);
        quantise(made, words, [&](float x0, float x1, float x2, float x3) {
          const auto of = [](float x, float r) { return within_e4m3(__fmul_rn(x, r)); };
          return pack_e4m3(of(x0, r0), of(x1, r0)) | pack_e4m3(of(x2, r1), of(x3, r1)) << 16;
        });
      }
      return rounded;
    }

   private:
    template <int kSize, int kMade>
    CUTLASS_DEVICE static void activate(const Floats<kSize>& value, const Arguments& end,
                                        float (&made)[kMade]) {
      constexpr int kColumns = kSize / kMade;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kMade; ++i) made[i] = value[kColumns * i];
      if constexpr (E::form != Form::none) apply_in_turn(end.to.function, made);
      if constexpr (E::form == Form::gated) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMade; ++i) made[i] = __fmul_rn(made[i], value[2 * i + 1]);
      }
    }

    // Eight at a time, as apply_in_turn: word(x, ...) of two columns of both rows.
    template <int kSize, class Word>
    CUTLASS_DEVICE static void quantise(float (&x)[kSize], uint32_t (&words)[kSize / 4],
                                        const Word& word) {
      static_assert(kSize % 8 == 0);
      constexpr int kWords = kSize / 4;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) words[i] = 0;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int done = 0; done < kSize; done += 8) {
        const uint32_t first = word(x[0], x[1], x[2], x[3]);
        const uint32_t second = word(x[4], x[5], x[6], x[7]);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kSize - 8; ++i) x[i] = x[i + 8];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWords - 2; ++i) words[i] = words[i + 2];
        words[kWords - 2] = first, words[kWords - 1] = second;
      }
    }
  };
};

}  // namespace scaled_mm::cuda::cutlass3
