// An epilogue's type (epilogue/epilogues.h) lowered to code: one row of a tile at a time, each
// element by the expression, up to its ending (endings.h). Plain loops of fixed length, which the
// compiler turns into the vectors of the instruction set around it.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

// The operands of one block of columns, widened and laid side by side: element n of the block.
struct RowOperands {
  alignas(64) float floats[kNumOperands][kColBlock];
  alignas(64) int32_t ints[kNumOperands][kColBlock];

  template <class T>
  T* of(Operand id) {
    if constexpr (std::is_same_v<T, float>)
      return floats[static_cast<int>(id)];
    else
      return ints[static_cast<int>(id)];
  }

  template <class L>
  void load(const Int8Problem& p, int64_t row, int64_t col, int count) {
    using T = typename L::value;
    const EpilogueOperand& operand = p.operands[static_cast<int>(L::id)];
    T* to = of<T>(L::id);
    if constexpr (epilogue::MayBeAbsent<L::id>) {
      if (!operand.data) {
        std::fill(to, to + kColBlock, epilogue::Neutral<L::id>::value);
        return;
      }
    }
    std::fill(to + count, to + kColBlock, T(0));
    if constexpr (std::is_same_v<T, float>) {
      widen_columns(operand, row, col, to, count);
    } else {
      const T* from = static_cast<const T*>(operand.data) + col * operand.col_stride;
      for (int i = 0; i < count; ++i) to[i] = from[i * operand.col_stride];
    }
  }
};

// `count` columns of one row of a tile: accumulators, and where operands are found.
struct RowContext {
  const int32_t* acc;
  RowOperands& cols;
  const Int8Problem& p;
  int64_t m;
  int64_t col;
  int count;
};

// fma(x, y, z) rounded once. Without the instruction: the product is exact in float64, and the sum
// is rounded to odd there, so that the rounding to float32 sees on which side of a tie it lies.
inline float fused_multiply_add(float x, float y, float z) {
#if defined(SCALED_MM_HAS_FMA_F16C) || defined(__aarch64__)
  return __builtin_fmaf(x, y, z);
#else
  const double product = double(x) * double(y), addend = z;
  double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  if (error != 0.0 && error == error && (bits & 1) == 0) {
    bits += ((error > 0.0) == (sum > 0.0)) ? 1 : -1;
    std::memcpy(&sum, &bits, sizeof sum);
  }
  return static_cast<float>(sum);
#endif
}

inline float apply(epilogue::ToFloat, int32_t x) { return static_cast<float>(x); }
inline float apply(epilogue::Add, float x, float y) { return x + y; }
inline float apply(epilogue::Mul, float x, float y) { return x * y; }
inline float apply(epilogue::Fma, float x, float y, float z) { return fused_multiply_add(x, y, z); }
inline int32_t apply(epilogue::Mul, int32_t x, int32_t y) {
  return static_cast<int32_t>(static_cast<uint32_t>(x) * static_cast<uint32_t>(y));
}
inline int32_t apply(epilogue::Sub, int32_t x, int32_t y) {
  return static_cast<int32_t>(static_cast<uint32_t>(x) - static_cast<uint32_t>(y));
}

// Lower<E> reads what is constant along the row when it is made, and gives element n of the row.
template <class E>
struct Lower;

template <>
struct Lower<epilogue::Acc> {
  const int32_t* acc;
  explicit Lower(const RowContext& row) : acc(row.acc) {}
  static void load(RowOperands&, const Int8Problem&, int64_t, int) {}
  int32_t operator[](int n) const { return acc[n]; }
};

template <Operand Id, class T, bool ScalarOk>
struct Lower<epilogue::Leaf<Id, T, epilogue::Axis::Row, ScalarOk>> {
  using L = epilogue::Leaf<Id, T, epilogue::Axis::Row, ScalarOk>;
  const T* values;
  explicit Lower(const RowContext& row) : values(row.cols.of<T>(Id)) {}
  static void load(RowOperands& to, const Int8Problem& p, int64_t col, int count) {
    to.load<L>(p, 0, col, count);
  }
  T operator[](int n) const { return values[n]; }
};

template <Operand Id, class T, bool ScalarOk>
struct Lower<epilogue::Leaf<Id, T, epilogue::Axis::Col, ScalarOk>> {
  T value;
  explicit Lower(const RowContext& row) {
    const EpilogueOperand& operand = row.p.operands[static_cast<int>(Id)];
    if constexpr (epilogue::MayBeAbsent<Id>) {
      value = epilogue::Neutral<Id>::value;
      if (!operand.data) return;
    }
    value = static_cast<const T*>(operand.data)[row.m * operand.row_stride];
  }
  static void load(RowOperands&, const Int8Problem&, int64_t, int) {}
  T operator[](int) const { return value; }
};

// A matrix: each row of it is widened into the place of a row operand when its turn comes.
template <Operand Id, class T, bool ScalarOk>
struct Lower<epilogue::Leaf<Id, T, epilogue::Axis::Full, ScalarOk>> {
  using L = epilogue::Leaf<Id, T, epilogue::Axis::Full, ScalarOk>;
  const T* values;
  explicit Lower(const RowContext& row) : values(row.cols.of<T>(Id)) {
    row.cols.load<L>(row.p, row.m, row.col, row.count);
  }
  static void load(RowOperands&, const Int8Problem&, int64_t, int) {}
  T operator[](int n) const { return values[n]; }
};

template <class Op, class... Args>
struct Lower<epilogue::Apply<Op, Args...>> {
  std::tuple<Lower<Args>...> args;
  explicit Lower(const RowContext& row) : args(Lower<Args>(row)...) {}
  static void load(RowOperands& to, const Int8Problem& p, int64_t col, int count) {
    (Lower<Args>::load(to, p, col, count), ...);
  }
  auto operator[](int n) const {
    return std::apply([n](const auto&... arg) { return apply(Op{}, arg[n]...); }, args);
  }
};
