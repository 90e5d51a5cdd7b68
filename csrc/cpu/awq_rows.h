// int4 AWQ weights: dequantised row by row, or multiplied a piece at a time while the piece is in
// L1.
//
// A word of the weight holds eight columns of one row, so eight lanes take a broadcast word apart:
//
//   bits    31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
//   column     7      5      3      1      6      4     2      0
//
// Every element of a product is one chain of fused multiply-adds in the order of k, so its bits
// depend on neither tiles nor threads nor the rows around it (where there is no fma, on nothing but
// that).
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

#if !defined(SCALED_MM_HAS_FMA_F16C)
using F = float __attribute__((vector_size(16)));
inline constexpr int kFloatTileRows = 4, kFloatTileVectors = 2;
inline F fused(F x, F y, F sum) { return x * y + sum; }
inline F broadcast_float(float x) { return F{x, x, x, x}; }
#endif

using Eight = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));
inline constexpr EightInts kNibble = {0, 16, 4, 20, 8, 24, 12, 28};  // the shift to each column

inline constexpr int kFloatPanel = kFloatTileVectors * static_cast<int>(sizeof(F) / sizeof(float));
inline constexpr int kAwqDepth = 128;  // rows of the weight that are multiplied at a time
inline constexpr int kAwqWords = kAwqCols / 8;
inline constexpr int kAwqStreamRows = 4;  // up to so many rows of X, pieces stay in registers
inline constexpr int kAwqXStride = kAwqDepth + 16;  // powers of two would collide in the cache

// q - z of the eight columns of a word; exact.
inline void differences(uint32_t word, const Eight& zero, Eight& d) {
  const int32_t bits = static_cast<int32_t>(word);
  const EightInts all = {bits, bits, bits, bits, bits, bits, bits, bits};
  d = __builtin_convertvector((all >> kNibble) & 15, Eight) - zero;
}

// RN16(d * scale), without leaving float32 (Veltkamp's splitting): c is the product and 2^s times
// the product, rounded to 24 bits; taking 2^s times the product away leaves the high bits. d *
// scale takes 15 bits at most and is exact, which makes it round to nearest even: all values were
// tried (tests/test_awq.py). split = (2^s + 1) * scale.
inline void round_product(const Eight& d, const Eight& scale, const Eight& split, Eight& w) {
  const Eight c = d * split;
#if defined(SCALED_MM_HAS_FMA_F16C)
  const Eight rest = _mm256_fnmadd_ps(d, scale, c);
#else
  const Eight rest = c - d * scale;
#endif
  w = c - rest;
}

// For which scales that is so: where no product is subnormal in 16 bits and none overflows.
template <class Format>
struct Splitting;
template <>
struct Splitting<Half> {
  static constexpr float factor = 0x1p13f + 1, least = 0x1p-14f, most = 0x1p11f;
};
template <>
struct Splitting<BFloat16> {
  static constexpr float factor = 0x1p16f + 1, least = 0x1p-100f, most = 0x1p100f;
};

// Zero points and scales of one group, for up to kAwqCols columns.
struct AwqGroup {
  Eight zero[kAwqWords], scale[kAwqWords], split[kAwqWords];
  bool plain = false;  // whether round_product may be used

  template <class Format>
  void load(const AwqWeight& w, int64_t group, int64_t col, int words) {
    const uint32_t* zeros = w.zeros.data + group * w.zeros.row_stride + col / 8;
    const uint16_t* scales = w.scales.data + group * w.scales.row_stride + col;
    plain = true;
    for (int c = 0; c < words; ++c) {
      const Eight none = {};
      float values[8];
      differences(zeros[c], none, zero[c]);
      Format::widen(scales + 8 * c, values, 8);
      std::memcpy(&scale[c], values, sizeof values);
      split[c] = scale[c] * Splitting<Format>::factor;
      for (int i = 0; i < 8; ++i) {
        const float size = std::fabs(values[i]);
        plain &= size == 0 || (size >= Splitting<Format>::least && size <= Splitting<Format>::most);
      }
    }
  }
};

