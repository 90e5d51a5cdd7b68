// Products whose scales change along K (problems/k_scales.h).
//
// A task is kKScalesCols columns of a block of rows. K is walked in spans, whose weights lie in
// cache in the bytes of packed.h: in L1 a piece of a group where one tile has all rows, else in L2
// kSpanRows. Of a span those pieces that stay in L1, of as many panels as a tile has, meet all
// rows before the next. A tile has the exact sums of a piece in registers; from there a group's end
// brings them into the float sums of its slice, and a slice's end into the row's.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

inline constexpr int64_t kPieceRows = 256;         // at most, of a piece of few rows
inline constexpr int64_t kStripBytes = 16 * 1024;  // of a tile's panels: half of L1

#include "cpu/k_scales_int4.h"
#include "cpu/k_scales_promote.h"

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
  static constexpr bool kInBlocks = true;
  static constexpr int kScaleRows = Micro::kPanels * kPanel;
  static bool takes(const KScalesProblem&, int64_t) { return false; }
  static bool reads_once(int64_t) { return false; }

  const uint8_t* at(int64_t k) const { return from_ + k / kGroup * kGroupBytes; }
  int64_t stride() const { return stride_; }
  int panels() const { return panels_; }
  // Of a tile: so many rows from `m` on, each kScaleRows from the last.
  const float* scales(int64_t group, int64_t m, int rows, int) {
    const auto element = [](const EpilogueOperand& x, int64_t row, int64_t col) {
      return static_cast<const float*>(x.data)[row * x.row_stride + col * x.col_stride];
    };
    const float of_block = element(p_.scales, group, block_);
    for (int r = 0; r < rows; ++r) {
      std::fill_n(scales_[r], kScaleRows, element(p_.row_scales, m + r, group) * of_block);
    }
    return scales_[0];
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
  alignas(64) float scales_[Micro::kRows][kScaleRows];
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

template <class Columns>
class KScalesGemm {
 public:
  KScalesGemm(const KScalesProblem& p, const Tiling& tiling)
      : p_(p.product),
        azp_(p_.operands[static_cast<int>(Operand::azp)]),
        few_(Columns::takes(p, rows_at_once(tiling.block_rows))),
        one_tile_(few_ || (!Columns::kInBlocks && tiling.block_rows <= Micro::kRows)),
        pieces_{p_.size.k, p.group,
                one_tile_ && !(few_ && Columns::reads_once(rows_at_once(tiling.block_rows)))
                    ? kPieceRows
                    : kSpanRows},
        finish_(find_k_scales_epilogue(p_.size)),
        rows_(p_, tiling, pieces_),
        columns_(p, few_ ? 0 : pieces_.depth),
        slices_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        sums_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        groups_(p.group > pieces_.depth ? static_cast<size_t>(tiling.block_rows * kKScalesCols)
                                        : 0),
        ones_(azp_.data ? static_cast<size_t>(Micro::row_bytes(pieces_.depth)) : 0) {
    if (!azp_.data) return;
    int8_t ones[kSpanRows];
    std::fill_n(ones, kSpanRows, int8_t{1});
    if (few_) {
      std::memcpy(ones_.data(), ones, pieces_.depth);
    } else {
      Micro::load_row(ones, 1, pieces_.depth, ones_.data());
    }
  }

  void run(int64_t row_block, int64_t col) {
    rows_.load(row_block);
    columns_.open(col);
    const float start = p_.size.k ? -0.0f : 0.0f;
    std::fill_n(sums_.data(), rows_.count() * kKScalesCols, start);
    for (int64_t first = 0, piece = 0; first < p_.size.k;) {
      int count = 0;
      const int64_t begin = first;
      do {
        places_[count] = {pieces_, first, piece++};
        first = places_[count++].end;
      } while (!one_tile_ && first < p_.size.k && pieces_.end(first) - begin <= kSpanRows);
      if (few_) {
        multiply_few(places_[0]);
      } else {
        columns_.load_rows(begin, first);
        if (azp_.data) sum_columns(count);
        multiply(count);
      }
    }
    write(col);
  }

 private:
  // With the one of ones.
  int rows_at_once(int64_t rows) const { return static_cast<int>(rows) + (azp_.data ? 1 : 0); }

  // The span of `count` pieces: those that lie in L1 together, by all rows.
  void multiply(int count) {
    constexpr int64_t kDepth = kStripBytes / (Micro::kPanels * kPanel);
    for (const Place *place = places_, *stop; place < places_ + count; place = stop) {
      stop = place + 1;
      while (stop < places_ + count && stop->end - place->begin <= kDepth) ++stop;
      for (int panel = 0; panel < columns_.panels(); panel += Micro::kPanels) {
        for_each_tile(rows_.count(), Micro::kRows, [&](int64_t row, int height) {
          for (const Place* of = place; of < stop; ++of) multiply_tile(*of, row, height, panel);
        });
      }
    }
  }

  void multiply_tile(const Place& place, int64_t row, int height, int panel) {
    const int panels = std::min(Micro::kPanels, columns_.panels() - panel);
    const ARows a = rows_.from(row, place.begin, place.number);
    const uint8_t* b = columns_.at(place.begin) + panel * columns_.stride();
    const int64_t depth = place.end - place.begin;
    const int32_t* sums = column_sums_ + (&place - places_) * kKScalesCols;
    const Promotion end = promotion(place, row, height, panel, azp_.data ? sums : nullptr);
    micro_.tile_to(height, panels, a, b, columns_.stride(), depth, end);
  }

  Promotion promotion(const Place& place, int64_t row, int height, int panel,
                      const int32_t* of_columns) {
    const int64_t m = rows_.first() + row, at = row * kKScalesCols + panel * kPanel;
    return {place,
            columns_.scales(place.group, m, height, panel),
            Columns::kScaleRows,
            of_columns ? of_columns + panel * kPanel : nullptr,
            static_cast<const int32_t*>(azp_.data) + m * azp_.row_stride,
            azp_.row_stride,
            groups_.data() + at,
            slices_.data() + at,
            sums_.data() + at};
  }

  // A piece, of rows so few that their weights need not be bytes.
  void multiply_few(const Place& place) {
    if constexpr (Columns::kFewRows > 0) {
      constexpr int kMost = Columns::kFewRows;
      alignas(64) int32_t sums[kMost][kKScalesCols];
      const char* rows[kMost];
      int32_t row_sums[kMost];
      const int count = static_cast<int>(rows_.count());
      const ARows a = rows_.from(0, place.begin, place.number);
      for (int r = 0; r < count; ++r) {
        const int8_t* own = p_.a.data + (rows_.first() + r) * p_.a.row_stride + place.begin;
        rows[r] = Micro::kValueBytes == 1 ? a.row<char>(r) : reinterpret_cast<const char*>(own);
        row_sums[r] = a.init[r] / -128;
      }
      if (azp_.data) {
        rows[count] = ones_.data();
        row_sums[count] = static_cast<int32_t>(place.end - place.begin);
      }
      columns_.multiply(rows, row_sums, rows_at_once(count), place.begin, place.end, sums[0]);
      const int32_t* of_columns = azp_.data ? sums[count] : nullptr;
      from_memory<4>(promotion(place, 0, count, 0, of_columns), sums[0], kKScalesCols, count,
                     kKScalesPanels);
    }
  }

  // Column sums of each piece: those of a row of ones.
  void sum_columns(int count) {
    for (int i = 0; i < count; ++i) {
      const Place& place = places_[i];
      const int64_t depth = place.end - place.begin;
      const int32_t init = static_cast<int32_t>(-128 * depth);
      for (int panel = 0; panel < columns_.panels(); panel += Micro::kPanels) {
        const int panels = std::min(Micro::kPanels, columns_.panels() - panel);
        const uint8_t* b = columns_.at(place.begin) + panel * columns_.stride();
        micro_.tile(1, panels, {ones_.data(), 0, &init}, b, columns_.stride(), depth,
                    column_sums_ + i * kKScalesCols + panel * kPanel, nullptr);
      }
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
  const bool few_, one_tile_;
  const Pieces pieces_;
  const RowEpilogue finish_;
  RowBlock rows_;
  Columns columns_;
  Buffer<float> slices_, sums_;
  Buffer<int32_t> groups_;
  Buffer<char> ones_;
  Micro micro_;
  RowOperands operands_;
  alignas(64) int32_t column_sums_[kSpanRows / 32 * kKScalesCols];
  Place places_[kSpanRows / 32];  // of the pieces of a span
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
