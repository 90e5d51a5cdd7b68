// How an epilogue ends on the device: the activation, the output's quantiser, the store of a few
// neighbouring elements of a row.
#pragma once

#include "cuda/epilogue/functions.cuh"
#include "cuda/epilogue/lower.cuh"
#include "cuda/epilogue/store.cuh"
#include "cuda/quantize/quantizer.cuh"
#include "problems/int8.h"

namespace scaled_mm::cuda {

struct Destination {
  Output out;         // vectors: of what four channels make
  int64_t ldd;        // in elements: columns of D
  Function function;  // of the activation
  bool symmetric;     // an int8 D has no zero point
};

template <class E>
Destination destination(const Int8Problem& p) {
  const int64_t columns = p.size.out_columns();
  return {{p.d, p.size.out_dtype, columns % (4 / epilogue::columns_of(E::form)) == 0},
          columns,
          p.size.function,
          p.operands[static_cast<int>(Operand::out_azp)].data == nullptr};
}

// Zeros for `channels` channels from `channel` on, of tokens [token, end).
template <class E>
__device__ inline void clear(const Destination& to, int token, int end, int64_t channel,
                             int64_t channels, int thread, int threads) {
  constexpr int kColumns = epilogue::columns_of(E::form);
  const int bytes = size_of(to.out.dtype);
  auto* const first =
      static_cast<uint8_t*>(to.out.d) + (token * to.ldd + channel / kColumns) * bytes;
  const int64_t width = channels / kColumns * bytes;  // of a token
  for (int64_t i = thread; i < (end - token) * width; i += threads) {
    first[i / width * to.ldd * bytes + i % width] = 0;
  }
}

// What the activation of E makes of neighbouring columns, the first of which is an even one.
template <class E, int kSize>
__device__ inline void activate(Function function, const float (&x)[kSize],
                                float (&made)[kSize / epilogue::columns_of(E::form)]) {
  constexpr int kColumns = epilogue::columns_of(E::form);
#pragma unroll
  for (int i = 0; i < kSize / kColumns; ++i) made[i] = x[kColumns * i];
  if constexpr (E::form != Form::none) apply_function(function, made);
  if constexpr (E::form == Form::gated) {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) made[i] = __fmul_rn(made[i], x[2 * i + 1]);
  }
}

// Two floats of at most 448 as float8_e4m3fn, rounded to nearest even, the first in the low bits.
__device__ inline uint32_t pack_e4m3(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
  return pair;
#else
  const auto one = [](float v) {  // as cpu/endings.h
    const uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffff;
    const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
    const uint32_t small = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000;
    const uint32_t finite = magnitude >= 0x3c800000 ? normal : small;
    return (bits >> 24 & 0x80) | (magnitude > 0x7f800000 ? 0x7fu : finite);
  };
  return one(x) | one(y) << 8;
#endif
}

// The quantiser of a row. get(leaf, e), as of finish_four, has its operands.
template <class Get>
__device__ inline Quantizer given_quantizer(const Get& get, bool symmetric) {
  return quantizer_given(get(epilogue::OutScale{}, 0), get(epilogue::OutAzp{}, 0), symmetric);
}

// What float8_e4m3fn holds of x; a NaN stays.
__device__ inline float within_e4m3(float x) {
  x = x > 448.0f ? 448.0f : x;
  return x < -448.0f ? -448.0f : x;
}

// Elements [at, at + kSize) of a D of 8 bits, `count` of which are inside, by their row's
// quantiser.
template <int kSize>
__device__ inline void store_quantised(const Destination& to, int64_t at, int count,
                                       const float (&value)[kSize], const Quantizer& by) {
  uint32_t words[(kSize + 3) / 4] = {};
  if (to.out.dtype == DType::int8) {
    int32_t q[(kSize + 3) / 4 * 4] = {};
    if (by.is_quick) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) q[i] = by.quick_limited(value[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) q[i] = by.exact(value[i]);
    }
#pragma unroll
    for (int i = 0; i < (kSize + 3) / 4; ++i) {
      words[i] = pack(q[4 * i], q[4 * i + 1], q[4 * i + 2], q[4 * i + 3]);
    }
  } else {
    float x[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = within_e4m3(__fmul_rn(value[i], by.reciprocal));
#pragma unroll
    for (int i = 0; i < kSize; i += 2) words[i / 4] |= pack_e4m3(x[i], x[i + 1]) << i % 4 * 8;
  }
  detail::store_words<kSize>(static_cast<uint8_t*>(to.out.d) + at, words, count, to.out.vectors);
}

