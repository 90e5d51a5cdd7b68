// The words of a weight as floats. A codec takes the words of kLowbitCols columns of one row apart,
// eight at a time; each gives the same numbers to the rest of the code:
//
//   kBits                       of a value
//   kWords                      words of kLowbitCols columns
//   widen(q, v, even, odd)      vectors v and v + 1 (v is even): 2^23 + unit u of a stored value u
//   widen_pairs(q, v, w)        the same of several pairs from v on, for few rows of X
//   unit(v)                     a power of two
//   pair_rows<i>(q0, q1, v, w)  vectors v + i, v + i + 1, ... of two rows, pair_offset(i) + u: of
//                               each of 8 columns the value in q1, then the one in q0; v % 8 == 0,
//                               i < 8 (for lowbit_pairs.h)
//   pair_offset(i)              a power of two, or 0
//   column(v, c)                which of 64 columns stands at c of vector v, 0 .. 7
//   to_vectors, to_columns      floats from the order of columns to that of vectors, and back
//   differences(q, c, zero, d)  columns 8 c .. 8 c + 7 in their order, less `zero`; exact
//
// No include guard: lowbit_rows.h includes this.

using Eight = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));
using EightBytes = uint8_t __attribute__((vector_size(8)));
using Halves = uint16_t __attribute__((vector_size(32)));
#if defined(SCALED_MM_HAS_AVX512)
using Wide = float __attribute__((vector_size(64)));  // a pair of vectors, or half of one
inline constexpr int kLowbitStreamRows = 8;  // up to so many rows of X, weights stay in registers
inline constexpr int kFewStreamRows = 4;     // up to so many
inline constexpr int kStreamPairs = 4;       // of vectors are worked on at a time, else half
#else
using Wide = Eight;
inline constexpr int kLowbitStreamRows = 6, kFewStreamRows = 2, kStreamPairs = 2;
#endif

#if defined(SCALED_MM_HAS_FMA_F16C)
// Calls use(integral_constant<int, i>) for 0 <= i < Count. Not a loop: g++ 12 unrolls loops within
// loops after it has decided which arrays can be registers, and would keep the sums in memory.
template <int Count, class Use>
[[gnu::always_inline]] inline void each(const Use& use) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (use(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, Count>{});
}
#endif

inline constexpr int kLowbitVectors = kLowbitCols / 8;
inline constexpr int kLowbitMostWords = kLowbitCols / 4;  // of a codec

// AWQ's words.
//
//   bits    31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
//   column     7      5      3      1      6      4     2      0
//
// Eight words are taken apart at a time. A mask leaves nibble i of both halves of every word, where
// they are: columns 2 i and 2 i + 1, times 2^(4 i). Interleaved with the upper half of 2^23, the
// halves are floats already: 2^23 + 2^(4 i) u. So a block of kLowbitCols columns is kLowbitVectors
// vectors, of which vector v belongs to words 8 h .. 8 h + 7, nibble i, h = v / 8, i = v / 2 % 4:
//
//   lane                0     1     2     3     4     5     6     7
//   column, v even    0 2i  0 2i+1 1 2i  1 2i+1 4 2i  4 2i+1 5 2i  5 2i+1     (word, column of it)
//   column, v odd     2 2i  2 2i+1 3 2i  3 2i+1 6 2i  6 2i+1 7 2i  7 2i+1
struct NibbleWords {
  static constexpr int kBits = 4, kWords = kLowbitCols / 8;

  static constexpr float unit(int v) { return static_cast<float>(1 << 4 * (v / 2 % 4)); }

