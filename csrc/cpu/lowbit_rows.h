// Weights of 4 and 8 bits: dequantised row by row, or multiplied a tile at a time while the tile is
// in L1.
//
//   lowbit_words.h   words to floats
//   lowbit_group.h   scales and zero points, and the rounding of a weight's value
//   lowbit_tile.h    a tile: dequantised, multiplied
//   lowbit_stream.h  a tile, multiplied as it comes from its words
//   lowbit_pairs.h   the last two in pairs of rows, for bfloat16 where the machine multiplies those
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
inline constexpr int kLowbitDepth = 128;  // rows of the weight that are multiplied at a time
inline constexpr int64_t kLowbitMostSums = 1 << 14;  // of several tasks at once
inline constexpr int kLowbitXStride =
    kLowbitDepth + 16;  // powers of two would collide in the cache

inline const uint16_t* row_of_x(const LowbitProblem& p, int64_t row) {
  return p.x.data + (p.gather ? p.gather[row] : row) * p.x.row_stride;
}

#include "cpu/lowbit_words.h"
#include "cpu/lowbit_group.h"
#include "cpu/lowbit_tile.h"
#include "cpu/lowbit_stream.h"
#if defined(SCALED_MM_HAS_AVX512_BF16)
#include "cpu/lowbit_pairs.h"
#endif

// Tasks that lie side by side in the same rows, and are multiplied together: a row of their words
// is read in one go.
struct Span {
  int64_t row, rows, col;
  int blocks;  // of kLowbitCols columns
};

// Whether so few rows go down a block of columns at a time, whose words follow one another.
inline bool goes_down(const LowbitWeight& w, int64_t rows) {
  return w.block_stride && rows <= kFewStreamRows;
}

inline Span span_at(const LowbitProblem& p, const Tiling& tiling, int64_t task, int64_t end) {
  Span s;
  const int64_t block = task % tiling.col_blocks;
  s.row = task / tiling.col_blocks * tiling.block_rows;
  s.rows = std::min(tiling.block_rows, p.m - s.row);
  s.col = block * kLowbitCols;
  const int64_t most =
      goes_down(p.w, s.rows) ? 1 : std::max<int64_t>(1, kLowbitMostSums / (kLowbitCols * s.rows));
  s.blocks = static_cast<int>(std::min({end - task, tiling.col_blocks - block, most}));
  return s;
}

// Columns of a block that the weight has, those of its padding included: a multiple of 8.
inline int columns_at(const LowbitWeight& w, int64_t col) {
  return static_cast<int>(std::min<int64_t>(kLowbitCols, w.padded_n() - col));
}

inline const uint32_t* words_at(const LowbitWeight& w, int64_t k, int64_t col) {
  const int64_t first = w.block_stride ? col / kLowbitCols * w.block_stride : col * w.bits / 32;
  return w.q.data + first + k * w.q.row_stride;
}

// The words of rows [k, k + depth) of a block of columns; those of the last block with zeros behind
// them, in `padded`.
template <class Words>
inline WeightTile tile_at(const LowbitWeight& w, int64_t k, int depth, int64_t col,
                          uint32_t* padded) {
  const int columns = columns_at(w, col);
  const uint32_t* q = words_at(w, k, col);
  if (columns == kLowbitCols) return {q, w.q.row_stride, depth, kLowbitVectors, nullptr, 0};
  for (int r = 0; r < depth; ++r) {
    std::memcpy(padded + r * Words::kWords, q + r * w.q.row_stride, columns * Words::kBits / 8);
  }
  constexpr int kTogether = kLowbitCols / 2;  // columns whose words are taken apart at a time
  const int vectors = static_cast<int>(round_up(columns, kTogether)) / 8;
  return {padded, Words::kWords, depth, vectors, nullptr, 0};
}

inline void activate(Function function, float* x, int count) {
  with_function(function, [&](auto f) {
    for (int i = 0; i < count; ++i) x[i] = functions::value<FunctionOps, f>(x[i]);
  });
}

