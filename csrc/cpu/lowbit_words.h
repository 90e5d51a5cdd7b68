// The words of an AWQ weight as floats.
//
//   bits    31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
//   column     7      5      3      1      6      4     2      0
//
// Eight words are taken apart at a time. A mask leaves nibble i of both halves of every word, where
// they are: columns 2 i and 2 i + 1, times 2^(4 i). Interleaved with the upper half of 2^23, the
// halves are floats already: 2^23 + 2^(4 i) q. So a block of kLowbitCols columns is kLowbitVectors
// vectors, of which vector v belongs to words 8 h .. 8 h + 7, nibble i, h = v / 8, i = v / 2 % 4:
//
//   lane                0     1     2     3     4     5     6     7
//   column, v even    0 2i  0 2i+1 1 2i  1 2i+1 4 2i  4 2i+1 5 2i  5 2i+1     (word, column of it)
//   column, v odd     2 2i  2 2i+1 3 2i  3 2i+1 6 2i  6 2i+1 7 2i  7 2i+1
//
// No include guard: lowbit_rows.h includes this.

using Eight = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));
using Halves = uint16_t __attribute__((vector_size(32)));

inline constexpr int kLowbitWords = kLowbitCols / 8;
inline constexpr int kLowbitVectors = kLowbitCols / 8;
inline constexpr float kUnshift[4] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f};  // of nibble i

// q - z of one word's columns in their order; exact.
inline void differences(uint32_t word, const Eight& zero, Eight& d) {
  constexpr EightInts kNibble = {0, 16, 4, 20, 8, 24, 12, 28};  // the shift to each column
  const int32_t bits = static_cast<int32_t>(word);
  const EightInts all = {bits, bits, bits, bits, bits, bits, bits, bits};
  d = __builtin_convertvector((all >> kNibble) & 15, Eight) - zero;
}