// Columns [col, col + kAwqCols) of the weight and rows [first, first + depth) of it, all of one
// group.
struct AwqPiece {
  const uint32_t* q;  // the words of the first row
  int64_t stride;     // words to the next row
  int depth;
  int words;
  bool more;  // whether as many rows follow, worth fetching
};

// b [panel][depth][kFloatPanel] = the piece, dequantised.
template <class Format>
inline void dequantize_piece(const AwqPiece& piece, const AwqGroup& group, float* b) {
  for (int c = 0; c < piece.words; ++c) {
    const uint32_t* q = piece.q + c;
    float* to = b + (8 * c / kFloatPanel * piece.depth) * kFloatPanel + 8 * c % kFloatPanel;
    const Eight zero = group.zero[c], scale = group.scale[c], split = group.split[c];
    for (int k = 0; k < piece.depth; ++k) {
      Eight d, w;
      differences(q[k * piece.stride], zero, d);
      if (group.plain) {
        round_product(d, scale, split, w);
        std::memcpy(to + k * kFloatPanel, &w, sizeof w);
      } else {
        float products[8];
        uint16_t rounded[8];
        w = d * scale;
        std::memcpy(products, &w, sizeof w);
        Format::narrow(products, rounded, 8);
        Format::widen(rounded, to + k * kFloatPanel, 8);
      }
    }
  }
}