template <class Of, class Words>
inline void write_sums(const LowbitProblem& p, const Span& span, const float* sums) {
  for (int block = 0; block < span.blocks; ++block) {
    const int64_t col = span.col + block * kLowbitCols;
    const int count = static_cast<int>(std::min<int64_t>(kLowbitCols, p.w.n - col));
    float bias[kLowbitCols], residual[kLowbitCols], sum[kLowbitCols];
    if (p.bias.data) widen_columns(p.bias, 0, col, bias, count);
    for (int64_t r = 0; r < span.rows; ++r, sums += kLowbitCols) {
      uint16_t* const d = p.d + (span.row + r) * p.ldd;
      Words::to_columns(sums, sum);
      if (p.bias.data) {
        for (int i = 0; i < count; ++i) sum[i] += bias[i];
      }
      if (p.residual.data) {
        widen_columns(p.residual, span.row + r, col, residual, count);
        for (int i = 0; i < count; ++i) sum[i] += residual[i];
      }
      if (p.gated) {
        float gates[kLowbitCols / 2];
        for (int i = 0; i < count / 2; ++i) gates[i] = sum[2 * i];
        activate(p.function, gates, count / 2);
        for (int i = 0; i < count / 2; ++i) gates[i] *= sum[2 * i + 1];
        Of::narrow(gates, d + col / 2, count / 2);
      } else {
        activate(p.function, sum, count);
        Of::narrow(sum, d + col, count);
      }
    }
  }
}

struct Scratch {
  explicit Scratch(int64_t rows)
      : x(static_cast<size_t>(rows) * kLowbitXStride),
        sums(static_cast<size_t>(std::max(rows * kLowbitCols, kLowbitMostSums))) {
    std::fill(padded.data(), padded.data() + kLowbitDepth * kLowbitMostWords, 0u);
  }
  Buffer<float> x, sums, b{kLowbitDepth * kLowbitCols};
  Buffer<uint32_t> padded{kLowbitDepth * kLowbitMostWords};
};

// Bf16Pairs (lowbit_pairs.h) where there are none.
struct NoPairs {
  explicit NoPairs(int64_t) {}
  void begin() {}
  template <class... Tile>
  void load(const Tile&...) {}
  template <class... Tile>
  bool multiply(const Tile&...) {
    return false;
  }
};

template <class Of, class W>
struct PairsOf {
  using Type = NoPairs;
};
#if defined(SCALED_MM_HAS_AVX512_BF16)
template <class Words>
struct PairsOf<Format<DType::bfloat16>, WeightKind<Words, false>> {
  using Type = Bf16Pairs<Words>;
};
#endif

// The sums of a span, tile by tile: from left to right, then down.
template <class Of, class W>
inline void multiply_span(const LowbitProblem& p, const Span& span, Scratch& scratch,
                          typename PairsOf<Of, W>::Type& pairs) {
  const LowbitWeight& w = p.w;
  GroupTerms<Of, W> group;
  pairs.begin();
  for (int64_t k = 0; k < w.k;) {
    const int64_t left = w.group - k % w.group;  // in this group
    const int depth = static_cast<int>(std::min<int64_t>(kLowbitDepth, left));
    pairs.load(p, span.row, span.rows, k, depth);
    bool widened = false;
    for (int block = 0; block < span.blocks; ++block) {
      const int64_t col = span.col + block * kLowbitCols;
      float* const sums = scratch.sums.data() + block * span.rows * kLowbitCols;
      WeightTile tile = tile_at<typename W::Words>(w, k, depth, col, scratch.padded.data());
      if (goes_down(w, span.rows)) {  // behind the last row the next block begins
        tile.next = words_at(w, k, col) + kLowbitDepth * w.q.row_stride;
      } else if (block + 1 < span.blocks) {
        tile.next = words_at(w, k, col + kLowbitCols);
      } else if (k + 2 * depth <= w.k) {
        tile.next = words_at(w, k + depth, span.col);
      }
      tile.next_stride = w.q.row_stride;
      if (pairs.multiply(w, k / w.group, col, columns_at(w, col), block, tile, span.rows, sums)) {
        continue;
      }
      if (!widened) {
        for (int64_t r = 0; r < span.rows; ++r) {
          const uint16_t* from = row_of_x(p, span.row + r) + k * p.x.col_stride;
          widen_strided<Of>(from, p.x.col_stride, scratch.x.data() + r * kLowbitXStride, depth);
        }
        widened = true;
      }
      group.load(w, k / w.group, col, columns_at(w, col));
      multiply_tile(tile, group, span.rows, scratch.x.data(), scratch.b.data(), sums);
    }
    k += depth;
  }
}

template <class Of, class W>
inline void multiply_of(const LowbitProblem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  Scratch scratch(tiling.block_rows);
  typename PairsOf<Of, W>::Type pairs(tiling.block_rows);
  for (int64_t task = begin; task < end;) {
    const Span span = span_at(p, tiling, task, end);
    std::fill_n(scratch.sums.data(), span.blocks * span.rows * kLowbitCols, 0.0f);
    multiply_span<Of, W>(p, span, scratch, pairs);
    write_sums<Of, typename W::Words>(p, span, scratch.sums.data());
    task += span.blocks;
  }
}