  static void widen(const uint32_t* words, int v, Eight& even, Eight& odd) {
    // static: g++ would write a local table to the stack for every row of the weight.
    static constexpr Halves kNibble[4] = {Halves{} + uint16_t{0x000f}, Halves{} + uint16_t{0x00f0},
                                          Halves{} + uint16_t{0x0f00}, Halves{} + uint16_t{0xf000}};
    Halves all;
    std::memcpy(&all, words + v / 8 * 8, sizeof all);
    const Halves q = all & kNibble[v / 2 % 4], upper = Halves{} + uint16_t{0x4b00};
    const Halves low =
        __builtin_shufflevector(q, upper, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    const Halves high = __builtin_shufflevector(q, upper, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13,
                                                29, 14, 30, 15, 31);
    std::memcpy(&even, &low, sizeof even);
    std::memcpy(&odd, &high, sizeof odd);
  }

#if defined(SCALED_MM_HAS_FMA_F16C)
  // All of the same eight words.
  template <int kWide>
  [[gnu::always_inline]] static void widen_pairs(const uint32_t* words, int v, Wide (&w)[kWide]) {
#if defined(SCALED_MM_HAS_AVX512)
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + v / 8 * 8));
    // Quarters 0 2 1 3: the even vector's halves before the odd one's.
    const __m512i halves = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_permute4x64_epi64(all, 0xd8));
    const __m512i upper = _mm512_set1_epi32(0x4b000000);
    each<kWide>([&](auto u) __attribute__((always_inline)) {
      const __m512i nibble = _mm512_set1_epi32(0xf << 4 * (v / 2 % 4 + u));
      w[u] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(halves, nibble, upper, 0xea));
    });
#else
    each<kWide / 2>([&](auto u) __attribute__((always_inline)) {
      widen(words, v + 2 * u, w[2 * u], w[2 * u + 1]);
    });
#endif
  }
#endif

#if defined(SCALED_MM_HAS_AVX512_BF16)
  // Nibbles where they are, or 8 bits further up, below the exponent of a power of two that makes
  // their lowest bit a 1.
  static constexpr float pair_offset(int v) { return v / 2 % 2 ? 0x1p11f : 0x1p15f; }

  template <int kFirst, int kWide>
  [[gnu::always_inline]] static void pair_rows(const uint32_t* q0, const uint32_t* q1, int v,
                                               Wide (&w)[kWide]) {
    const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q0 + v));
    const __m256i lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q1 + v));
    const __m512i halves[2] = {
        _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_unpacklo_epi16(lower, upper)),
        _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_unpackhi_epi16(lower, upper))};
    const __m512i shifted[2] = {_mm512_maskz_slli_epi32(0xffff, halves[0], 8),
                                _mm512_maskz_slli_epi32(0xffff, halves[1], 8)};
    each<kWide>([&](auto j) __attribute__((always_inline)) {
      constexpr int i = kFirst + j;
      const __m512i all = i < 4 ? shifted[i % 2] : halves[i % 2];
      const __m512i mask = _mm512_set1_epi32(i / 2 % 2 ? 0xf000 : 0x0f00);
      const __m512i exponent = _mm512_castps_si512(_mm512_set1_ps(pair_offset(i)));
      w[j] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(all, mask, exponent, 0xea));
    });
  }
  static constexpr int column(int v, int c) {
    return 8 * (v % 2 * 2 + c / 4 * 4 + c / 2 % 2) + v / 2 * 2 + c % 2;
  }
#endif

  static void differences(const uint32_t* words, int c, const Eight& zero, Eight& d) {
    constexpr EightInts kNibble = {0, 16, 4, 20, 8, 24, 12, 28};  // the shift to each column
    const int32_t bits = static_cast<int32_t>(words[c]);
    const EightInts all = {bits, bits, bits, bits, bits, bits, bits, bits};
    d = __builtin_convertvector((all >> kNibble) & 15, Eight) - zero;
  }

  static void to_vectors(const float* columns, float* vectors) {
    for_each_pair([&](int v, int c) { std::memcpy(vectors + v, columns + c, 2 * sizeof(float)); });
  }
  static void to_columns(const float* vectors, float* columns) {
    for_each_pair([&](int v, int c) { std::memcpy(columns + c, vectors + v, 2 * sizeof(float)); });
  }

 private:
  template <class Move>
  static void for_each_pair(const Move& move) {  // pairs of columns stay together
    for (int v = 0; v < kLowbitVectors; ++v) {
      const int word = v / 8 * 8 + v % 2 * 2, i = v / 2 % 4;
      for (int pair = 0; pair < 4; ++pair) {
        move(8 * v + 2 * pair, 8 * (word + pair / 2 * 4 + pair % 2) + 2 * i);
      }
    }
  }
};

