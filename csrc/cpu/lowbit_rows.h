// int4 AWQ weights: dequantised row by row, or multiplied a tile at a time while the tile is in
// L1.
//
// Every element of a product is one chain of fused multiply-adds in the order of k, so its bits
// depend on neither tiles nor threads nor the rows around it (where there is no fma, on nothing but
// that). Sums are kept in the order of vectors that lowbit_words.h draws, until they are written.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

#if !defined(SCALED_MM_HAS_FMA_F16C)
using F = float __attribute__((vector_size(16)));
inline constexpr int kFloatTileRows = 4, kFloatTileVectors = 2;
inline F fused(F x, F y, F sum) { return x * y + sum; }
inline F broadcast_float(float x) { return F{x, x, x, x}; }
#endif

inline constexpr int kFloatPanel = kFloatTileVectors * static_cast<int>(sizeof(F) / sizeof(float));
inline constexpr int kLowbitDepth = 128;     // rows of the weight that are multiplied at a time
inline constexpr int kLowbitStreamRows = 4;  // up to so many rows of X, tiles stay in registers
inline constexpr int64_t kLowbitMostSums = 1 << 14;  // of several tasks at once
inline constexpr int kLowbitXStride =
    kLowbitDepth + 16;  // powers of two would collide in the cache

#include "cpu/lowbit_words.h"