// A group's scales and zero points in the order of the columns, for dequantize_rows_of.
template <class Of, class W>
struct RowTerms {
  Eight base[kLowbitVectors] = {};
  float scale[kLowbitCols] = {}, zero[kLowbitCols] = {};

  void load(const LowbitWeight& w, int64_t group, int64_t col, int columns) {
    Of::widen(w.scales.data + group * w.scales.row_stride + col, scale, columns);
    if constexpr (W::kReal) {
      Of::widen(w.real_zeros.data + group * w.real_zeros.row_stride + col, zero, columns);
    }
    const Eight offset = Eight{} + static_cast<float>(w.offset());
    for (int c = 0; c < columns / 8; ++c) {
      base[c] = offset;
      if (w.zero_point == ZeroPoint::integer) {
        const uint32_t* zeros = w.zeros.data + group * w.zeros.row_stride + col * w.bits / 32;
        W::Words::differences(zeros, c, Eight{}, base[c]);
      }
    }
  }
};

template <class Of, class W>
inline void dequantize_rows_of(const LowbitProblem& p, int64_t begin, int64_t end) {
  const LowbitWeight& w = p.w;
  RowTerms<Of, W> group;
  for (int64_t col = 0; col < w.n; col += kLowbitCols) {
    const int columns = columns_at(w, col);
    for (int64_t k = begin; k < end; ++k) {
      if (k == begin || k % w.group == 0) group.load(w, k / w.group, col, columns);
      uint16_t rounded[kLowbitCols];
      for (int c = 0; c < columns / 8; ++c) {
        Eight d;
        float differences[8];
        W::Words::differences(words_at(w, k, col), c, group.base[c], d);
        std::memcpy(differences, &d, sizeof d);
        round_exactly<Of, W::kReal>(differences, group.scale + 8 * c, group.zero + 8 * c, 8,
                                    rounded + 8 * c);
      }
      const int64_t count = std::min<int64_t>(columns, w.n - col);
      std::memcpy(p.d + k * w.n + col, rounded, count * sizeof(uint16_t));
    }
  }
}

// Rows [begin, end) of X' [M, K], row-major.
template <class Of>
inline void prepare_rows_of(const LowbitProblem& p, uint16_t* to, int64_t begin, int64_t end) {
  constexpr int64_t kSome = 256;
  const int64_t columns = p.w.k;
  Buffer<float> factors(p.pre_scale.data ? static_cast<size_t>(columns) : 0);
  if (p.pre_scale.data) widen_columns(p.pre_scale, 0, 0, factors.data(), columns);
  const auto source = [&](int64_t k) { return p.order ? int64_t{p.order[k]} : k; };
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* x = row_of_x(p, row);
    for (int64_t first = 0; first < columns; first += kSome) {
      const int64_t count = std::min(kSome, columns - first);
      uint16_t* part = to + row * columns + first;
      for (int64_t i = 0; i < count; ++i) part[i] = x[source(first + i) * p.x.col_stride];
      if (!p.pre_scale.data) continue;
      float wide[kSome];
      Of::widen(part, wide, count);
      for (int64_t i = 0; i < count; ++i) wide[i] *= factors[source(first + i)];
      Of::narrow(wide, part, count);
    }
  }
}

// use(format, weights): their types as values.
template <class Use>
inline void with_lowbit_types(const LowbitWeight& w, const Use& use) {
  with_dtype16(w.dtype, [&](auto dtype) {
    with_weights(w, [&](auto weights) { use(Format<dtype>{}, weights); });
  });
}

inline void lowbit_prepare(const LowbitProblem& p, uint16_t* to, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  with_dtype16(p.w.dtype, [&](auto dtype) { prepare_rows_of<Format<dtype>>(p, to, begin, end); });
}

inline void lowbit_gemm(const LowbitProblem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  with_lowbit_types(p.w, [&](auto format, auto weights) {
    multiply_of<decltype(format), decltype(weights)>(p, tiling, begin, end);
  });
}

inline void lowbit_dequantize(const LowbitProblem& p, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  with_lowbit_types(p.w, [&](auto format, auto weights) {
    dequantize_rows_of<decltype(format), decltype(weights)>(p, begin, end);
  });
}
