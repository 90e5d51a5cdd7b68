// Products whose scales change along K (problems/k_scales.h).
//
// A task is kKScalesCols columns of a block of rows. K is walked in spans, whose weights lie in
// cache in the bytes of packed.h: in L1 a piece of a group where one tile has all rows, else in L2
// about a slice. A span is multiplied tile by tile, a tile piece by piece: exact sums, which a
// group's end brings into the float sums of its slice, and a slice's end into the row's.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

inline constexpr int64_t kPieceRows = 256;  // at most, of a piece of few rows
inline constexpr int kKScalesPanels = kKScalesCols / kPanel;

// --- weights of 4 bits ---------------------------------------------------------------------------

// Words of AWQ (lowbit_words.h), four rows of 16 words at a time. Bytes of the rows are interleaved
// as they lie: 32 bits then hold four k of a column in their low nibbles and of another in their
// high ones. With panel = 2 i + high and lane = 4 l + j, word 4 l + i:
//   column = 32 l + 8 i + {0, 4, 1, 5}[j] + 2 high
// Scales come into this order, and sums out of it.
inline constexpr int kWordsAhead = 16 * 16;  // of words that lie in blocks: as many rows

struct NibblePanels {
  static constexpr int kVectors = kGroupBytes / static_cast<int>(sizeof(V));
  using Bytes = uint8_t __attribute__((vector_size(sizeof(V))));
  using Four = float __attribute__((vector_size(16)));

  // vector[2 i + high] of the four rows' bytes [at, at + sizeof(V)): nibbles, one to a byte.
  static void take_apart(const uint32_t* const (&rows)[4], int at, Bytes (&panels)[8]) {
    const Bytes nibble = Bytes{} + uint8_t{15};
    const V r0 = load(rows[0] + at / 4), r1 = load(rows[1] + at / 4);
    const V r2 = load(rows[2] + at / 4), r3 = load(rows[3] + at / 4);
    const V low01 = low_bytes(r0, r1), low23 = low_bytes(r2, r3);
    const V high01 = high_bytes(r0, r1), high23 = high_bytes(r2, r3);
    const V four[4] = {low_pairs(low01, low23), high_pairs(low01, low23), low_pairs(high01, high23),
                       high_pairs(high01, high23)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      panels[2 * i] = __builtin_bit_cast(Bytes, four[i]) & nibble;
      panels[2 * i + 1] = __builtin_bit_cast(Bytes, four[i] >> 4) & nibble;
    }
  }

  // to[panel * stride] = the bytes of four rows, plus those of `offsets`, where `keep` has ones.
  static void widen(const uint32_t* const (&rows)[4], const uint8_t (&offsets)[kKScalesPanels][64],
                    uint32_t keep, uint8_t* to, int64_t stride) {
    const V kept = broadcast(static_cast<int32_t>(keep));
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      const int at = c * static_cast<int>(sizeof(V));
      Bytes panels[kKScalesPanels];
      take_apart(rows, at, panels);
#pragma GCC unroll 8
      for (int i = 0; i < kKScalesPanels; ++i) {
        const Bytes made = panels[i] + __builtin_bit_cast(Bytes, load(offsets[i] + at));
        store(to + i * stride + at, __builtin_bit_cast(V, made) & kept);
      }
    }
  }

#if !defined(SCALED_MM_HAS_DPBUSD)
  static constexpr int kFewRows = 0;