// sums [R][kFloatPanel] += x [R][depth] b [depth][kFloatPanel]
template <int R>
inline void multiply_floats(const float* x, const float* b, int depth, float* sums) {
  constexpr int kVectors = kFloatTileVectors, kLanes = sizeof(F) / sizeof(float);
  F sum[R][kVectors];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kLowbitCols, sizeof sum[r]);
  for (int64_t k = 0; k < depth; ++k) {
    F w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      std::memcpy(&w[v], b + k * kFloatPanel + v * kLanes, sizeof(F));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F value = broadcast_float(x[r * kLowbitXStride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fused(value, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kLowbitCols, sum[r], sizeof sum[r]);
}

#if defined(SCALED_MM_HAS_FMA_F16C)
// The same for few rows, and the tile goes from its words into the sums without a stop. V vectors
// at a time: enough chains of sums to hide the latency of an addition.
template <int R, int V>
inline void stream_vectors(const WeightTile& tile, const GroupTerms& group, int v, const float* x,
                           float* sums) {
  Eight sum[R][V], zero[V], less[V], high[V];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kLowbitCols + 8 * v, sizeof sum[r]);
  std::memcpy(zero, group.zero + v, sizeof zero);
  std::memcpy(less, group.less + v, sizeof less);
  std::memcpy(high, group.high + v, sizeof high);
  const uint32_t* q = tile.q + v / 8 * 8;
  for (int64_t k = 0; k < tile.depth; ++k, q += tile.stride) {
    Eight w[V];
#pragma GCC unroll 4
    for (int u = 0; u < V; u += 2) {
      widen_nibbles(q, (v + u) / 2 % 4, w[u], w[u + 1]);
      for (int j = u; j < u + 2; ++j) round_product(w[j] - zero[j], less[j], high[j], w[j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Eight value = _mm256_set1_ps(x[r * kLowbitXStride + k]);
#pragma GCC unroll 4
      for (int u = 0; u < V; ++u) sum[r][u] = _mm256_fmadd_ps(value, w[u], sum[r][u]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kLowbitCols + 8 * v, sum[r], sizeof sum[r]);
}

template <int R>
inline void stream_tile(const WeightTile& tile, const GroupTerms& group, const float* x,
                        float* sums) {
  constexpr int kAtOnce = R <= 2 ? 4 : 2;  // what 16 registers hold
  for (int v = 0; v < tile.vectors; v += kAtOnce) {
    fetch_next(tile, v, kAtOnce);
    stream_vectors<R, kAtOnce>(tile, group, v, x, sums);
  }
}
#endif

template <class Of>
inline void multiply_tile(const WeightTile& tile, const GroupTerms& group, int64_t rows,
                          const float* x, float* b, float* sums) {
#if defined(SCALED_MM_HAS_FMA_F16C)
  if (rows <= kLowbitStreamRows && group.plain) {
    return with_constant<kLowbitStreamRows>(static_cast<int>(rows),
                                            [&](auto r) { stream_tile<r>(tile, group, x, sums); });
  }
#endif
  dequantize_tile<Of>(tile, group, b);
  for (int n = 0; n < 8 * tile.vectors; n += kFloatPanel, b += tile.depth * kFloatPanel) {
    for_each_tile(rows, kFloatTileRows, [&](int64_t first, int height) {
      with_constant<kFloatTileRows>(height, [&](auto r) {
        multiply_floats<r>(x + first * kLowbitXStride, b, tile.depth,
                           sums + first * kLowbitCols + n);
      });
    });
  }
}

// Tasks that lie side by side in the same rows, and are multiplied together: a row of their words
// is read in one go.
struct Span {
  int64_t row, rows, col;
  int blocks;  // of kLowbitCols columns
};

inline Span span_at(const LowbitProblem& p, const Tiling& tiling, int64_t task, int64_t end) {
  Span s;
  const int64_t block = task % tiling.col_blocks;
  s.row = task / tiling.col_blocks * tiling.block_rows;
  s.rows = std::min(tiling.block_rows, p.m - s.row);
  s.col = block * kLowbitCols;
  const int64_t most = std::max<int64_t>(1, kLowbitMostSums / (kLowbitCols * s.rows));
  s.blocks = static_cast<int>(std::min({end - task, tiling.col_blocks - block, most}));
  return s;
}

// The words of rows [k, k + depth) of a block of columns; those of the last block with zeros behind
// them, in `padded`.
inline WeightTile tile_at(const LowbitWeight& w, int64_t k, int depth, int64_t col,
                          uint32_t* padded) {
  const int words = static_cast<int>(std::min<int64_t>(kLowbitWords, (w.n - col) / 8));
  const uint32_t* q = w.q.data + k * w.q.row_stride + col / 8;
  if (words == kLowbitWords) return {q, w.q.row_stride, depth, kLowbitVectors, nullptr, 0};
  for (int r = 0; r < depth; ++r) {
    std::memcpy(padded + r * kLowbitWords, q + r * w.q.row_stride, words * sizeof(uint32_t));
  }
  return {padded, kLowbitWords, depth, words > 8 ? kLowbitVectors : kLowbitVectors / 2, nullptr, 0};
}

template <class Of>
inline void write_sums(const LowbitProblem& p, const Span& span, const float* sums) {
  for (int block = 0; block < span.blocks; ++block) {
    const int64_t col = span.col + block * kLowbitCols;
    const int count = static_cast<int>(std::min<int64_t>(kLowbitCols, p.w.n - col));
    float bias[kLowbitCols], sum[kLowbitCols];
    if (p.bias.data) widen_columns(p.bias, 0, col, bias, count);
    for (int64_t r = 0; r < span.rows; ++r, sums += kLowbitCols) {
      to_columns(sums, sum);
      if (p.bias.data) {
        for (int i = 0; i < count; ++i) sum[i] += bias[i];
      }
      Of::narrow(sum, p.d + (span.row + r) * p.w.n + col, count);
    }
  }
}

struct Scratch {
  explicit Scratch(int64_t rows)
      : x(static_cast<size_t>(rows) * kLowbitXStride),
        sums(static_cast<size_t>(std::max(rows * kLowbitCols, kLowbitMostSums))) {
    std::fill(padded.data(), padded.data() + kLowbitDepth * kLowbitWords, 0u);
  }
  Buffer<float> x, sums, b{kLowbitDepth * kLowbitCols};
  Buffer<uint32_t> padded{kLowbitDepth * kLowbitWords};
};

// The sums of a span, tile by tile: from left to right, then down.
template <class Of>
inline void multiply_span(const LowbitProblem& p, const Span& span, Scratch& scratch) {
  const LowbitWeight& w = p.w;
  GroupTerms group;
  for (int64_t k = 0; k < w.k;) {
    const int64_t left = w.group - k % w.group;  // in this group
    const int depth = static_cast<int>(std::min<int64_t>(kLowbitDepth, left));
    for (int64_t r = 0; r < span.rows; ++r) {
      const uint16_t* from = p.x.data + (span.row + r) * p.x.row_stride + k * p.x.col_stride;
      widen_strided<Of>(from, p.x.col_stride, scratch.x.data() + r * kLowbitXStride, depth);
    }
    for (int block = 0; block < span.blocks; ++block) {
      const int64_t col = span.col + block * kLowbitCols;
      WeightTile tile = tile_at(w, k, depth, col, scratch.padded.data());
      if (block + 1 < span.blocks) {
        tile.next = w.q.data + k * w.q.row_stride + col / 8 + kLowbitWords;
      } else if (k + 2 * depth <= w.k) {
        tile.next = w.q.data + (k + depth) * w.q.row_stride + span.col / 8;
      }
      tile.next_stride = w.q.row_stride;
      group.load<Of>(w, k / w.group, col,
                     static_cast<int>(std::min<int64_t>(kLowbitWords, (w.n - col) / 8)));
      multiply_tile<Of>(tile, group, span.rows, scratch.x.data(), scratch.b.data(),
                        scratch.sums.data() + block * span.rows * kLowbitCols);
    }
    k += depth;
  }
}

template <class Of>
inline void multiply_of(const LowbitProblem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  Scratch scratch(tiling.block_rows);
  for (int64_t task = begin; task < end;) {
    const Span span = span_at(p, tiling, task, end);
    std::fill_n(scratch.sums.data(), span.blocks * span.rows * kLowbitCols, 0.0f);
    multiply_span<Of>(p, span, scratch);
    write_sums<Of>(p, span, scratch.sums.data());
    task += span.blocks;
  }
}

template <class Of>
inline void dequantize_rows_of(const LowbitProblem& p, int64_t begin, int64_t end) {
  const LowbitWeight& w = p.w;
  const Eight none = {};
  Eight zero[kLowbitWords] = {}, scale[kLowbitWords] = {};
  for (int64_t col = 0; col < w.n; col += kLowbitCols) {
    const int words = static_cast<int>(std::min<int64_t>(kLowbitWords, (w.n - col) / 8));
    for (int64_t k = begin; k < end; ++k) {
      if (k == begin || k % w.group == 0) {
        const int64_t group = k / w.group;
        float scales[kLowbitCols];
        Of::widen(w.scales.data + group * w.scales.row_stride + col, scales, 8 * words);
        std::memcpy(scale, scales, words * sizeof scale[0]);
        const uint32_t* zeros = w.zeros.data + group * w.zeros.row_stride + col / 8;
        for (int c = 0; c < words; ++c) differences(zeros[c], none, zero[c]);
      }
      const uint32_t* q = w.q.data + k * w.q.row_stride + col / 8;
      float products[kLowbitCols];
      for (int c = 0; c < words; ++c) {
        Eight d;
        differences(q[c], zero[c], d);
        d *= scale[c];
        std::memcpy(products + 8 * c, &d, sizeof d);
      }
      Of::narrow(products, p.d + k * w.n + col, 8 * words);
    }
  }
}

inline void lowbit_gemm(const LowbitProblem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  with_dtype16(p.w.dtype, [&](auto dtype) { multiply_of<Format<dtype>>(p, tiling, begin, end); });
}

inline void lowbit_dequantize(const LowbitProblem& p, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  with_dtype16(p.w.dtype, [&](auto dtype) { dequantize_rows_of<Format<dtype>>(p, begin, end); });
}