// 2^23 + 2^(4 i) q of nibble i: the even vector and the odd one.
inline void widen_nibbles(const uint32_t* words, int i, Eight& even, Eight& odd) {
  constexpr Halves kNibble[4] = {Halves{} + uint16_t{0x000f}, Halves{} + uint16_t{0x00f0},
                                 Halves{} + uint16_t{0x0f00}, Halves{} + uint16_t{0xf000}};
  Halves all;
  std::memcpy(&all, words, sizeof all);
  const Halves q = all & kNibble[i], upper = Halves{} + uint16_t{0x4b00};
  const Halves low =
      __builtin_shufflevector(q, upper, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
  const Halves high =
      __builtin_shufflevector(q, upper, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
  std::memcpy(&even, &low, sizeof even);
  std::memcpy(&odd, &high, sizeof odd);
}

// Floats in the order of columns to that of vectors and back: pairs stay together.
template <class Move>
inline void for_each_pair(const Move& move) {
  for (int v = 0; v < kLowbitVectors; ++v) {
    const int word = v / 8 * 8 + v % 2 * 2, i = v / 2 % 4;
    for (int pair = 0; pair < 4; ++pair) {
      move(8 * v + 2 * pair, 8 * (word + pair / 2 * 4 + pair % 2) + 2 * i);
    }
  }
}
inline void to_vectors(const float* columns, float* vectors) {
  for_each_pair([&](int v, int c) { std::memcpy(vectors + v, columns + c, 2 * sizeof(float)); });
}
inline void to_columns(const float* vectors, float* columns) {
  for_each_pair([&](int v, int c) { std::memcpy(columns + c, vectors + v, 2 * sizeof(float)); });
}

// RN16(d * scale), without leaving float32. high = 2^s * scale, less = (2^s - 1) * scale. d * scale
// takes 15 bits at most, so d * high is exact; the product with less is rounded to 24 bits, of
// which s are behind the last one that 16 bits have, and the difference is exact again: it is d *
// scale, rounded to nearest even (Veltkamp's splitting, but for the sign; all values were tried,
// tests/test_awq.py).
inline void round_product(const Eight& d, const Eight& less, const Eight& high, Eight& w) {
#if defined(SCALED_MM_HAS_FMA_F16C)
  w = _mm256_fmsub_ps(d, high, d * less);
#else
  w = d * high - d * less;
#endif
}

// For which scales that is so: where no product is subnormal in 16 bits and none overflows.
template <class Of>
struct Splitting;
template <>
struct Splitting<Format<DType::float16>> {
  static constexpr float high = 0x1p13f, least = 0x1p-14f, most = 0x1p11f;
};
template <>
struct Splitting<Format<DType::bfloat16>> {
  static constexpr float high = 0x1p16f, least = 0x1p-100f, most = 0x1p100f;
};

// Zero points and scales of one group, for up to kLowbitCols columns. Where nibbles come times 2^(4
// i), `zero` is too, and the others are divided by it.
struct GroupTerms {
  Eight zero[kLowbitVectors];  // + 2^23
  Eight less[kLowbitVectors], high[kLowbitVectors];
  Eight scale[kLowbitVectors];  // not divided
  bool plain = false;           // whether round_product may be used

  template <class Of>
  void load(const LowbitWeight& w, int64_t group, int64_t col, int words) {
    uint32_t zeros[kLowbitWords] = {};
    alignas(32) float columns[kLowbitCols] = {}, scales[kLowbitCols];
    const uint32_t* from = w.zeros.data + group * w.zeros.row_stride + col / 8;
    std::memcpy(zeros, from, words * sizeof(uint32_t));
    Of::widen(w.scales.data + group * w.scales.row_stride + col, columns, 8 * words);
    to_vectors(columns, scales);
    std::memcpy(scale, scales, sizeof scale);

    EightInts fit = ~EightInts{};
    for (int v = 0; v < kLowbitVectors; v += 2) {
      const int i = v / 2 % 4;
      widen_nibbles(zeros + v / 8 * 8, i, zero[v], zero[v + 1]);
      for (int u = v; u < v + 2; ++u) {
        const Eight size = scale[u] < 0 ? -scale[u] : scale[u];
        fit &= (size == 0) | ((size >= Splitting<Of>::least) & (size <= Splitting<Of>::most));
        const Eight unit = scale[u] * kUnshift[i];
        high[u] = unit * Splitting<Of>::high;
        less[u] = high[u] - unit;
      }
    }
    plain = true;
    for (int lane = 0; lane < 8; ++lane) plain &= fit[lane] != 0;
  }
};

// Columns [col, col + kLowbitCols) of the weight and some rows of it, all of one group.
struct WeightTile {
  const uint32_t* q;     // the words of the first row, kLowbitWords of them readable in each
  int64_t stride;        // words to the next row
  int depth;             // rows
  int vectors;           // kLowbitVectors, or half of them where the weight ends
  const uint32_t* next;  // the words to be fetched meanwhile, as many rows; or null
  int64_t next_stride;
};

// While vectors v and so many more are worked on, the share of the next tile that is fetched.
inline void fetch_next(const WeightTile& tile, int v, int vectors) {
  if (!tile.next) return;
  const int first = tile.depth * v / tile.vectors;
  const int end = tile.depth * (v + vectors) / tile.vectors;
  for (int k = first; k < end; ++k) __builtin_prefetch(tile.next + k * tile.next_stride);
}

// Vectors v and v + 1 of all rows, rounded to 16 bits, to places kFloatPanel apart.
inline void dequantize_plain(const WeightTile& tile, const GroupTerms& group, int v,
                             float* const* to) {
  const uint32_t* q = tile.q + v / 8 * 8;
  float *even = to[0], *odd = to[1];
  const Eight zero[2] = {group.zero[v], group.zero[v + 1]};
  const Eight less[2] = {group.less[v], group.less[v + 1]};
  const Eight high[2] = {group.high[v], group.high[v + 1]};
  for (int k = 0; k < tile.depth; ++k, q += tile.stride) {
    Eight w[2];
    widen_nibbles(q, v / 2 % 4, w[0], w[1]);
    for (int j = 0; j < 2; ++j) round_product(w[j] - zero[j], less[j], high[j], w[j]);
    std::memcpy(even + k * kFloatPanel, &w[0], sizeof w[0]);
    std::memcpy(odd + k * kFloatPanel, &w[1], sizeof w[1]);
  }
}

// The same for any scales.
template <class Of>
inline void dequantize_exact(const WeightTile& tile, const GroupTerms& group, int v,
                             float* const* to) {
  const int i = v / 2 % 4;
  for (int k = 0; k < tile.depth; ++k) {
    Eight d[2];
    float products[16];
    uint16_t rounded[16];
    widen_nibbles(tile.q + k * tile.stride + v / 8 * 8, i, d[0], d[1]);
    for (int j = 0; j < 2; ++j)
      d[j] = (d[j] - group.zero[v + j]) * kUnshift[i] * group.scale[v + j];
    std::memcpy(products, d, sizeof d);
    Of::narrow(products, rounded, 16);
    Of::widen(rounded, to[0] + k * kFloatPanel, 8);
    Of::widen(rounded + 8, to[1] + k * kFloatPanel, 8);
  }
}

// b [panel][depth][kFloatPanel] = the tile, dequantised.
template <class Of>
inline void dequantize_tile(const WeightTile& tile, const GroupTerms& group, float* b) {
  for (int v = 0; v < tile.vectors; v += 2) {
    fetch_next(tile, v, 2);
    float* to[2];
    for (int j = 0; j < 2; ++j) {
      const int n = 8 * (v + j);
      to[j] = b + n / kFloatPanel * tile.depth * kFloatPanel + n % kFloatPanel;
    }
    if (group.plain) {
      dequantize_plain(tile, group, v, to);
    } else {
      dequantize_exact<Of>(tile, group, v, to);
    }
  }
}
