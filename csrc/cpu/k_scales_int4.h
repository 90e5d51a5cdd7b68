// Columns of a weight of 4 bits for products with int8 (k_scales.h): as bytes in cache, or, for few
// rows of A, straight from the words.
//
// No include guard: k_scales.h includes this.

inline constexpr int kKScalesPanels = kKScalesCols / kPanel;

// Words of AWQ (lowbit_words.h), four rows of 16 words at a time. Bytes of the rows are interleaved
// as they lie: 32 bits then hold four k of a column in their low nibbles and of another in their
// high ones. With panel = 2 i + high and lane = 4 l + j, word 4 l + i:
//   column = 32 l + 8 i + {0, 4, 1, 5}[j] + 2 high
// Scales come into this order, and sums out of it.
inline constexpr int kWordsAhead = 16 * 64;  // of words that lie in blocks: a page

struct NibblePanels {
  static constexpr int kVectors = kPanelVectors;
  using Bytes = uint8_t __attribute__((vector_size(sizeof(V))));
  using Ints = int32_t __attribute__((vector_size(sizeof(V))));
  using Four = float __attribute__((vector_size(16)));

  // pairs[i - First] for First <= i < 4: both nibbles of panels 2 i and 2 i + 1, of the four rows'
  // bytes [at, at + sizeof(V)).
  template <int First, int Count>
  static void interleave(const uint32_t* const (&rows)[4], int at, V (&pairs)[Count]) {
    const V r0 = load(rows[0] + at / 4), r1 = load(rows[1] + at / 4);
    const V r2 = load(rows[2] + at / 4), r3 = load(rows[3] + at / 4);
    if constexpr (First < 2) {
      const V x = low_bytes(r0, r1), y = low_bytes(r2, r3);
      pairs[0] = low_pairs(x, y);
      pairs[1] = high_pairs(x, y);
    }
    if constexpr (First + Count > 2) {
      const V x = high_bytes(r0, r1), y = high_bytes(r2, r3);
      pairs[2 - First] = low_pairs(x, y);
      pairs[3 - First] = high_pairs(x, y);
    }
  }

  // to[panel * stride] = the bytes of four rows, plus those of `offsets`; not All: where `keep` has
  // ones.
  template <bool All = true>
  static void widen(const uint32_t* const (&rows)[4], const uint8_t (&offsets)[kKScalesPanels][64],
                    uint8_t* to, int64_t stride, uint32_t keep = ~0u) {
    const Bytes nibble = Bytes{} + uint8_t{15};
    const V kept = broadcast(static_cast<int32_t>(keep));
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      const int at = c * static_cast<int>(sizeof(V));
      V pairs[4];
      interleave<0>(rows, at, pairs);
#pragma GCC unroll 8
      for (int i = 0; i < kKScalesPanels; ++i) {
        const V own = i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2];
        const Bytes made = (__builtin_bit_cast(Bytes, own) & nibble) +
                           __builtin_bit_cast(Bytes, load(offsets[i] + at));
        const V bytes = __builtin_bit_cast(V, made);
        store(to + i * stride + at, All ? bytes : bytes & kept);
      }
    }
  }

#if !defined(SCALED_MM_HAS_DPBUSD) && !defined(SCALED_MM_HAS_DPBUSD_OF_NIBBLES)
  static constexpr int kFewRows = 0;
