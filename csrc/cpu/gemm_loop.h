// The product of one instruction set: walks its tasks, keeps A's rows in cache in the form the
// microkernel reads, and hands each row of int32 sums to the epilogue while it is still in L1.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace, after its
//
//   struct Micro {
//     static constexpr int kRows, kPanels;      // a tile against a packed weight, at most
//     static constexpr int kDotRows, kDotCols;  // a tile against a plain weight, at most
//     static constexpr int kValueBytes;         // bytes that a value of A takes in its row
//     static constexpr int kFetchingRows;       // of a tile that is given one more panel,
//                                               // `fetched`, to bring to the cache; 0: none
//     static constexpr int64_t row_bytes(int64_t k);
//     static void load_row(const int8_t* a, int64_t stride, int64_t k, char* row);
//
//     // acc[r * kColBlock + n] = init[r] + sum_k a[r, k] * (b[k, n] + 128), against panels of a
//     // packed weight, or columns of a plain one whose values of k lie together.
//     static void tile(int rows, int panels, const ARows& a, const uint8_t* b,
//                      int64_t panel_stride, int64_t k, int32_t* acc, const uint8_t* fetched);
//     // The same sums to end(sums, row, panel), as TileSums from that row and panel on.
//     static void tile_to(int rows, int panels, const ARows& a, const uint8_t* b,
//                         int64_t panel_stride, int64_t k, const End& end);
//     static void dot(int rows, int cols, const ARows& a, const int8_t* b, int64_t col_stride,
//                     int64_t k, int32_t* acc);
//   };
//
// One Micro serves one call of gemm, so it may hold state.

#include "cpu/endings.h"
#include "cpu/program_rows.h"

// Where the piece of K ends that begins at `first`: groups of `group` columns are cut into pieces
// of at most `depth`.
struct Pieces {
  int64_t k, group, depth;
  int64_t end(int64_t first) const {
    return std::min({first + depth, first / group * group + group, k});
  }
  int64_t count() const { return k ? ceil_div(k, group) * ceil_div(group, depth) : 1; }
};

// A block of A's rows, converted once and used for every block of columns that follows.
class RowBlock {
 public:
  RowBlock(const Int8Problem& p, const Tiling& tiling, const Pieces& pieces)
      : p_(p),
        pieces_(pieces),
        block_rows_(tiling.block_rows),
        // A line more than needed between rows: lengths that are powers of two would collide.
        stride_(round_up(Micro::row_bytes(p.size.k), 64) + 64),
        data_(static_cast<size_t>(stride_ * block_rows_)),
        init_(static_cast<size_t>(block_rows_ * pieces.count())) {}

  void load(int64_t index) {
    if (index == index_) return;
    index_ = index;
    first_ = index * block_rows_;
    count_ = std::min(block_rows_, p_.size.m - first_);
    for (int64_t r = 0; r < count_; ++r) {
      const int64_t at = p_.gather ? p_.gather[first_ + r] : first_ + r;
      const int8_t* row = p_.a.data + at * p_.a.row_stride;
      Micro::load_row(row, p_.a.col_stride, p_.size.k, data_.data() + r * stride_);
      int64_t begin = 0, piece = 0;
      do {
        const int64_t end = pieces_.end(begin);
        init_[piece++ * block_rows_ + r] = -128 * sum_row(row, begin, end);  // of kMaxK: it fits
        begin = end;
      } while (begin < p_.size.k);
    }
  }

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  ARows from(int64_t row) const {
    return {data_.data() + row * stride_, stride_, init_.data() + row};
  }
  // From a column on, a multiple of 32, where that piece begins.
  ARows from(int64_t row, int64_t column, int64_t piece) const {
    return {data_.data() + row * stride_ + column * Micro::kValueBytes, stride_,
            init_.data() + piece * block_rows_ + row};
  }

 private:
  int32_t sum_row(const int8_t* row, int64_t begin, int64_t end) const {
    int32_t sum = 0;
    if (p_.a.col_stride == 1) {
      for (int64_t k = begin; k < end; ++k) sum += row[k];
    } else {
      for (int64_t k = begin; k < end; ++k) sum += row[k * p_.a.col_stride];
    }
    return sum;
  }

  const Int8Problem& p_;
  const Pieces pieces_;
  int64_t block_rows_, stride_;
  int64_t index_ = -1, first_ = 0, count_ = 0;
  Buffer<char, 8192> data_;
  Buffer<int32_t, 256> init_;
};

// acc [rows][kColBlock] = A's rows times `count` columns of the weight. `fetched` is a panel to
// bring to the cache meanwhile, or none.
inline void multiply_packed(Micro& micro, int rows, const ARows& a, const uint8_t* b,
                            int64_t panel_stride, int64_t k, int count, int32_t* acc,
                            const uint8_t* fetched = nullptr) {
  const int panels = static_cast<int>(ceil_div(count, kPanel));
  for (int first = 0; first < panels; first += Micro::kPanels) {
    const int some = std::min(Micro::kPanels, panels - first);
    const uint8_t* const from = b + first * panel_stride;
    const uint8_t* const once = fetched && first > 0 ? b : fetched;
    micro.tile(rows, some, a, from, panel_stride, k, acc + first * kPanel, once);
  }
}

inline void multiply_plain(Micro& micro, int rows, const ARows& a, const int8_t* b, int64_t stride,
                           int64_t k, int count, int32_t* acc) {
  for (int n = 0; n < count; n += Micro::kDotCols) {
    micro.dot(rows, std::min(Micro::kDotCols, count - n), a, b + n * stride, stride, k, acc + n);
  }
}

