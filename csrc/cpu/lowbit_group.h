// Scales and zero points of a group, and a weight's value made of them, rounded once to 16 bits.
//
// No include guard: lowbit_rows.h includes this.

// RN16(d * scale), without leaving float32. high = 2^s * scale, less = (2^s - 1) * scale. d * scale
// takes 19 bits at most, so d * high is exact; the product with less is rounded to 24 bits, of
// which s are behind the last one that 16 bits have, and the difference is exact again: it is d *
// scale, rounded to nearest even (Veltkamp's splitting, but for the sign; all values were tried,
// tests/test_awq.py, tests/test_mixed_weights.py).
template <class Vec>
inline void round_product(const Vec& d, const Vec& less, const Vec& high, Vec& w) {
#if defined(SCALED_MM_HAS_AVX512)
  if constexpr (sizeof(Vec) == 64) w = _mm512_fmsub_ps(d, high, d * less);
#endif
#if defined(SCALED_MM_HAS_FMA_F16C)
  if constexpr (sizeof(Vec) == 32) w = _mm256_fmsub_ps(d, high, d * less);
#else
  w = d * high - d * less;
#endif
}

// d * scale + zero, where float32 holds it exactly.
template <class Vec>
inline void exact_sum(const Vec& d, const Vec& scale, const Vec& zero, Vec& t) {
#if defined(SCALED_MM_HAS_AVX512)
  if constexpr (sizeof(Vec) == 64) t = _mm512_fmadd_ps(d, scale, zero);
#endif
#if defined(SCALED_MM_HAS_FMA_F16C)
  if constexpr (sizeof(Vec) == 32) t = _mm256_fmadd_ps(d, scale, zero);
#else
  t = d * scale + zero;
#endif
}

// For which scales and zero points that is so: where no product is subnormal in 16 bits and none
// overflows. `bits` are those of a float's significand.
template <class Of>
struct Splitting;
template <>
struct Splitting<Format<DType::float16>> {
  static constexpr int bits = 11;
  static constexpr float high = 0x1p13f, least = 0x1p-14f, most = 0x1p11f;
};
template <>
struct Splitting<Format<DType::bfloat16>> {
  static constexpr int bits = 8;
  static constexpr float high = 0x1p16f, least = 0x1p-100f, most = 0x1p100f;
};

// d * scale + zero for any numbers, rounded to odd in float32: to the neighbour whose last bit is 1
// (docs/numerics.md, section 5), so that rounding it again to 16 bits is as good as rounding once.
inline float product_plus(float d, float scale, float zero) {
  const double product = double{d} * double{scale}, sum = product + double{zero};
  const double back = sum - product;
  const double error = (product - (sum - back)) + (double{zero} - back);
  const float near = static_cast<float>(sum);
  const double rest = (sum - double{near}) + error;  // its sign is that of the exact rest
  if (!(rest < 0.0 || rest > 0.0)) return near;
  const uint32_t bits = to_bits(near);
  return from_bits(((rest < 0.0) == (near > 0.0f) ? bits - 1 : bits) | 1);
}

// What a weight is made of: words of a codec, and a kind of zero point.
template <class Words_, bool kReal_>
struct WeightKind {
  using Words = Words_;
  static constexpr bool kReal = kReal_;  // W = q s + z, not (q - z) s
};

// use(weights) with those that a problem's weight has.
template <class Use>
inline void with_weights(const LowbitWeight& w, const Use& use) {
  const auto of = [&](auto words) {
    using Words = decltype(words);
    if (w.zero_point == ZeroPoint::real) return use(WeightKind<Words, true>{});
    use(WeightKind<Words, false>{});
  };
  return w.bits == 4 ? of(NibbleWords{}) : of(ByteWords{});
}

