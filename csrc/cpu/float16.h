// float32 to and from the dtypes of dtypes.def, over whole runs of elements. Rounding is to nearest
// even with subnormals kept (the conversions of AVX512-BF16 flush them, so bfloat16 is done in
// integers).
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;  // quiet, sign kept
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}
inline float bfloat16_to_float(uint16_t value) { return from_bits(uint32_t{value} << 16); }

#if !defined(SCALED_MM_HAS_FMA_F16C)
inline uint16_t float_to_float16(float value) {
  const uint32_t bits = to_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // >= 65520 -> inf
  if (magnitude >= 0x38800000) {  // normal: drop 13 bits, exponent bias 127 -> 15
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
  }
  // Subnormal: adding 0.5 puts the unit of 2^-24 at the last bit of the float, where it rounds.
  const float sum = from_bits(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (to_bits(sum) - 0x3f000000));
}
inline float float16_to_float(uint16_t value) {
  const uint32_t sign = uint32_t{value & 0x8000u} << 16, magnitude = value & 0x7fffu;
  if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  // Normal and subnormal alike: shift the bits into place, then scale by 2^112 exactly.
  const float scaled = from_bits(magnitude << 13) * from_bits(0x77800000);
  return from_bits(sign | to_bits(scaled));
}
#endif

// What the bits of a dtype mean: runs of elements to and from float32.
template <DType>
struct Format;

template <>
struct Format<DType::bfloat16> {
  using storage = uint16_t;
  static void narrow(const float* from, uint16_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = float_to_bfloat16(from[i]);
  }
  static void widen(const uint16_t* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = bfloat16_to_float(from[i]);
  }
};

template <>
struct Format<DType::float16> {
  using storage = uint16_t;
#if defined(SCALED_MM_HAS_FMA_F16C)
  static void narrow(const float* from, uint16_t* to, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
    }
    if (i < count) {
      float rest[8] = {};
      std::memcpy(rest, from + i, (count - i) * sizeof(float));
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(rest), _MM_FROUND_TO_NEAREST_INT);
      std::memcpy(to + i, &half, (count - i) * sizeof(uint16_t));
    }
  }
  static void widen(const uint16_t* from, float* to, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
    }
    for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
  }
#else
  static void narrow(const float* from, uint16_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = float_to_float16(from[i]);
  }
  static void widen(const uint16_t* from, float* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = float16_to_float(from[i]);
  }
#endif
};

template <>
struct Format<DType::float32> {
  using storage = float;
  static void narrow(const float* from, float* to, int64_t count) {
    if (count > 0) std::memcpy(to, from, count * sizeof(float));  // of no columns both may be null
  }
  static void widen(const float* from, float* to, int64_t count) { narrow(from, to, count); }
};

// The same from elements that lie `stride` apart.
template <class Of>
inline void widen_strided(const typename Of::storage* from, int64_t stride, float* to,
                          int64_t count) {
  if (stride == 1) return Of::widen(from, to, count);
  typename Of::storage gathered[64];
  for (int64_t first = 0; first < count; first += 64) {
    const int64_t some = std::min<int64_t>(64, count - first);
    for (int64_t i = 0; i < some; ++i) gathered[i] = from[(first + i) * stride];
    Of::widen(gathered, to + first, some);
  }
}

// Columns [col, col + count) of row `row` of a float operand.
inline void widen_columns(const EpilogueOperand& operand, int64_t row, int64_t col, float* to,
                          int64_t count) {
  with_dtype(operand.dtype, [&](auto dtype) {
    using Of = Format<dtype>;
    const auto* from = static_cast<const typename Of::storage*>(operand.data) +
                       row * operand.row_stride + col * operand.col_stride;
    widen_strided<Of>(from, operand.col_stride, to, count);
  });
}
