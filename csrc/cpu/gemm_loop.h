// The product of one instruction set: walks its tasks, keeps A's rows in cache in the form the
// microkernel reads, and hands each row of int32 sums to the epilogue while it is still in L1.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace, after its
//
//   struct Micro {
//     using Cell = ...;                         // the form in which A's values are kept
//     static constexpr int kRows, kPanels;      // a tile against a packed weight, at most
//     static constexpr int kDotRows, kDotCols;  // a tile against a plain weight, at most
//     static constexpr int64_t cells(int64_t k);  // Cells that a row of K values takes
//     // One row of A as Cells; values past K are 0.
//     static void load_row(const int8_t* a, int64_t stride, int64_t k, Cell* cells);
//     // acc[r * kColBlock + n] = init[r] + sum_k a[r, k] * (b[k, n] + 128), for R rows and
//     // P panels of a packed weight, or C columns of a plain one whose values of k lie together.
//     template <int R, int P>
//     static void tile(const ARows& a, const uint8_t* b, int64_t panel_stride, int64_t groups,
//                      int32_t* acc);
//     template <int R, int C>
//     static void dot(const ARows& a, const int8_t* b, int64_t col_stride, int64_t k,
//                     int32_t* acc);
//   };

// Rows of A as the microkernel reads them.
struct ARows {
  const Micro::Cell* cells;
  int64_t stride;       // from row to row
  const int32_t* init;  // -128 * sum_k a[m, k], see packed.h
};

// A block of A's rows, converted once and used for every block of columns that follows.
class RowBlock {
 public:
  RowBlock(const Problem& p, const Tiling& tiling)
      : p_(p),
        block_rows_(tiling.block_rows),
        // A line more than needed between rows: lengths that are powers of two would collide.
        stride_(Micro::cells(p.k) + 64 / sizeof(Micro::Cell)),
        cells_(static_cast<size_t>(stride_ * block_rows_)),
        init_(static_cast<size_t>(block_rows_)) {}

  void load(int64_t index) {
    if (index == index_) return;
    index_ = index;
    first_ = index * block_rows_;
    count_ = std::min(block_rows_, p_.m - first_);
    for (int64_t r = 0; r < count_; ++r) {
      const int8_t* row = p_.a.data + (first_ + r) * p_.a.row_stride;
      Micro::load_row(row, p_.a.col_stride, p_.k, cells_.data() + r * stride_);
      uint32_t sum = 0;
      for (int64_t k = 0; k < p_.k; ++k) sum += static_cast<uint32_t>(row[k * p_.a.col_stride]);
      init_[r] = static_cast<int32_t>(sum * uint32_t(-128));
    }
  }

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  ARows from(int64_t row) const {
    return {cells_.data() + row * stride_, stride_, init_.data() + row};
  }

 private:
  const Problem& p_;
  int64_t block_rows_, stride_;
  int64_t index_ = -1, first_ = 0, count_ = 0;
  Buffer<Micro::Cell> cells_;
  Buffer<int32_t> init_;
};

// Calls use(integral_constant<int, n>) for 1 <= n <= Max.
template <int Max, class Use>
inline void with_constant(int n, const Use& use) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, use);
  }
  use(std::integral_constant<int, Max>{});
}

// acc [rows][kColBlock] = A's rows times columns [col, col + count) of the weight.
template <int R>
inline void multiply_packed(const Problem& p, const ARows& a, int64_t col, int count,
                            int32_t* acc) {
  const int64_t stride = panel_bytes(p.k);
  const uint8_t* b = p.b.packed + (col / kPanel) * stride;
  constexpr int kAtOnce = Micro::kPanels;
  const int last = static_cast<int>(ceil_div(count, kPanel));
  for (int panel = 0; panel < last; panel += kAtOnce) {
    with_constant<kAtOnce>(std::min(kAtOnce, last - panel), [&](auto at_once) {
      Micro::template tile<R, at_once>(a, b + panel * stride, stride, groups(p.k),
                                       acc + panel * kPanel);
    });
  }
}

template <int R>
inline void multiply_plain(const Problem& p, const ARows& a, int64_t col, int count, int32_t* acc) {
  const int64_t stride = p.b.plain.col_stride;
  const int8_t* b = p.b.plain.data + col * stride;
  constexpr int kAtOnce = Micro::kDotCols;
  int n = 0;
  for (; n + kAtOnce <= count; n += kAtOnce) {
    Micro::template dot<R, kAtOnce>(a, b + n * stride, stride, p.k, acc + n);
  }
  for (; n < count; ++n) Micro::template dot<R, 1>(a, b + n * stride, stride, p.k, acc + n);
}

// Cuts `rows` into tiles of nearly equal height, none above Max, and calls use(first, height).
template <int Max, class Use>
inline void for_each_tile(int64_t rows, const Use& use) {
  const int64_t tiles = ceil_div(rows, Max);
  for (int64_t t = 0, first = 0; t < tiles; ++t) {
    const int64_t height = ceil_div(rows - first, tiles - t);
    with_constant<Max>(static_cast<int>(height), [&](auto fixed) { use(first, fixed); });
    first += height;
  }
}

inline void gemm(const Problem& p, const Tiling& tiling, int epilogue, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  const Epilogue finish = find_epilogue(epilogue, p.out_dtype);
  const int64_t out_size = p.out_dtype == ScalarType::Float || epilogue == kRaw ? 4 : 2;
  constexpr int kRows = std::max(Micro::kRows, Micro::kDotRows);
  alignas(64) int32_t acc[kRows][kColBlock] = {};
  RowOperands operands;
  RowBlock rows(p, tiling);

  for (int64_t task = begin; task < end; ++task) {
    rows.load(task / tiling.col_blocks);
    const int64_t col = task % tiling.col_blocks * kColBlock;
    const int count = static_cast<int>(std::min<int64_t>(kColBlock, p.n - col));
    finish.load(operands, p, col, count);

    const auto write = [&](int64_t first, int height) {
      for (int r = 0; r < height; ++r) {
        const int64_t m = rows.first() + first + r;
        char* out = static_cast<char*>(p.d) + (m * p.n + col) * out_size;
        finish.write_row({acc[r], operands, p, m}, count, out);
      }
    };
    if (p.b.packed) {
      for_each_tile<Micro::kRows>(rows.count(), [&](int64_t first, auto height) {
        multiply_packed<height>(p, rows.from(first), col, count, acc[0]);
        write(first, height);
      });
    } else {
      for_each_tile<Micro::kDotRows>(rows.count(), [&](int64_t first, auto height) {
        multiply_plain<height>(p, rows.from(first), col, count, acc[0]);
        write(first, height);
      });
    }
  }
}

// Known at compile time: code of this instruction set must not run while the library loads.
constexpr Kernels table(const char* name, bool (*available)()) {
  return {name, available, std::max(Micro::kRows, Micro::kDotRows), gemm, quantize_rows,
          range_rows, quantizer};
}