#else
  static constexpr int kFewRows = sizeof(V) == 64 ? 3 : 1;  // whose sums of 8 panels are registers

  // sums[r * kKScalesCols] = init[r] + row r of A times q of `depth` rows, a multiple of 4, that
  // lie `stride` words apart; with Offsets plus those.
  template <int R, bool Offsets>
  static void multiply(const char* const* a, const int32_t* init, const uint32_t* words,
                       int64_t stride, int64_t depth, const uint8_t (&offsets)[kKScalesPanels][64],
                       int32_t* sums) {
    for (int c = 0; c < kVectors; ++c) {
      const int at = c * static_cast<int>(sizeof(V));
      V sum[R][kKScalesPanels];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int i = 0; i < kKScalesPanels; ++i) sum[r][i] = broadcast(init[r]);
      }
      const auto four_rows = [&](int64_t k) __attribute__((always_inline)) {
        const uint32_t* const from = words + k * stride;
        const uint32_t* const rows[4] = {from, from + stride, from + 2 * stride, from + 3 * stride};
        if (c == 0) {
          for (const uint32_t* row : rows) __builtin_prefetch(row + kWordsAhead);
        }
        Bytes panels[kKScalesPanels];
        take_apart(rows, at, panels);
        V x[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, a[r] + k, sizeof four);
          x[r] = broadcast(four);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kKScalesPanels; ++i) {
          if constexpr (Offsets) panels[i] += __builtin_bit_cast(Bytes, load(offsets[i] + at));
          const V q = __builtin_bit_cast(V, panels[i]);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r][i] = dpbusd(sum[r][i], q, x[r]);
        }
      };
      // Several pages of memory at once: what fetches ahead stops at the end of each.
      const int64_t pages = depth % 256 == 0 ? 4 : depth % 128 == 0 ? 2 : 1;
      for (int64_t k = 0; k < depth / pages; k += 4) {
        for (int64_t page = 0; page < pages; ++page) four_rows(k + page * (depth / pages));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int i = 0; i < kKScalesPanels; ++i) {
          store(sums + r * kKScalesCols + i * kPanel + at / 4, sum[r][i]);
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
  Int4Columns(const KScalesProblem& p, int64_t most_rows)
      : w_(p.w),
        group_(p.group),
        stride_((groups(std::min(most_rows, p.w.k)) + 1) * kGroupBytes),
        bytes_(static_cast<size_t>(kKScalesPanels * stride_)),
        scales_(static_cast<size_t>((most_rows / 32 + 1) * kKScalesCols)) {
    std::memset(offsets_, 128 - 8, sizeof offsets_);
  }

  void open(int64_t col) {
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
  // Whether pieces of so many rows of A are multiplied straight from the words.
  bool takes(int64_t rows) const { return rows <= kFewRows && w_.block_stride && w_.k % 4 == 0; }
#if defined(SCALED_MM_HAS_DPBUSD)
  // sums[r] of a piece, which is a span, whose rows are not loaded. init: -128 times each row's
  // sum.
  void multiply(const char* const* a, int32_t* init, int rows, int64_t k, int64_t end,
                int32_t* sums) {
    first_ = k;
    const int64_t group = k / group_;
    const bool has_zeros = w_.zero_point == ZeroPoint::integer;
    load_scales(group);
    if (has_zeros) load_zeros(group);
    for (int r = 0; r < rows && !has_zeros; ++r) init[r] /= 16;  // nibbles stand for themselves
    const uint32_t* const words = words_at(w_, k, col_);
    with_constant<NibblePanels::kFewRows>(rows, [&](auto r) {
      const auto by = [&](auto offsets) {
        NibblePanels::multiply<r, offsets>(a, init, words, w_.q.row_stride, end - k, offsets_,
                                           sums);
      };
      has_zeros ? by(std::true_type{}) : by(std::false_type{});
    });
  }
#endif

  const uint8_t* at(int64_t k) const { return bytes_.data() + (k - first_) / kGroup * kGroupBytes; }
  int64_t stride() const { return stride_; }
  int panels() const { return kKScalesPanels; }
  const float* scales(int64_t group, int64_t) const {
    return scales_.data() + (group - first_ / group_) * kKScalesCols;
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
    const uint32_t keep = count == 4 ? ~0u : (1u << 8 * count) - 1;
    uint8_t* const to = bytes_.data() + (k - first_) / kGroup * kGroupBytes;
    NibblePanels::widen(rows, offsets_, keep, to, stride_);
  }

  void load_zeros(int64_t group) {
    static constexpr uint8_t kNone[kKScalesPanels][64] = {};
    alignas(64) uint32_t padded[16];
    const uint32_t* zeros = words(w_.zeros, group, padded);
    NibblePanels::widen({zeros, zeros, zeros, zeros}, kNone, ~0u, offsets_[0], 64);
    for (auto& panel : offsets_) {
      for (uint8_t& offset : panel) offset = static_cast<uint8_t>(128 - offset);
    }
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
  alignas(64) uint8_t offsets_[kKScalesPanels][64];  // 128 - zero point
};

// --- int8 in blocks ------------------------------------------------------------------------------

// Of a task: a column of blocks.
class BlockColumns {
 public:
  BlockColumns(const KScalesProblem& p, int64_t)
      : p_(p),
        stride_(panel_bytes(p.product.size.k)),
        packed_(p.product.b.packed ? 0 : static_cast<size_t>(kKScalesPanels * stride_)) {}

  void open(int64_t col) {
    const Weight& b = p_.product.b;
    panels_ = static_cast<int>(ceil_div(std::min<int64_t>(kKScalesCols, b.n - col), kPanel));
    block_ = col / kKScalesCols;
    from_ = b.packed ? b.packed + col / kPanel * stride_ : packed_.data();
    if (b.packed) return;
    for (int i = 0; i < panels_; ++i) pack_panel(b, col / kPanel + i, packed_.data() + i * stride_);
  }
  void load_rows(int64_t, int64_t) {}
  static constexpr int kFewRows = 0;

  const uint8_t* at(int64_t k) const { return from_ + k / kGroup * kGroupBytes; }
  int64_t stride() const { return stride_; }
  int panels() const { return panels_; }
  const float* scales(int64_t group, int64_t m) {
    const auto element = [](const EpilogueOperand& x, int64_t row, int64_t col) {
      return static_cast<const float*>(x.data)[row * x.row_stride + col * x.col_stride];
    };
    std::fill_n(scales_, kKScalesCols,
                element(p_.row_scales, m, group) * element(p_.scales, group, block_));
    return scales_;
  }
  static void to_columns(const float* sums, float* columns) {
    std::memcpy(columns, sums, kKScalesCols * sizeof(float));
  }

 private:
  const KScalesProblem& p_;
  const int64_t stride_;
  int64_t block_ = 0;
  int panels_ = 0;
  const uint8_t* from_ = nullptr;
  Buffer<uint8_t> packed_;
  alignas(64) float scales_[kKScalesCols];
};

// --- the product ---------------------------------------------------------------------------------

template <>
struct Lower<epilogue::Accumulator<float>> {
  const float* sums;
  explicit Lower(const RowContext& row) : sums(reinterpret_cast<const float*>(row.acc)) {}
  static void load(RowOperands&, const Int8Problem&, int64_t, int) {}
  float operator[](int n) const { return sums[n]; }
};

inline RowEpilogue find_k_scales_epilogue(const Int8Problem::Size& size) {
  using epilogue::Apply;
  using Sum = Apply<epilogue::Fma, epilogue::ScaleA, epilogue::Accumulator<float>, epilogue::Bias>;
  using WithResidual = Apply<epilogue::Add, Sum, epilogue::Residual>;
  if (epilogue::entry(size.epilogue).has_residual) {
    return {Lower<WithResidual>::load, evaluate<WithResidual>};
  }
  return {Lower<Sum>::load, evaluate<Sum>};
}

// Where a piece [begin, end) of K stands among groups and slices.
struct Place {
  int64_t group;
  bool begins_group, ends_group, begins_slice, ends_slice;

  Place(const Pieces& pieces, int64_t begin, int64_t end) : group(begin / pieces.group) {
    const auto slice = [&](int64_t g) { return g * pieces.group / kSlice; };
    begins_group = begin % pieces.group == 0;
    ends_group = end % pieces.group == 0 || end == pieces.k;
    begins_slice = group == 0 || slice(group) != slice(group - 1);
    ends_slice = end == pieces.k || slice(group) != slice(group + 1);
  }
};

// The sums of a row's columns: of a group, of a slice, of all.
struct RowSums {
  int32_t* group;
  float *slice, *all;

  void add(const Place& place, const int32_t* piece, const float* scales) const {
    alignas(64) int32_t t[kColBlock];
    if (!place.begins_group) {
      for (int n = 0; n < kColBlock; ++n) {
        t[n] = static_cast<int32_t>(uint32_t(piece[n]) + uint32_t(group[n]));
      }
      piece = t;
    }
    if (!place.ends_group) {
      std::memcpy(group, piece, sizeof t);
    } else if (place.begins_slice) {
      for (int n = 0; n < kColBlock; ++n) {
        slice[n] = fused_multiply_add(scales[n], static_cast<float>(piece[n]), -0.0f);
      }
    } else {
      for (int n = 0; n < kColBlock; ++n) {
        slice[n] = fused_multiply_add(scales[n], static_cast<float>(piece[n]), slice[n]);
      }
    }
    if (place.ends_group && place.ends_slice) {
      for (int n = 0; n < kColBlock; ++n) all[n] += slice[n];
    }
  }
};

template <class Columns>
class KScalesGemm {
 public:
  KScalesGemm(const KScalesProblem& p, const Tiling& tiling)
      : p_(p.product),
        azp_(p_.operands[static_cast<int>(Operand::azp)]),
        pieces_{p_.size.k, p.group, tiling.block_rows <= Micro::kRows ? kPieceRows : kSlice},
        finish_(find_k_scales_epilogue(p_.size)),
        rows_(p_, tiling, pieces_),
        columns_(p, pieces_.depth),
        slices_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        sums_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        groups_(p.group > pieces_.depth ? static_cast<size_t>(tiling.block_rows * kKScalesCols)
                                        : 0),
        ones_(azp_.data ? static_cast<size_t>(Micro::row_bytes(pieces_.depth)) : 0) {
    if (!azp_.data) return;
    int8_t ones[kSlice];
    std::fill_n(ones, kSlice, int8_t{1});
    Micro::load_row(ones, 1, pieces_.depth, ones_.data());
  }

  void run(int64_t row_block, int64_t col) {
    rows_.load(row_block);
    columns_.open(col);
    const float start = p_.size.k ? -0.0f : 0.0f;
    std::fill_n(sums_.data(), rows_.count() * kKScalesCols, start);
    const bool one_tile = rows_.count() <= Micro::kRows;
    for (int64_t first = 0, piece = 0; first < p_.size.k;) {
      int64_t end = pieces_.end(first), next = piece + 1;
      while (!one_tile && end < p_.size.k && pieces_.end(end) - first <= kSlice) {
        end = pieces_.end(end);
        ++next;
      }
      if (!(one_tile && multiply_few(first, end, piece))) {
        columns_.load_rows(first, end);
        if (azp_.data) sum_columns(first, end);
        for_each_tile(rows_.count(), Micro::kRows,
                      [&](int64_t row, int height) { multiply(row, height, first, end, piece); });
      }
      first = end;
      piece = next;
    }
    write(col);
  }

 private:
  // The tile of rows, over the span [first, end), whose first piece has that number.
  void multiply(int64_t row, int height, int64_t first, int64_t end, int64_t piece) {
    const int32_t* of_columns = column_sums_;
    for (int64_t k = first, stop; k < end; k = stop, ++piece, of_columns += kKScalesCols) {
      stop = pieces_.end(k);
      const Place place(pieces_, k, stop);
      const ARows a = rows_.from(row, k, piece);
      for (int half = 0; half * kColBlock < columns_.panels() * kPanel; ++half) {
        multiply_half(a, height, k, stop, half);
        for (int r = 0; r < height; ++r) {
          if (azp_.data) take_azp(row + r, of_columns + half * kColBlock, acc_[r]);
          const float* scales = columns_.scales(place.group, rows_.first() + row + r);
          add(row + r, half * kColBlock, place, acc_[r], scales + half * kColBlock);
        }
      }
    }
  }

  // A piece, of rows so few that their weights need not be bytes; else false.
  bool multiply_few(int64_t k, int64_t end, int64_t piece) {
    if constexpr (Columns::kFewRows == 0) {
      return false;
    } else {
      constexpr int kMost = Columns::kFewRows;
      if (!columns_.takes(rows_.count() + (azp_.data ? 1 : 0))) return false;
      alignas(64) int32_t sums[kMost + 1][kKScalesCols];
      const char* rows[kMost];
      int32_t init[kMost];
      const int count = static_cast<int>(rows_.count());
      const ARows a = rows_.from(0, k, piece);
      for (int r = 0; r < count; ++r) rows[r] = a.row<char>(r), init[r] = a.init[r];
      if (azp_.data)
        rows[count] = ones_.data(), init[count] = static_cast<int32_t>(-128 * (end - k));
      columns_.multiply(rows, init, count + (azp_.data ? 1 : 0), k, end, sums[0]);
      const Place place(pieces_, k, end);
      for (int r = 0; r < count; ++r) {
        const float* scales = columns_.scales(place.group, rows_.first() + r);
        for (int col = 0; col < kKScalesCols; col += kColBlock) {
          if (azp_.data) take_azp(r, sums[count] + col, sums[r] + col);
          add(r, col, place, sums[r] + col, scales + col);
        }
      }
      return true;
    }
  }

  void add(int64_t row, int col, const Place& place, const int32_t* piece, const float* scales) {
    const int64_t at = row * kKScalesCols + col;
    RowSums{groups_.data() + at, slices_.data() + at, sums_.data() + at}.add(place, piece, scales);
  }

  void multiply_half(const ARows& a, int height, int64_t begin, int64_t end, int half) {
    const int first = half * kColBlock / kPanel;
    const int count = std::min(kColBlock, (columns_.panels() - first) * kPanel);
    const uint8_t* b = columns_.at(begin) + first * columns_.stride();
    multiply_packed(micro_, height, a, b, columns_.stride(), end - begin, count, acc_[0]);
  }

  // Column sums of each piece: those of a row of ones.
  void sum_columns(int64_t first, int64_t end) {
    int32_t* to = column_sums_;
    for (int64_t k = first, stop; k < end; k = stop, to += kKScalesCols) {
      stop = pieces_.end(k);
      const int32_t init = static_cast<int32_t>(-128 * (stop - k));
      for (int half = 0; half < 2; ++half) {
        multiply_half({ones_.data(), 0, &init}, 1, k, stop, half);
        std::memcpy(to + half * kColBlock, acc_[0], sizeof acc_[0]);
      }
    }
  }

  void take_azp(int64_t row, const int32_t* of_columns, int32_t* acc) const {
    const int64_t m = rows_.first() + row;
    const auto azp =
        static_cast<uint32_t>(static_cast<const int32_t*>(azp_.data)[m * azp_.row_stride]);
    for (int n = 0; n < kColBlock; ++n) {
      acc[n] = static_cast<int32_t>(uint32_t(acc[n]) - azp * uint32_t(of_columns[n]));
    }
  }

  void write(int64_t first) {
    const int64_t row_bytes = p_.size.out_columns() * p_.size.out_bytes();
    const int columns = epilogue::entry(p_.size.epilogue).columns();  // of B, for one of D
    for (int64_t r = 0; r < rows_.count(); ++r) {
      Columns::to_columns(sums_.data() + r * kKScalesCols, slices_.data() + r * kKScalesCols);
    }
    for (int64_t col = first; col < std::min(first + kKScalesCols, p_.size.n); col += kColBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kColBlock, p_.size.n - col));
      finish_.load(operands_, p_, col, count);
      for (int64_t r = 0; r < rows_.count(); ++r) {
        const int64_t m = rows_.first() + r;
        const float* sums = slices_.data() + r * kKScalesCols + (col - first);
        char* out = static_cast<char*>(p_.d) + m * row_bytes + col / columns * p_.size.out_bytes();
        const auto* acc = reinterpret_cast<const int32_t*>(sums);
        write_row(finish_, {acc, operands_, p_, m, col, count}, out);
      }
    }
  }

  const Int8Problem& p_;
  const EpilogueOperand azp_;
  const Pieces pieces_;
  const RowEpilogue finish_;
  RowBlock rows_;
  Columns columns_;
  Buffer<float> slices_, sums_;
  Buffer<int32_t> groups_;
  Buffer<char> ones_;
  Micro micro_;
  RowOperands operands_;
  alignas(64) int32_t acc_[std::max(Micro::kRows, Micro::kDotRows)][kColBlock] = {};
  alignas(64) int32_t column_sums_[kSlice / 32 * kKScalesCols];
};

template <class Columns>
inline void k_scales_gemm_of(const KScalesProblem& p, const Tiling& tiling, int64_t begin,
                             int64_t end) {
  KScalesGemm<Columns> gemm(p, tiling);
  for (int64_t task = begin; task < end; ++task) {
    gemm.run(task / tiling.col_blocks, task % tiling.col_blocks * kKScalesCols);
  }
}

inline void k_scales_gemm(const KScalesProblem& p, const Tiling& tiling, int64_t begin,
                          int64_t end) {
  const FloatEnvironment environment;
  if (p.in_blocks()) return k_scales_gemm_of<BlockColumns>(p, tiling, begin, end);
  k_scales_gemm_of<Int4Columns>(p, tiling, begin, end);
}