// Zero points and scales of one group, for up to kLowbitCols columns in the order of vectors. Where
// values come times a unit, `base` is too, and what multiplies them is divided by it.
template <class Of, class W>
struct GroupTerms {
  using Words = typename W::Words;
  Eight base[kLowbitVectors];   // the integer zero point, or the offset, + 2^23
  Eight less[kLowbitVectors];   // of round_product; where zero points are real, the scale
  Eight high[kLowbitVectors];   // of round_product; or the real zero point
  Eight scale[kLowbitVectors];  // not divided
  bool plain = false;           // whether `weight` may be used

  void load(const LowbitWeight& w, int64_t group, int64_t col, int columns) {
    alignas(32) float plain_order[kLowbitCols] = {};
    Of::widen(w.scales.data + group * w.scales.row_stride + col, plain_order, columns);
    Words::to_vectors(plain_order, reinterpret_cast<float*>(scale));
    load_base(w, group, col, columns);
    if constexpr (W::kReal) {
      float zeros[kLowbitCols] = {};
      Of::widen(w.real_zeros.data + group * w.real_zeros.row_stride + col, zeros, columns);
      Words::to_vectors(zeros, reinterpret_cast<float*>(high));
    }
    EightInts fit = ~EightInts{};
    for (int v = 0; v < kLowbitVectors; ++v) {
      const Eight unit = scale[v] * (1.0f / Words::unit(v));
      must_fit(scale[v], high[v], fit);
      if constexpr (W::kReal) {
        less[v] = unit;
      } else {
        high[v] = unit * Splitting<Of>::high;
        less[v] = high[v] - unit;
      }
    }
    plain = true;
    for (int lane = 0; lane < 8; ++lane) plain &= fit[lane] != 0;
  }

  // RN16 of the weight's value of d = widened - base.
  template <class Vec>
  static void weight(const Vec& d, const Vec& less, const Vec& high, Vec& w) {
    if constexpr (W::kReal) {
      constexpr float kHigh = Splitting<Of>::high;
      exact_sum(d, less, high, w);
      round_product(w, Vec{} + (kHigh - 1.0f), Vec{} + kHigh, w);
    } else {
      round_product(d, less, high, w);
    }
  }

 private:
  void load_base(const LowbitWeight& w, int64_t group, int64_t col, int columns) {
    uint32_t zeros[Words::kWords] = {};
    const bool integer = w.zero_point == ZeroPoint::integer;
    if (integer) {
      const uint32_t* from = w.zeros.data + group * w.zeros.row_stride + col * w.bits / 32;
      std::memcpy(zeros, from, columns * Words::kBits / 8);
    }
    for (int v = 0; v < kLowbitVectors; v += 2) {
      if (integer) {
        Words::widen(zeros, v, base[v], base[v + 1]);
      } else {
        base[v] = base[v + 1] =
            Eight{} + (0x1p23f + Words::unit(v) * static_cast<float>(w.offset()));
      }
    }
  }

  // Clears what `weight` would not be right for: see Splitting. And where zero points are real,
  // whether float32 holds every d * scale + zero: from the last bit of the smaller one to the first
  // of their sum.
  static void must_fit(const Eight& scale, const Eight& zero, EightInts& fit) {
    constexpr float kLeast = Splitting<Of>::least, kWider = 1 << (Words::kBits - 4);
    constexpr float kMost = Splitting<Of>::most / kWider;
    const Eight size = scale < 0 ? -scale : scale;
    const EightInts none = size == 0;
    fit &= none | ((size >= kLeast) & (size <= kMost));
    if constexpr (W::kReal) {
      constexpr float kSpan = static_cast<float>(1 << (24 - Splitting<Of>::bits));
      const Eight other = zero < 0 ? -zero : zero, least = size < other ? size : other;
      const EightInts absent = other == 0;
      const Eight sum = size * static_cast<float>(1 << (Words::kBits - 1)) + other;
      fit &= absent | ((other >= kLeast) & (other <= 8.0f * Splitting<Of>::most));
      fit &= none | absent | (sum <= least * kSpan);
    }
  }
};
