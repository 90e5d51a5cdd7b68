// Products whose scales change along K (problems/k_scales.h).
//
// A task is kKScalesCols columns of a block of rows. K is walked in spans, whose weights lie in
// cache in the bytes of packed.h: in L1 a piece of a group where one tile has all rows, else in L2
// about a slice. A span is multiplied tile by tile, a tile piece by piece: exact sums, which a
// group's end brings into the float sums of its slice, and a slice's end into the row's.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

inline constexpr int64_t kPieceRows = 256;  // at most, of a piece of few rows

#include "cpu/k_scales_int4.h"

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
  static bool takes(const KScalesProblem&, int64_t) { return false; }
  static bool reads_once(int64_t) { return false; }

  const uint8_t* at(int64_t k) const { return from_ + k / kGroup * kGroupBytes; }
  int64_t stride() const { return stride_; }
  int panels() const { return panels_; }
  float scale(int64_t group, int64_t m) const {
    const auto element = [](const EpilogueOperand& x, int64_t row, int64_t col) {
      return static_cast<const float*>(x.data)[row * x.row_stride + col * x.col_stride];
    };
    return element(p_.row_scales, m, group) * element(p_.scales, group, block_);
  }
  const float* scales(int64_t group, int64_t m) {
    std::fill_n(scales_, kKScalesCols, scale(group, m));
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

  Place() = default;
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

#include "cpu/k_scales_promote.h"

template <class Columns>
class KScalesGemm {
 public:
  KScalesGemm(const KScalesProblem& p, const Tiling& tiling)
      : p_(p.product),
        azp_(p_.operands[static_cast<int>(Operand::azp)]),
        rows_at_once_(tiling.block_rows + (azp_.data ? 1 : 0)),
        few_(Columns::takes(p, rows_at_once_)),
        one_tile_(few_ || (!Columns::kInBlocks && tiling.block_rows <= Micro::kRows)),
        pieces_{p_.size.k, p.group,
                one_tile_ && !(few_ && Columns::reads_once(rows_at_once_)) ? kPieceRows : kSlice},
        promotes_(Micro::kPromotes && p.group <= pieces_.depth && reads_enough(tiling.block_rows)),
        finish_(find_k_scales_epilogue(p_.size)),
        rows_(p_, tiling, pieces_),
        columns_(p, few_ ? 0 : pieces_.depth),
        slices_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        sums_(static_cast<size_t>(tiling.block_rows * kKScalesCols)),
        groups_(p.group > pieces_.depth ? static_cast<size_t>(tiling.block_rows * kKScalesCols)
                                        : 0),
        ones_(azp_.data ? static_cast<size_t>(Micro::row_bytes(pieces_.depth)) : 0) {
    if (!azp_.data) return;
    int8_t ones[kSlice];
    std::fill_n(ones, kSlice, int8_t{1});
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
      int64_t end = pieces_.end(first), next = piece + 1;
      while (!one_tile_ && end < p_.size.k && pieces_.end(end) - first <= kSlice) {
        end = pieces_.end(end);
        ++next;
      }
      if (few_) {
        multiply_few(first, end, piece);
      } else {
        columns_.load_rows(first, end);
        Place* place = places_;
        for (int64_t k = first, stop; k < end; k = stop) {
          stop = pieces_.end(k);
          *place++ = {pieces_, k, stop};
        }
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
  // A weight in memory is read of so many panels at a time as `promote` has of so many rows.
  static bool reads_enough(int64_t rows) {
    return !Columns::kInBlocks || rows > Micro::kRows ||
           promoted_panels(static_cast<int>(rows)) > 2;
  }

  // The tile of rows, over the span [first, end), whose first piece has that number.
  void multiply(int64_t row, int height, int64_t first, int64_t end, int64_t piece) {
    if (promotes_) return promote(row, height, first, end, piece);
    const int32_t* of_columns = column_sums_;
    const Place* at = places_;
    for (int64_t k = first, stop; k < end; k = stop, ++piece, of_columns += kKScalesCols) {
      stop = pieces_.end(k);
      const Place& place = *at++;
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

  // The same where every piece is a group.
  void promote(int64_t row, int height, int64_t first, int64_t end, int64_t piece) {
    if constexpr (Micro::kPromotes) {
      with_constant<Micro::kRows>(height, [&](auto r) {
        constexpr int kMost = promoted_panels(r);
        for (int panel = 0; panel < columns_.panels();) {
          const auto by = [&](auto panels) {
            const Promotion<Columns, r, panels> tile{columns_, pieces_, places_, rows_, row};
            const int64_t at = row * kKScalesCols + panel * kPanel;
            const int32_t* of_columns = azp_.data ? column_sums_ + panel * kPanel : nullptr;
            tile.run(first, end, piece, panel, azp_, of_columns, slices_.data() + at,
                     sums_.data() + at);
            panel += panels;
          };
          panel + kMost <= columns_.panels() ? by(std::integral_constant<int, kMost>{})
                                             : by(std::integral_constant<int, 1>{});
        }
      });
    }
  }

  // A piece, of rows so few that their weights need not be bytes.
  void multiply_few(int64_t k, int64_t end, int64_t piece) {
    if constexpr (Columns::kFewRows > 0) {
      constexpr int kMost = Columns::kFewRows;
      alignas(64) int32_t sums[kMost][kKScalesCols];
      const char* rows[kMost];
      int32_t row_sums[kMost];
      const int count = static_cast<int>(rows_.count());
      const ARows a = rows_.from(0, k, piece);
      for (int r = 0; r < count; ++r) {
        const int8_t* own = p_.a.data + (rows_.first() + r) * p_.a.row_stride + k;
        rows[r] = Micro::kValueBytes == 1 ? a.row<char>(r) : reinterpret_cast<const char*>(own);
        row_sums[r] = a.init[r] / -128;
      }
      if (azp_.data) rows[count] = ones_.data(), row_sums[count] = static_cast<int32_t>(end - k);
      columns_.multiply(rows, row_sums, count + (azp_.data ? 1 : 0), k, end, sums[0]);
      const Place place(pieces_, k, end);
      for (int r = 0; r < count; ++r) {
        const float* scales = columns_.scales(place.group, rows_.first() + r);
        for (int col = 0; col < kKScalesCols; col += kColBlock) {
          if (azp_.data) take_azp(r, sums[count] + col, sums[r] + col);
          add(r, col, place, sums[r] + col, scales + col);
        }
      }
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
  const int64_t rows_at_once_;  // with the one of ones
  const bool few_, one_tile_;
  const Pieces pieces_;
  const bool promotes_;
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
  Place places_[kSlice / 32];  // of the pieces of a span
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