#else
  // Their sums are registers: of all panels up to kWholeRows, else of half of them at a time.
  static constexpr int kFewRows = sizeof(V) == 64 ? 6 : 2, kWholeRows = kFewRows / 2;

  // sums[r * kKScalesCols] = row r of A times (q - zero) of `depth` rows, a multiple of 4, that lie
  // `stride` words apart. a_sums: of each row's values.
  //
  // With dpbusd no nibble is moved: bytes u + 16 v times A, less 16 v times A, are the sums of u.
  // The larger are below 2^8 2^7 depth, so they fit.
  template <int R, int First, int Count>
  static void multiply(const char* const* a, const int32_t* a_sums, const uint32_t* words,
                       int64_t stride, int64_t depth, const V (*zeros)[kVectors], int32_t* sums) {
#if defined(SCALED_MM_HAS_DPBUSD)
    const V upper = broadcast(static_cast<int32_t>(0xf0f0f0f0u));
#else
    const V lower = broadcast(0x0f0f0f0f);
#endif
    for (int c = 0; c < kVectors; ++c) {
      const int at = c * static_cast<int>(sizeof(V));
      V first[R][Count] = {}, second[R][Count] = {};
      for (int64_t k = 0; k < depth; k += 4) {
        const uint32_t* const from = words + k * stride;
        const uint32_t* const rows[4] = {from, from + stride, from + 2 * stride, from + 3 * stride};
        if (c == 0 && First == 0) {
          for (const uint32_t* row : rows) __builtin_prefetch(row + kWordsAhead);
        }
        V pairs[Count];
        interleave<First>(rows, at, pairs);
        V x[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, a[r] + k, sizeof four);
          x[r] = broadcast(four);
        }
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) {
#if defined(SCALED_MM_HAS_DPBUSD)
          const V u = pairs[i], v = pairs[i] & upper;
#else
          const V u = pairs[i] & lower, v = (pairs[i] >> 4) & lower;
#endif
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            first[r][i] = dpbusd(first[r][i], u, x[r]);
            second[r][i] = dpbusd(second[r][i], v, x[r]);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Ints of_row = __builtin_bit_cast(Ints, broadcast(a_sums[r]));
#pragma GCC unroll 8
        for (int i = 0; i < Count; ++i) {
          const int panel = 2 * (First + i);
          Ints made[2] = {__builtin_bit_cast(Ints, first[r][i]),
                          __builtin_bit_cast(Ints, second[r][i])};
#if defined(SCALED_MM_HAS_DPBUSD)
          made[0] -= made[1];
          made[1] >>= 4;
#endif
          for (int odd = 0; odd < 2; ++odd) {
            const Ints zero = __builtin_bit_cast(Ints, zeros[panel + odd][c]);
            store(sums + r * kKScalesCols + (panel + odd) * kPanel + at / 4,
                  __builtin_bit_cast(V, made[odd] - zero * of_row));
          }
        }
      }
    }
  }
#endif

  static void to_panels(const float* columns, float* panels) {
    for (int word = 0; word < 16; ++word) {
      Four a, b;
      std::memcpy(&a, columns + 8 * word, sizeof a);
      std::memcpy(&b, columns + 8 * word + 4, sizeof b);
      const Four low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Four high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      float* const to = panels + word % 4 * 2 * kPanel + word / 4 * 4;
      std::memcpy(to, &low, sizeof low);
      std::memcpy(to + kPanel, &high, sizeof high);
    }
  }
  static void to_columns(const float* panels, float* columns) {
    for (int word = 0; word < 16; ++word) {
      const float* const from = panels + word % 4 * 2 * kPanel + word / 4 * 4;
      Four low, high;
      std::memcpy(&low, from, sizeof low);
      std::memcpy(&high, from + kPanel, sizeof high);
      const Four a = __builtin_shufflevector(low, high, 0, 2, 4, 6);
      const Four b = __builtin_shufflevector(low, high, 1, 3, 5, 7);
      std::memcpy(columns + 8 * word, &a, sizeof a);
      std::memcpy(columns + 8 * word + 4, &b, sizeof b);
    }
  }
};

// Of a task: 128 columns of a weight of 4 bits.
class Int4Columns {
 public:
  // Whether so many rows of A are multiplied straight from the words, so that no row is loaded.
  static bool takes(const KScalesProblem& p, int64_t rows) {
    const bool as_it_lies = Micro::kValueBytes == 1 || p.product.a.col_stride == 1;
    return rows <= NibblePanels::kFewRows && p.w.block_stride && p.w.k % 4 == 0 && as_it_lies;
  }
  // Of so many rows that `takes`: whether one pass through the words will do, so that a piece of
  // them need not stay in L1.
  static bool reads_once(int64_t rows) {
    return NibblePanels::kVectors == 1 && 2 * rows <= NibblePanels::kFewRows;
  }
  // most_rows: of a span that is loaded.
  Int4Columns(const KScalesProblem& p, int64_t most_rows)
      : w_(p.w),
        group_(p.group),
        stride_((groups(std::min(most_rows, p.w.k)) + 1) * kGroupBytes),
        bytes_(static_cast<size_t>(kKScalesPanels * stride_)),
        scales_(static_cast<size_t>((most_rows / 32 + 1) * kKScalesCols)) {
    fill_zeros(8);
  }

  void open(int64_t col) {
    held_ = -1;
    col_ = col;
    columns_ = static_cast<int>(std::min<int64_t>(kKScalesCols, w_.padded_n() - col));
  }

  // The rows of a span, which begins and ends with pieces.
  void load_rows(int64_t first, int64_t end) {
    first_ = first;
    for (int64_t k = first; k < end;) {
      const int64_t group = k / group_, stop = std::min(end, (group + 1) * group_);
      load_scales(group);
      if (w_.zero_point == ZeroPoint::integer) load_zeros(group);
      for (; k < stop; k += kGroup) widen(k, static_cast<int>(std::min<int64_t>(4, stop - k)));
      k = stop;
    }
  }

