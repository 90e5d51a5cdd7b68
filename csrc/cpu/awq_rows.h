// int4 AWQ weights: dequantised row by row, or multiplied a piece at a time while the piece is in
// L1.
//
// Every element of a product is one chain of fused multiply-adds in the order of k, so its bits
// depend on neither tiles nor threads nor the rows around it (where there is no fma, on nothing but
// that). Sums are kept in the order of vectors that awq_words.h draws, until they are written.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

#if !defined(SCALED_MM_HAS_FMA_F16C)
using F = float __attribute__((vector_size(16)));
inline constexpr int kFloatTileRows = 4, kFloatTileVectors = 2;
inline F fused(F x, F y, F sum) { return x * y + sum; }
inline F broadcast_float(float x) { return F{x, x, x, x}; }
#endif

inline constexpr int kFloatPanel = kFloatTileVectors * static_cast<int>(sizeof(F) / sizeof(float));
inline constexpr int kAwqDepth = 128;     // rows of the weight that are multiplied at a time
inline constexpr int kAwqStreamRows = 4;  // up to so many rows of X, pieces stay in registers
inline constexpr int64_t kAwqMostSums = 1 << 14;    // of several tasks at once
inline constexpr int kAwqXStride = kAwqDepth + 16;  // powers of two would collide in the cache

#include "cpu/awq_words.h"