// Bytes in the order of the columns: vector v is columns 8 v .. 8 v + 7.
struct ByteWords {
  static constexpr int kBits = 8, kWords = kLowbitCols / 4;

  static constexpr float unit(int) { return 1.0f; }

  static void widen(const uint32_t* words, int v, Eight& even, Eight& odd) {
    lift(words, v, even);
    lift(words, v + 1, odd);
  }
#if defined(SCALED_MM_HAS_FMA_F16C)
  template <int kWide>
  [[gnu::always_inline]] static void widen_pairs(const uint32_t* words, int v, Wide (&w)[kWide]) {
    each<kWide>([&](auto u) __attribute__((always_inline)) {
#if defined(SCALED_MM_HAS_AVX512)
      const auto* from = reinterpret_cast<const __m128i*>(words + 2 * v + 4 * u);
      const __m512i bytes = _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(from));
      w[u] = _mm512_castsi512_ps(_mm512_or_si512(bytes, _mm512_set1_epi32(0x4b000000)));
#else
      lift(words, v + u, w[u]);
#endif
    });
  }
#endif
#if defined(SCALED_MM_HAS_AVX512_BF16)
  // A byte above a zero one, below the upper half of 2^15.
  static constexpr float pair_offset(int) { return 0x1p15f; }

  template <int kFirst, int kWide>
  [[gnu::always_inline]] static void pair_rows(const uint32_t* q0, const uint32_t* q1, int v,
                                               Wide (&w)[kWide]) {
    // Two columns of each of 8 vectors to each lane of 16 bytes, which unpacking stays within.
    static constexpr auto kFrom = [] {
      std::array<uint16_t, 32> from{};
      for (int i = 0; i < 32; ++i) from[i] = static_cast<uint16_t>(i % 8 * 4 + i / 8);
      return from;
    }();
    const auto at = [&](const uint32_t* q) __attribute__((always_inline)) {
      return _mm512_maskz_permutexvar_epi16(~0u, _mm512_loadu_si512(kFrom.data()),
                                            _mm512_loadu_si512(q + 2 * v));
    };
    const __m512i upper = at(q0), lower = at(q1), exponent = _mm512_set1_epi16(0x4700);
    const __m512i pairs[2] = {_mm512_unpacklo_epi8(lower, upper),
                              _mm512_unpackhi_epi8(lower, upper)};
    each<kWide / 2>([&](auto u) __attribute__((always_inline)) {
      constexpr int i = kFirst / 2 + u;
      const __m512i none = _mm512_setzero_si512();
      const __m512i four = i % 2 ? _mm512_unpackhi_epi8(none, pairs[i / 2])
                                 : _mm512_unpacklo_epi8(none, pairs[i / 2]);
      w[2 * u] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(four, exponent));
      w[2 * u + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(four, exponent));
    });
  }
  static constexpr int column(int v, int c) { return 8 * v + c; }
#endif

  static void differences(const uint32_t* words, int c, const Eight& zero, Eight& d) {
    lift(words, c, d);
    d -= zero + 0x1p23f;
  }
  static void to_vectors(const float* columns, float* vectors) {
    std::memcpy(vectors, columns, kLowbitCols * sizeof(float));
  }
  static void to_columns(const float* vectors, float* columns) { to_vectors(vectors, columns); }

 private:
  static void lift(const uint32_t* words, int v, Eight& w) {
#if defined(SCALED_MM_HAS_FMA_F16C)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words + 2 * v));
    const __m256i bits =
        _mm256_or_si256(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x4b000000));
#else
    EightBytes bytes;
    std::memcpy(&bytes, words + 2 * v, sizeof bytes);
    const EightInts bits = __builtin_convertvector(bytes, EightInts) | 0x4b000000;
#endif
    std::memcpy(&w, &bits, sizeof w);
  }
};
