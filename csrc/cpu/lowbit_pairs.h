// Products of bfloat16 by vdpbf16ps, which adds two products to a sum. It rounds after each of
// them, the upper half of a lane first: with row k of the weight in the upper half and row k + 1 in
// the lower one the sums have the bits of two fused multiply-adds, in the order of k.
//
// It takes subnormals for zero, though, in operands and in sums. So it is used where nothing can be
// subnormal but zero. A bfloat16 has 8 bits: if it is 0 or at least 2^e in magnitude, it is a
// multiple of 2^(e - 7). Let that be so of x with e = kLeastX and of the scales with kLeastScale.
// Then weights are multiples of 2^(kLeastScale - 7) as well, and products and sums, rounded or not,
// of 2^(kLeastX + kLeastScale - 14) = 2^-126, the least normal number.
//
// No include guard: lowbit_rows.h includes this.

inline constexpr int kLeastX = -76, kLeastScale = -36, kMostScale = 100;
inline constexpr int kPairStride = kLowbitXStride / 2;

[[gnu::always_inline]] inline __m512bh pairs_at(const uint32_t* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}
[[gnu::always_inline]] inline void keep(const Wide& sum, float* to) {
  std::memcpy(to, &sum, sizeof sum);
}
[[gnu::always_inline]] inline __m512bh broadcast_pair(uint32_t pair) {
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pair)));
}

// Whether vdpbf16ps rounds as said above.
inline bool multiplies_pairs_in_order() {
  const auto sum = [](float first, float second) {
    const uint32_t pair = to_bits(first) | to_bits(second) >> 16, ones = 0x3f803f80;
    float lanes[16];
    _mm512_storeu_ps(
        lanes, _mm512_dpbf16_ps(_mm512_set1_ps(1.0f), broadcast_pair(pair), broadcast_pair(ones)));
    return lanes[0];
  };
  // To 1, half of the last bit and three quarters of it: a tie that goes down, then 1 + 3/4; or
  // first up to 1 + 1, then a tie that goes up.
  constexpr float kHalf = 0x1p-24f, kMore = 0x1.8p-24f;
  return sum(kHalf, kMore) == 1.0f + 0x1p-23f && sum(kMore, kHalf) == 1.0f + 0x1p-22f;
}

// x in pairs [rows][kPairStride], row k in the upper half: of rows [0, rows) and columns
// [0, depth), an even number. False where a value is smaller than 2^kLeastX and not 0.
inline bool load_pairs(const LowbitProblem& p, int64_t row, int64_t rows, int64_t k, int depth,
                       uint32_t* to) {
  const __m512i least = _mm512_set1_epi16(((127 + kLeastX) << 7) - 1), one = _mm512_set1_epi16(1);
  __mmask32 small = 0;
  for (int64_t r = 0; r < rows; ++r, to += kPairStride) {
    const uint16_t* from = row_of_x(p, row + r) + k * p.x.col_stride;
    uint16_t gathered[kLowbitDepth];
    if (p.x.col_stride != 1) {
      for (int i = 0; i < depth; ++i) gathered[i] = from[i * p.x.col_stride];
      from = gathered;
    }
    for (int i = 0; i < depth; i += 32) {
      const __mmask32 taken = depth - i < 32 ? (1u << (depth - i)) - 1 : ~0u;
      const __m512i values = _mm512_maskz_loadu_epi16(taken, from + i);
      _mm512_storeu_si512(to + i / 2, _mm512_maskz_rol_epi32(0xffff, values, 16));
      const __m512i size = _mm512_and_si512(values, _mm512_set1_epi16(0x7fff));
      small |= _mm512_cmplt_epu16_mask(_mm512_sub_epi16(size, one), least);
    }
  }
  return small == 0;
}

// Scales and zero points of one group, for kLowbitCols columns, as factors and summands of pairs of
// rows: a weight's value is w * scale + base, w being what Words::pair_rows gives. Both are exact:
// w - base / scale is a whole number of 9 bits at most.
template <class Words>
struct PairTerms {
  // Of 16 columns two vectors, of which each has 8 columns, twice.
  Wide scale[kLowbitCols / 8], base[kLowbitCols / 8];

  // False where a scale is none that pairs may have: see above.
  bool load(const LowbitWeight& w, int64_t group, int64_t col, int columns) {
    uint16_t scales[kLowbitCols] = {};
    uint32_t zeros[Words::kWords] = {};
    std::memcpy(scales, w.scales.data + group * w.scales.row_stride + col,
                columns * sizeof(uint16_t));
    const bool integer = w.zero_point == ZeroPoint::integer;
    if (integer) {
      const uint32_t* from = w.zeros.data + group * w.zeros.row_stride + col * w.bits / 32;
      std::memcpy(zeros, from, columns * Words::kBits / 8);
    }
    constexpr int kLeast = (127 + kLeastScale) << 7, kMost = (127 + kMostScale) << 7;
    __mmask32 unfit = 0;
    for (int i = 0; i < kLowbitCols; i += 32) {
      const __m512i size =
          _mm512_and_si512(_mm512_loadu_si512(scales + i), _mm512_set1_epi16(0x7fff));
      const __m512i over = _mm512_sub_epi16(size, _mm512_set1_epi16(kLeast));
      const __mmask32 some = _mm512_test_epi16_mask(size, size);
      unfit |= _mm512_mask_cmpgt_epu16_mask(some, over, _mm512_set1_epi16(kMost - kLeast));
    }
    if (unfit) return false;
    for (int part = 0; part < kLowbitVectors; part += 8) {
      Wide zero[8];
      Words::template pair_rows<0>(zeros, zeros, part, zero);
      each<8>([&](auto i) __attribute__((always_inline)) {
        const Wide same = Wide{} + (Words::pair_offset(i) + static_cast<float>(w.offset()));
        scale[part + i] = twice<i>(scales + 8 * part);
        base[part + i] = -scale[part + i] * (integer ? zero[i] : same);
      });
    }
    return true;
  }