// Elements [at, at + kSize) of D, `count` of which are inside, from their values before the
// rounding. row_quantizer(): of their row, where D has 8 bits.
template <class E, int kSize, class RowQuantizer>
__device__ inline void store_ended(const Destination& to, int64_t at, int count,
                                   const float (&made)[kSize], const RowQuantizer& row_quantizer) {
  if constexpr (epilogue::is_quantised<E>) {
    if (is_8_bit(to.out.dtype)) return store_quantised(to, at, count, made, row_quantizer());
  }
  store_row(to.out, at, count, made);
}

// The ending of four neighbouring channels of several tokens, `step` apart from `token` on, and
// their store: of those that are among the first `tokens`. quantizer(r): of the r-th, where D has 8
// bits. Together, since a chain of operations waits for itself.
template <class E, int kValues, class QuantizerOf>
__device__ inline void finish_rows(const Destination& to, int64_t token, int tokens, int step,
                                   int64_t channel, int inside, const float (&value)[kValues],
                                   const QuantizerOf& quantizer) {
  constexpr int kColumns = epilogue::columns_of(E::form), kMade = 4 / kColumns;
  constexpr int kRows = kValues / 4;
  float made[kRows][kMade];
  activate<E>(to.function, value, reinterpret_cast<float (&)[kMade * kRows]>(made));
  const auto each = [&](const auto& store) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r * step < tokens) store(r, (token + r * step) * to.ldd + channel / kColumns);
    }
  };
  inside /= kColumns;
  uint32_t words[kRows][kMade] = {};  // all rounded before any is stored: one branch for all
  const auto store_as = [&](auto element) {
    each([&](int r, int64_t at) {
      detail::store_words<kMade>(static_cast<decltype(element)*>(to.out.d) + at, words[r], inside,
                                 to.out.vectors);
    });
  };
  if constexpr (epilogue::is_quantised<E>) {
    if (is_8_bit(to.out.dtype)) {
      const bool to_int8 = to.out.dtype == DType::int8;
      bool quick = true;
#pragma unroll
      for (int r = 0; r < kRows; ++r) quick &= quantizer(r).is_quick || r * step >= tokens;
      if (to_int8 && !quick) {
        return each(
            [&](int r, int64_t at) { store_quantised(to, at, inside, made[r], quantizer(r)); });
      }
      if (to_int8) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          int32_t q[4] = {};
#pragma unroll
          for (int e = 0; e < kMade; ++e) q[e] = quantizer(r).quick_limited(made[r][e]);
          words[r][0] = pack(q[0], q[1], q[2], q[3]);
        }
      } else {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float by = quantizer(r).reciprocal;
#pragma unroll
          for (int e = 0; e < kMade; e += 2) {
            const float x = __fmul_rn(made[r][e], by), y = __fmul_rn(made[r][e + 1], by);
            words[r][0] |= pack_e4m3(within_e4m3(x), within_e4m3(y)) << 8 * e;
          }
        }
      }
      return store_as(uint8_t());
    }
  }
  const int bytes = with_dtype(to.out.dtype, [&](auto dtype) {
    using To = Format<decltype(dtype)::value>;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int e = 0; e < kMade; e += To::kPerWord) {
        if constexpr (To::kPerWord == 1) {
          words[r][e] = __float_as_uint(made[r][e]);
        } else {
          words[r][e / 2] = To::narrow(made[r][e], made[r][e + 1]);
        }
      }
    }
    return 4 / To::kPerWord;
  });
  bytes == 4 ? store_as(uint32_t()) : store_as(uint16_t());
}

// The epilogue of four neighbouring channels of one token, and their store. `acc`: the sums of
// channels `channel` to `channel` + 3, of which `inside` are there; `channel` is even. get(leaf,
// e): the operand's value for the e-th of them.
template <class E, class Get>
__device__ inline void finish_four(const Destination& to, const int32_t (&acc)[4], int64_t token,
                                   int64_t channel, int inside, const Get& get) {
  if constexpr (epilogue::is_raw<E>) {
    store_row(to.out, token * to.ldd + channel, inside, acc);
  } else {
    constexpr int kColumns = epilogue::columns_of(E::form);
    float value[4], made[4 / kColumns];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      value[e] = Lower<E>::at(acc[e], [&](auto leaf) { return get(leaf, e); });
    }
    activate<E>(to.function, value, made);
    store_ended<E>(to, token * to.ldd + channel / kColumns, inside / kColumns, made,
                   [&] { return given_quantizer(get, to.symmetric); });
  }
}

}  // namespace scaled_mm::cuda