// Cuts `rows` into tiles of nearly equal height, none above `most`, at least so many, and calls
// use(first, height).
template <class Use>
inline void for_each_tile(int64_t rows, int most, const Use& use, int64_t least = 1) {
  const int64_t tiles = std::max(least, ceil_div(rows, most));
  for (int64_t t = 0, first = 0; t < tiles; ++t) {
    const int64_t height = ceil_div(rows - first, tiles - t);
    use(first, static_cast<int>(height));
    first += height;
  }
}

// From this many rows on, packing a plain weight pays for itself within a task.
inline constexpr int kRowsWorthPacking = 16;

inline void gemm(const Int8Problem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  const RowEpilogue finish = find_epilogue(p.size);
  const int64_t row_bytes = p.size.out_columns() * p.size.out_bytes();
  const int columns = epilogue::entry(p.size.epilogue).columns();  // of B, for one of D
  const Matrix<const int8_t>& plain = p.b.plain;
  const bool in_place = !p.b.packed && (plain.row_stride == 1 || p.size.k == 1) &&
                        tiling.block_rows < kRowsWorthPacking;
  const bool pack_here = !p.b.packed && !in_place;
  constexpr int kPanels = kColBlock / kPanel, kRows = std::max(Micro::kRows, Micro::kDotRows);
  alignas(64) int32_t acc[kRows][kColBlock] = {};
  RowOperands operands;
  std::optional<program::Rows> program;
  if (p.program) program.emplace(*p.program);
  const int64_t k = std::max<int64_t>(1, p.size.k);
  RowBlock rows(p, tiling, {p.size.k, k, k});
  Micro micro;
  Buffer<uint8_t> scratch(pack_here ? kPanels * panel_bytes(p.size.k) : 0);

  for (int64_t task = begin; task < end; ++task) {
    rows.load(task / tiling.col_blocks);
    const int64_t col = task % tiling.col_blocks * kColBlock;
    const int count = static_cast<int>(std::min<int64_t>(kColBlock, p.size.n - col));
    program ? program->load(col, count) : finish.load(operands, p, col, count);

    const auto write = [&](int64_t first, int height) {
      if (program) return program->write(acc[0], rows.first() + first, height, p.size.n);
      for (int r = 0; r < height; ++r) {
        const int64_t m = rows.first() + first + r;
        char* out = static_cast<char*>(p.d) + m * row_bytes + col / columns * p.size.out_bytes();
        write_row(finish, {acc[r], operands, p, m, col, count}, out);
      }
    };
    if (in_place) {
      const int8_t* b = plain.data + col * plain.col_stride;
      for_each_tile(rows.count(), Micro::kDotRows, [&](int64_t first, int height) {
        multiply_plain(micro, height, rows.from(first), b, plain.col_stride, p.size.k, count,
                       acc[0]);
        write(first, height);
      });
      continue;
    }
    if (pack_here) {
      for (int i = 0; i * kPanel < count; ++i) {
        pack_panel(p.b, col / kPanel + i, scratch.data() + i * panel_bytes(p.size.k));
      }
    }
    const uint8_t* b =
        pack_here ? scratch.data() : p.b.packed + col / kPanel * panel_bytes(p.size.k);
    // The first tiles bring the next block of columns, a panel each: evenly, so that memory and
    // multipliers work at the same time.
    constexpr int kFetching = Micro::kFetchingRows;
    const bool fetches = kFetching > 0 && !pack_here && rows.count() >= kFetching;
    int tile = 0;
    const auto product = [&](int64_t first, int height) {
      const uint8_t* const fetched =
          b + (tile < kPanels ? kPanels + tile : 0) * panel_bytes(p.size.k);
      ++tile;
      multiply_packed(micro, height, rows.from(first), b, panel_bytes(p.size.k), p.size.k, count,
                      acc[0], fetches ? fetched : nullptr);
      write(first, height);
    };
    for_each_tile(rows.count(), Micro::kRows, product, fetches ? kPanels : 1);
  }
}

// The epilogue of sums that stand in memory.
inline void finish(const Int8Problem& p, const Tiling& tiling, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  const RowEpilogue epilogue = find_epilogue(p.size);
  const int64_t row_bytes = p.size.n * p.size.out_bytes();
  alignas(64) int32_t acc[kColBlock] = {};  // a whole block: the row's last one may be shorter
  RowOperands operands;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task / tiling.col_blocks * tiling.block_rows;
    const int64_t col = task % tiling.col_blocks * kColBlock;
    const int count = static_cast<int>(std::min<int64_t>(kColBlock, p.size.n - col));
    epilogue.load(operands, p, col, count);
    for (int64_t m = first; m < std::min(first + tiling.block_rows, p.size.m); ++m) {
      const int32_t* sums = static_cast<const int32_t*>(p.acc.data) + m * p.acc.row_stride + col;
      std::memcpy(acc, sums, count * sizeof(int32_t));
      char* out = static_cast<char*>(p.d) + m * row_bytes + col * p.size.out_bytes();
      write_row(epilogue, {acc, operands, p, m, col, count}, out);
    }
  }
}

#include "cpu/combine.h"
#include "cpu/lowbit_rows.h"
#include "cpu/k_scales.h"

// Known at compile time: code of this instruction set must not run while the library loads.
constexpr InstructionSet table(const char* name, bool (*available)()) {
  return {name,
          available,
          std::max(Micro::kRows, Micro::kDotRows),
          Micro::kValueBytes,
          gemm,
          finish,
          quantize_rows,
          range_rows,
          qparams,
          produce_rows,
          lowbit_dequantize,
          lowbit_prepare,
          lowbit_gemm,
          k_scales_gemm,
          combine};
}