  // The scales of vector v, 0 .. 7, of 64 columns, each twice. A bfloat16 is the upper half of its
  // float.
  template <int v>
  [[gnu::always_inline]] static Wide twice(const uint16_t* scales) {
    static constexpr auto kFrom = [] {
      std::array<uint16_t, 32> from{};
      for (int lane = 0; lane < 16; ++lane) {
        from[2 * lane + 1] = static_cast<uint16_t>(Words::column(v, lane / 2));
      }
      return from;
    }();
    return _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi16(
        0xaaaaaaaa, _mm512_loadu_si512(scales), _mm512_loadu_si512(kFrom.data()),
        _mm512_loadu_si512(scales + 32)));
  }

  // Weights of vectors kFirst .. kFirst + kWide - 1 of 16 columns, of the 64 from vector `part` on,
  // as pairs of rows q0 and q1.
  template <int kFirst, int kWide>
  [[gnu::always_inline]] void weights(const uint32_t* q0, const uint32_t* q1, int part,
                                      __m512bh (&pair)[kWide]) const {
    Wide w[2 * kWide];
    Words::template pair_rows<2 * kFirst>(q0, q1, part, w);
    const Wide *const factor = scale + part + 2 * kFirst, *const summand = base + part + 2 * kFirst;
    each<kWide>([&](auto u) __attribute__((always_inline)) {
      const auto value = [&](auto half) __attribute__((always_inline)) {
        constexpr int i = 2 * u + half;
        return fused(w[i], factor[i], summand[i]);
      };
      pair[u] = _mm512_cvtne2ps_pbh(value(std::integral_constant<int, 1>{}),
                                    value(std::integral_constant<int, 0>{}));
    });
  }
};

// use(i, rows 2 i and 2 i + 1 of the tile) for all of them. Meanwhile the same words of the next
// tile are fetched, two rows at a time: all at once would be more lines than may be under way.
template <class Words, class Use>
[[gnu::always_inline]] inline void each_row_pair(const WeightTile& tile, int part, const Use& use) {
  const int64_t stride = tile.stride, next_stride = tile.next_stride;
  const uint32_t *q = tile.q, *next = tile.next ? tile.next : tile.q;
  next += part * Words::kWords / kLowbitVectors;
  for (int64_t i = 0; i < tile.depth / 2; ++i, q += 2 * stride, next += 2 * next_stride) {
    __builtin_prefetch(next);
    __builtin_prefetch(next + next_stride);
    use(i, q, q + stride);
  }
}

// As stream_vectors of lowbit_stream.h: kWide vectors of 16 columns of the 64 from vector `part`
// on, of R rows.
template <int R, int kFirst, int kWide, class Words>
inline void stream_pairs(const WeightTile& tile, const PairTerms<Words>& terms, int part,
                         const uint32_t* x, float* sums) {
  Wide sum[R][kWide];
  const auto each_sum = [&](const auto& use) __attribute__((always_inline)) {
    each<R>([&](auto r) __attribute__((always_inline)) {
      each<kWide>([&](auto u) __attribute__((always_inline)) {
        use(sum[r][u], sums + r * kLowbitCols + 8 * part + 16 * (kFirst + u));
      });
    });
  };
  each_sum([](Wide& of, const float* at) __attribute__((always_inline)) { of = wide_at(at); });
  const auto multiply = [&](int64_t i, auto* q0, auto* q1) __attribute__((always_inline)) {
    __m512bh w[kWide];
    terms.template weights<kFirst>(q0, q1, part, w);
    each<R>([&](auto r) __attribute__((always_inline)) {
      const __m512bh pair = broadcast_pair(x[r * kPairStride + i]);
      each<kWide>([&](auto u) __attribute__((always_inline)) {
        sum[r][u] = _mm512_dpbf16_ps(sum[r][u], pair, w[u]);
      });
    });
  };
  each_row_pair<Words>(tile, part, multiply);
  each_sum([](const Wide& of, float* at) __attribute__((always_inline)) { keep(of, at); });
}