  static constexpr int kFewRows = NibblePanels::kFewRows;
  static constexpr bool kInBlocks = false;
  static constexpr int kScaleRows = 0;
#if defined(SCALED_MM_HAS_DPBUSD) || defined(SCALED_MM_HAS_DPBUSD_OF_NIBBLES)
  // sums[r] of a piece, which is a span, of rows that are not loaded. a_sums: of each row's values.
  void multiply(const char* const* a, const int32_t* a_sums, int rows, int64_t k, int64_t end,
                int32_t* sums) {
    first_ = k;
    if (const int64_t group = k / group_; group != held_) {
      load_scales(group);
      if (w_.zero_point == ZeroPoint::integer) load_zeros(group);
      held_ = group;
    }
    const uint32_t* const words = words_at(w_, k, col_);
    with_constant<kFewRows>(rows, [&](auto r) {
      const auto by = [&](auto first, auto pairs) {
        NibblePanels::multiply<r, first, pairs>(a, a_sums, words, w_.q.row_stride, end - k, zeros_,
                                                sums);
      };
      if constexpr (r <= NibblePanels::kWholeRows) {
        by(std::integral_constant<int, 0>{}, std::integral_constant<int, 4>{});
      } else {
        by(std::integral_constant<int, 0>{}, std::integral_constant<int, 2>{});
        by(std::integral_constant<int, 2>{}, std::integral_constant<int, 2>{});
      }
    });
  }
#endif

  const uint8_t* at(int64_t k) const { return bytes_.data() + (k - first_) / kGroup * kGroupBytes; }
  int64_t stride() const { return stride_; }
  int panels() const { return kKScalesPanels; }
  const float* scales(int64_t group, int64_t, int, int panel) const {
    return scales_.data() + (group - first_ / group_) * kKScalesCols + panel * kPanel;
  }
  static void to_columns(const float* sums, float* columns) {
    NibblePanels::to_columns(sums, columns);
  }

 private:
  // 16 words of a row, those behind its last as zeros.
  const uint32_t* words(const Matrix<const uint32_t>& rows, int64_t row, uint32_t (&padded)[16]) {
    const uint32_t* from = rows.data + row * rows.row_stride + col_ / 8;
    if (columns_ == kKScalesCols) return from;
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, from, columns_ / 2);
    return padded;
  }

  void widen(int64_t k, int count) {
    alignas(64) uint32_t padded[4][16];
    const uint32_t* rows[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t row = k + std::min(i, count - 1);
      rows[i] = w_.block_stride ? words_at(w_, row, col_) : words(w_.q, row, padded[i]);
    }
    for (const uint32_t* row : rows) __builtin_prefetch(row + kWordsAhead);
    uint8_t* const to = bytes_.data() + (k - first_) / kGroup * kGroupBytes;
    if (count == 4) return NibblePanels::widen(rows, offsets_, to, stride_);
    NibblePanels::widen<false>(rows, offsets_, to, stride_, (1u << 8 * count) - 1);
  }

  void load_zeros(int64_t group) {
    static constexpr uint8_t kNone[kKScalesPanels][64] = {};
    alignas(64) uint32_t padded[16];
    const uint32_t* zeros = words(w_.zeros, group, padded);
    NibblePanels::widen({zeros, zeros, zeros, zeros}, kNone, offsets_[0], 64);
    auto* ints = reinterpret_cast<int32_t*>(zeros_);
    for (auto& panel : offsets_) {
      for (int lane = 0; lane < kPanel; ++lane) *ints++ = panel[4 * lane];
      for (uint8_t& offset : panel) offset = static_cast<uint8_t>(128 - offset);
    }
  }
  void fill_zeros(int zero) {
    std::memset(offsets_, 128 - zero, sizeof offsets_);
    std::fill_n(reinterpret_cast<int32_t*>(zeros_), kKScalesCols, zero);
  }

  void load_scales(int64_t group) {
    alignas(64) float columns[kKScalesCols] = {};
    const uint16_t* from = w_.scales.data + group * w_.scales.row_stride + col_;
    for (int i = 0; i < kKScalesCols; i += 32) {  // the next group's
      __builtin_prefetch(from + w_.scales.row_stride + i, 0, 3);
    }
    with_dtype16(w_.dtype, [&](auto dtype) { Format<dtype>::widen(from, columns, columns_); });
    NibblePanels::to_panels(columns, scales_.data() + (group - first_ / group_) * kKScalesCols);
  }

  const LowbitWeight& w_;
  const int64_t group_, stride_;
  int64_t first_ = 0, col_ = 0;
  int columns_ = 0;
  Buffer<uint8_t> bytes_;
  Buffer<float> scales_;
  int64_t held_ = -1;                                // the group of `multiply`
  alignas(64) uint8_t offsets_[kKScalesPanels][64];  // 128 - zero point
  V zeros_[kKScalesPanels][NibblePanels::kVectors];  // zero points
};