// sums [R][kFloatPanel] += x [R][depth] b [depth][kFloatPanel]
template <int R>
inline void multiply_floats(const float* x, const float* b, int depth, float* sums) {
  constexpr int kVectors = kFloatTileVectors, kLanes = sizeof(F) / sizeof(float);
  F sum[R][kVectors];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kAwqCols, sizeof sum[r]);
  for (int64_t k = 0; k < depth; ++k) {
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
// The same for few rows, and the piece goes from its words into the sums without a stop. V vectors
// at a time: enough chains of sums to hide the latency of an addition.
template <int R, int V>
inline void stream_vectors(const AwqPiece& piece, const AwqGroup& group, int v, const float* x,
                           float* sums) {
  Eight sum[R][V], zero[V], less[V], high[V];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kAwqCols + 8 * v, sizeof sum[r]);
  std::memcpy(zero, group.zero + v, sizeof zero);
  std::memcpy(less, group.less + v, sizeof less);
  std::memcpy(high, group.high + v, sizeof high);
  const uint32_t* q = piece.q + v / 8 * 8;
  for (int64_t k = 0; k < piece.depth; ++k, q += piece.stride) {
    Eight w[V];
#pragma GCC unroll 4
    for (int u = 0; u < V; u += 2) {
      widen_nibbles(q, (v + u) / 2 % 4, w[u], w[u + 1]);
      for (int j = u; j < u + 2; ++j) round_product(w[j] - zero[j], less[j], high[j], w[j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Eight value = _mm256_set1_ps(x[r * kAwqXStride + k]);
#pragma GCC unroll 4
      for (int u = 0; u < V; ++u) sum[r][u] = _mm256_fmadd_ps(value, w[u], sum[r][u]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kAwqCols + 8 * v, sum[r], sizeof sum[r]);
}

template <int R>
inline void stream_piece(const AwqPiece& piece, const AwqGroup& group, const float* x,
                         float* sums) {
  constexpr int kAtOnce = R <= 2 ? 4 : 2;  // what 16 registers hold
  for (int v = 0; v < piece.vectors; v += kAtOnce) {
    fetch_next(piece, v, kAtOnce);
    stream_vectors<R, kAtOnce>(piece, group, v, x, sums);
  }
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
  for (int n = 0; n < 8 * piece.vectors; n += kFloatPanel, b += piece.depth * kFloatPanel) {
    for_each_tile(rows, kFloatTileRows, [&](int64_t first, int height) {
      with_constant<kFloatTileRows>(height, [&](auto r) {
        multiply_floats<r>(x + first * kAwqXStride, b, piece.depth, sums + first * kAwqCols + n);
      });
    });
  }
}

// Tasks that lie side by side in the same rows, and are multiplied together: a row of their words
// is read in one go.
struct AwqSpan {
  int64_t row, rows, col;
  int blocks;  // of kAwqCols columns
};

inline AwqSpan span_at(const AwqProblem& p, const AwqTiling& tiling, int64_t task, int64_t end) {
  AwqSpan s;
  const int64_t block = task % tiling.col_blocks;
  s.row = task / tiling.col_blocks * tiling.block_rows;
  s.rows = std::min(tiling.block_rows, p.m - s.row);
  s.col = block * kAwqCols;
  const int64_t most = std::max<int64_t>(1, kAwqMostSums / (kAwqCols * s.rows));
  s.blocks = static_cast<int>(std::min({end - task, tiling.col_blocks - block, most}));
  return s;
}

// The words of rows [k, k + depth) of a block of columns; those of the last block with zeros behind
// them, in `padded`.
inline AwqPiece piece_at(const AwqWeight& w, int64_t k, int depth, int64_t col, uint32_t* padded) {
  const int words = static_cast<int>(std::min<int64_t>(kAwqWords, (w.n - col) / 8));
  const uint32_t* q = w.q.data + k * w.q.row_stride + col / 8;
  if (words == kAwqWords) return {q, w.q.row_stride, depth, kAwqVectors, nullptr, 0};
  for (int r = 0; r < depth; ++r) {
    std::memcpy(padded + r * kAwqWords, q + r * w.q.row_stride, words * sizeof(uint32_t));
  }
  return {padded, kAwqWords, depth, words > 8 ? kAwqVectors : kAwqVectors / 2, nullptr, 0};
}

template <class Format>
inline void write_sums(const AwqProblem& p, const AwqSpan& span, const float* sums) {
  for (int block = 0; block < span.blocks; ++block) {
    const int64_t col = span.col + block * kAwqCols;
    const int count = static_cast<int>(std::min<int64_t>(kAwqCols, p.w.n - col));
    float bias[kAwqCols], sum[kAwqCols];
    if (p.bias.data) {
      with_format(p.bias.dtype, [&](auto format) {
        using S = typename decltype(format)::storage;
        const S* from = static_cast<const S*>(p.bias.data) + col * p.bias.stride;
        widen_strided<decltype(format)>(from, p.bias.stride, bias, count);
      });
    }
    for (int64_t r = 0; r < span.rows; ++r, sums += kAwqCols) {
      to_columns(sums, sum);
      if (p.bias.data) {
        for (int i = 0; i < count; ++i) sum[i] += bias[i];
      }
      Format::narrow(sum, p.d + (span.row + r) * p.w.n + col, count);
    }
  }
}

struct AwqScratch {
  explicit AwqScratch(int64_t rows)
      : x(static_cast<size_t>(rows) * kAwqXStride),
        sums(static_cast<size_t>(std::max(rows * kAwqCols, kAwqMostSums))) {
    std::fill(padded.data(), padded.data() + kAwqDepth * kAwqWords, 0u);
  }
  Buffer<float> x, sums, b{kAwqDepth * kAwqCols};
  Buffer<uint32_t> padded{kAwqDepth * kAwqWords};
};

// The sums of a span, piece by piece: from left to right, then down.
template <class Format>
inline void multiply_span(const AwqProblem& p, const AwqSpan& span, AwqScratch& scratch) {
  const AwqWeight& w = p.w;
  AwqGroup group;
  for (int64_t k = 0; k < w.k;) {
    const int64_t left = w.group - k % w.group;  // in this group
    const int depth = static_cast<int>(std::min<int64_t>(kAwqDepth, left));
    for (int64_t r = 0; r < span.rows; ++r) {
      const uint16_t* from = p.x.data + (span.row + r) * p.x.row_stride + k * p.x.col_stride;
      widen_strided<Format>(from, p.x.col_stride, scratch.x.data() + r * kAwqXStride, depth);
    }
    for (int block = 0; block < span.blocks; ++block) {
      const int64_t col = span.col + block * kAwqCols;
      AwqPiece piece = piece_at(w, k, depth, col, scratch.padded.data());
      if (block + 1 < span.blocks) {
        piece.next = w.q.data + k * w.q.row_stride + col / 8 + kAwqWords;
      } else if (k + 2 * depth <= w.k) {
        piece.next = w.q.data + (k + depth) * w.q.row_stride + span.col / 8;
      }
      piece.next_stride = w.q.row_stride;
      group.load<Format>(w, k / w.group, col,
                         static_cast<int>(std::min<int64_t>(kAwqWords, (w.n - col) / 8)));
      multiply_piece<Format>(piece, group, span.rows, scratch.x.data(), scratch.b.data(),
                             scratch.sums.data() + block * span.rows * kAwqCols);
    }
    k += depth;
  }
}

template <class Format>
inline void awq_gemm_of(const AwqProblem& p, const AwqTiling& tiling, int64_t begin, int64_t end) {
  AwqScratch scratch(tiling.block_rows);
  for (int64_t task = begin; task < end;) {
    const AwqSpan span = span_at(p, tiling, task, end);
    std::fill_n(scratch.sums.data(), span.blocks * span.rows * kAwqCols, 0.0f);
    multiply_span<Format>(p, span, scratch);
    write_sums<Format>(p, span, scratch.sums.data());
    task += span.blocks;
  }
}

template <class Format>
inline void awq_dequantize_of(const AwqProblem& p, int64_t begin, int64_t end) {
  const AwqWeight& w = p.w;
  const Eight none = {};
  Eight zero[kAwqWords] = {}, scale[kAwqWords] = {};
  for (int64_t col = 0; col < w.n; col += kAwqCols) {
    const int words = static_cast<int>(std::min<int64_t>(kAwqWords, (w.n - col) / 8));
    for (int64_t k = begin; k < end; ++k) {
      if (k == begin || k % w.group == 0) {
        const int64_t group = k / w.group;
        float scales[kAwqCols];
        Format::widen(w.scales.data + group * w.scales.row_stride + col, scales, 8 * words);
        std::memcpy(scale, scales, words * sizeof scale[0]);
        const uint32_t* zeros = w.zeros.data + group * w.zeros.row_stride + col / 8;
        for (int c = 0; c < words; ++c) differences(zeros[c], none, zero[c]);
      }
      const uint32_t* q = w.q.data + k * w.q.row_stride + col / 8;
      float products[kAwqCols];
      for (int c = 0; c < words; ++c) {
        Eight d;
        differences(q[c], zero[c], d);
        d *= scale[c];
        std::memcpy(products + 8 * c, &d, sizeof d);
      }
      Format::narrow(products, p.d + k * w.n + col, 8 * words);
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