// b [panel][depth / 2][kFloatPanel pairs] = the tile, dequantised.
template <class Words>
inline void dequantize_pairs(const WeightTile& tile, const PairTerms<Words>& terms, uint32_t* b) {
  for (int v = 0; v < tile.vectors; v += 8, b += 64 / kFloatPanel * tile.depth / 2 * kFloatPanel) {
    const auto put = [&](int64_t i, auto* q0, auto* q1) __attribute__((always_inline)) {
      __m512bh w[4];
      terms.template weights<0>(q0, q1, v, w);
      for (int u = 0; u < 4; ++u) {
        const int panel = 16 * u / kFloatPanel, at = 16 * u % kFloatPanel;
        std::memcpy(b + (panel * tile.depth / 2 + i) * kFloatPanel + at, &w[u], sizeof w[u]);
      }
    };
    each_row_pair<Words>(tile, v, put);
  }
}

// sums [R][kFloatPanel] += x [R][pairs] b [pairs][kFloatPanel]
template <int R>
inline void multiply_pairs(const uint32_t* x, const uint32_t* b, int pairs, float* sums) {
  Wide sum[R][kFloatTileVectors];
  const auto each_sum = [&](const auto& use) __attribute__((always_inline)) {
    each<R>([&](auto r) __attribute__((always_inline)) {
      each<kFloatTileVectors>([&](auto v) __attribute__((always_inline)) {
        use(sum[r][v], sums + r * kLowbitCols + 16 * v);
      });
    });
  };
  each_sum([](Wide& of, const float* at) __attribute__((always_inline)) { of = wide_at(at); });
  for (int64_t i = 0; i < pairs; ++i) {
    __m512bh w[kFloatTileVectors];
    each<kFloatTileVectors>([&](auto v) __attribute__((always_inline)) {
      w[v] = pairs_at(b + i * kFloatPanel + 16 * v);
    });
    each<R>([&](auto r) __attribute__((always_inline)) {
      const __m512bh pair = broadcast_pair(x[r * kPairStride + i]);
      each<kFloatTileVectors>([&](auto v) __attribute__((always_inline)) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pair, w[v]);
      });
    });
  }
  each_sum([](const Wide& of, float* at) __attribute__((always_inline)) { keep(of, at); });
}

inline constexpr int kMostAtOnce = 5;  // rows whose sums of 64 columns registers hold

// multiply_tile in pairs.
template <class Words>
inline void multiply_tile_pairs(const WeightTile& tile, const PairTerms<Words>& terms, int64_t rows,
                                const uint32_t* x, uint32_t* b, float* sums) {
  if (rows <= kLowbitStreamRows) {
    return with_constant<kLowbitStreamRows>(static_cast<int>(rows), [&](auto r) {
      for (int part = 0; part < tile.vectors; part += 8) {
        if constexpr (r <= kMostAtOnce) {
          stream_pairs<r, 0, 4>(tile, terms, part, x, sums);
        } else {
          stream_pairs<r, 0, 2>(tile, terms, part, x, sums);
          stream_pairs<r, 2, 2>(tile, terms, part, x, sums);
        }
      }
    });
  }
  dequantize_pairs(tile, terms, b);
  for (int n = 0; n < 8 * tile.vectors; n += kFloatPanel, b += tile.depth / 2 * kFloatPanel) {
    for_each_tile(rows, kFloatTileRows, [&](int64_t first, int height) {
      with_constant<kFloatTileRows>(height, [&](auto r) {
        multiply_pairs<r>(x + first * kPairStride, b, tile.depth / 2,
                          sums + first * kLowbitCols + n);
      });
    });
  }
}

// What multiply_span keeps of all this, for the time of a task.
template <class Words>
class Bf16Pairs {
 public:
  explicit Bf16Pairs(int64_t rows)
      : x_(static_cast<size_t>(rows) * kPairStride), b_(kLowbitDepth / 2 * kLowbitCols) {}

  // Of sums that are 0.
  void begin() {
    static const bool in_order = runs_avx512_bf16() && multiplies_pairs_in_order();
    fit_ = in_order ? ~Blocks{} : Blocks{};
    group_ = col_ = -1;
  }

  // Rows [k, k + depth) of the weight come next.
  void load(const LowbitProblem& p, int64_t row, int64_t rows, int64_t k, int depth) {
    // Sums that something small came into are not for pairs any more.
    if (depth % 2 != 0 || !load_pairs(p, row, rows, k, depth, x_.data())) fit_ = Blocks{};
  }

  // False where they do not do: nothing was added to the sums then.
  bool multiply(const LowbitWeight& w, int64_t group, int64_t col, int columns, int block,
                const WeightTile& tile, int64_t rows, float* sums) {
    if (group != group_ || col != col_) {
      group_ = group, col_ = col;
      fit_[block] = terms_.load(w, group, col, columns) && fit_[block];
    }
    if (fit_[block]) multiply_tile_pairs(tile, terms_, rows, x_.data(), b_.data(), sums);
    return fit_[block];
  }

 private:
  using Blocks = std::bitset<kLowbitMostSums / kLowbitCols>;  // of a span
  Blocks fit_;
  int64_t group_ = -1, col_ = -1;  // of the terms
  PairTerms<Words> terms_;
  Buffer<uint32_t> x_, b_;
};