// sums [R][kFloatPanel] += x [R][depth] b [depth][kFloatPanel]
template <int R>
inline void multiply_floats(const float* x, const float* b, int depth, float* sums) {
  constexpr int kVectors = kFloatTileVectors, kLanes = sizeof(F) / sizeof(float);
  F sum[R][kVectors];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kAwqCols, sizeof sum[r]);
  for (int k = 0; k < depth; ++k) {
    F w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      std::memcpy(&w[v], b + k * kFloatPanel + v * kLanes, sizeof(F));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F value = broadcast_float(x[r * kAwqXStride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fused(value, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kAwqCols, sum[r], sizeof sum[r]);
}

#if defined(SCALED_MM_HAS_FMA_F16C)
// The same for few rows, and the piece goes from its words into the sums without a stop. C words at
// a time: enough chains of sums to hide the latency of an addition.
template <int R, int C>
inline void stream_words(const AwqPiece& piece, const AwqGroup& group, int c, const float* x,
                         float* sums) {
  Eight sum[R][C];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kAwqCols + 8 * c, sizeof sum[r]);
  const uint32_t* q = piece.q + c;
  for (int k = 0; k < piece.depth; ++k, q += piece.stride) {
    if (c == 0 && piece.more) __builtin_prefetch(q + piece.depth * piece.stride);
    Eight w[C];
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) {
      Eight d;
      differences(q[i], group.zero[c + i], d);
      round_product(d, group.scale[c + i], group.split[c + i], w[i]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Eight value = _mm256_set1_ps(x[r * kAwqXStride + k]);
#pragma GCC unroll 4
      for (int i = 0; i < C; ++i) sum[r][i] = _mm256_fmadd_ps(value, w[i], sum[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kAwqCols + 8 * c, sum[r], sizeof sum[r]);
}

template <int R>
inline void stream_piece(const AwqPiece& piece, const AwqGroup& group, const float* x,
                         float* sums) {
  constexpr int kAtOnce = R == 1 ? 3 : 2;  // what 16 registers hold
  int c = 0;
  for (; c + kAtOnce <= piece.words; c += kAtOnce) {
    stream_words<R, kAtOnce>(piece, group, c, x, sums);
  }
  for (; c < piece.words; ++c) stream_words<R, 1>(piece, group, c, x, sums);
}
#endif

template <class Format>
inline void multiply_piece(const AwqPiece& piece, const AwqGroup& group, int64_t rows,
                           const float* x, float* b, float* sums) {
#if defined(SCALED_MM_HAS_FMA_F16C)
  if (rows <= kAwqStreamRows && group.plain) {
    return with_constant<kAwqStreamRows>(static_cast<int>(rows),
                                         [&](auto r) { stream_piece<r>(piece, group, x, sums); });
  }
#endif
  dequantize_piece<Format>(piece, group, b);
  for (int n = 0; n < 8 * piece.words; n += kFloatPanel, b += piece.depth * kFloatPanel) {
    for_each_tile(rows, kFloatTileRows, [&](int64_t first, int height) {
      with_constant<kFloatTileRows>(height, [&](auto r) {
        multiply_floats<r>(x + first * kAwqXStride, b, piece.depth, sums + first * kAwqCols + n);
      });
    });
  }
}

template <class Format>
inline void awq_gemm_of(const AwqProblem& p, const AwqTiling& tiling, int64_t begin, int64_t end) {
  const AwqWeight& w = p.w;
  const size_t rows_at_once = static_cast<size_t>(tiling.block_rows);
  Buffer<float> x(rows_at_once * kAwqXStride), sums(rows_at_once * kAwqCols);
  Buffer<float> b(kAwqDepth * kAwqCols);
  std::fill(b.data(), b.data() + kAwqDepth * kAwqCols, 0.0f);  // lanes behind N are read, not used
  AwqGroup group;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / tiling.col_blocks * tiling.block_rows;
    const int64_t col = task % tiling.col_blocks * kAwqCols;
    const int64_t rows = std::min(tiling.block_rows, p.m - row);
    const int count = static_cast<int>(std::min<int64_t>(kAwqCols, w.n - col));
    std::fill(sums.data(), sums.data() + rows * kAwqCols, 0.0f);

    for (int64_t k = 0; k < w.k;) {
      const int64_t left = w.group - k % w.group;  // in this group
      const int depth = static_cast<int>(std::min<int64_t>(kAwqDepth, left));
      for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* from = p.x.data + (row + r) * p.x.row_stride + k * p.x.col_stride;
        widen_strided<Format>(from, p.x.col_stride, x.data() + r * kAwqXStride, depth);
      }
      if (k % w.group == 0) group.load<Format>(w, k / w.group, col, count / 8);
      const AwqPiece piece = {w.q.data + k * w.q.row_stride + col / 8, w.q.row_stride, depth,
                              count / 8, k + 2 * depth <= w.k};
      multiply_piece<Format>(piece, group, rows, x.data(), b.data(), sums.data());
      k += depth;
    }

    float bias[kAwqCols];
    if (p.bias.data) {
      with_format(p.bias.dtype, [&](auto format) {
        using S = typename decltype(format)::storage;
        const S* from = static_cast<const S*>(p.bias.data) + col * p.bias.stride;
        widen_strided<decltype(format)>(from, p.bias.stride, bias, count);
      });
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* sum = sums.data() + r * kAwqCols;
      if (p.bias.data) {
        for (int i = 0; i < count; ++i) sum[i] += bias[i];
      }
      Format::narrow(sum, p.d + (row + r) * w.n + col, count);
    }
  }
}

template <class Format>
inline void awq_dequantize_of(const AwqProblem& p, int64_t begin, int64_t end) {
  const AwqWeight& w = p.w;
  AwqGroup group;
  for (int64_t col = 0; col < w.n; col += kAwqCols) {
    const int count = static_cast<int>(std::min<int64_t>(kAwqCols, w.n - col));
    for (int64_t k = begin; k < end; ++k) {
      if (k == begin || k % w.group == 0) group.load<Format>(w, k / w.group, col, count / 8);
      const uint32_t* q = w.q.data + k * w.q.row_stride + col / 8;
      float products[kAwqCols];
      for (int c = 0; c < count / 8; ++c) {
        Eight d;
        differences(q[c], group.zero[c], d);
        d *= group.scale[c];
        std::memcpy(products + 8 * c, &d, sizeof d);
      }
      Format::narrow(products, p.d + k * w.n + col, count);
    }
  }
}

inline void awq_gemm(const AwqProblem& p, const AwqTiling& tiling, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  if (p.w.dtype == ScalarType::Half) return awq_gemm_of<Half>(p, tiling, begin, end);
  awq_gemm_of<BFloat16>(p, tiling, begin, end);
}

inline void awq_dequantize(const AwqProblem& p, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  if (p.w.dtype == ScalarType::Half) return awq_dequantize_of<Half>(p, begin, end);
  awq_dequantize_of<BFloat16>(p, begin, end);
}
