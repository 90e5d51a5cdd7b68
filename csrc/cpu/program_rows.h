// An epilogue's program (problems/program.h) over a few rows of a block of columns: node after
// node, each a loop over the elements, all of whose values stay in L1. Nodes that are the same for
// every row are evaluated when the block is loaded.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace, behind endings.h.

namespace program {

// A node's values: rows of kColBlock elements, `stride` apart, or one row for all.
template <class T>
struct Values {
  const T* data;
  int stride;
};

template <class To, class F, class... X>
inline void each_of_row(To* __restrict to, const F& f, const X*... x) {
  for (int n = 0; n < kColBlock; ++n) to[n] = static_cast<To>(f(x[n]...));
}

// to = f(x...), element by element.
template <class To, class F, class... X>
inline void each(int rows, To* to, const F& f, Values<X>... x) {
  for (int r = 0; r < rows; ++r) each_of_row(to + r * kColBlock, f, x.data + r * x.stride...);
}

template <class T>
inline void fill(T* to, T value) {
  for (int n = 0; n < kColBlock; ++n) to[n] = value;
}

inline uint32_t unsigned_of(int32_t x) { return static_cast<uint32_t>(x); }
inline int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }

// Rounded to the nearest even integer, within int32.
inline int32_t to_int(float x) {
  const float at = x < 2147483520.0f ? x : 2147483520.0f;  // the largest float below 2^31
  const float rounded = round_even(at > -2147483648.0f ? at : -2147483648.0f);
  const int32_t inside = static_cast<int32_t>(rounded);
  return x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : inside;
}

inline int32_t to_int8(float x, float scale, int32_t azp, float lowest) {
  int8_t q;
  quantize_row(&x, 1, {scale, azp}, lowest, &q);
  return q;
}

inline int32_t to_e4m3(float x, float scale) {
  x *= 1.0f / scale;
  x = x > 448.0f ? 448.0f : x;
  x = x < -448.0f ? -448.0f : x;
  return float_to_e4m3(x);
}

class Rows {
  using Op = Program::Op;
  using Node = Program::Node;

 public:
  static constexpr int kRows = 4;  // at a time

  explicit Rows(const Program& program)
      : program_(program), floats_(elements()), ints_(elements()) {
    for (size_t i = 0; i < elements(); ++i) floats_[i] = 0.0f, ints_[i] = 0;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const int stride = program_.nodes[i].varies ? kColBlock : 0;
      const size_t at = i * kRows * kColBlock;
      results_.push_back({{floats_.data() + at, stride}, {ints_.data() + at, stride}});
    }
  }

  // For columns [col, col + count) of B.
  void load(int64_t col, int count) {
    col_ = col, count_ = count;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      if (!program_.nodes[i].varies) evaluate(static_cast<int>(i), 0, 1);
    }
  }

  // Rows [m, m + rows) of D, of `n` columns of B, from their sums, which lie kColBlock apart.
  void write(const int32_t* acc, int64_t m, int rows, int64_t n) {
    for (int first = 0; first < rows; first += kRows) {
      for (size_t i = 0; i < program_.nodes.size(); ++i) {
        if (program_.nodes[i].op == Op::acc) results_[i].i.data = acc + first * kColBlock;
      }
      write_few(m + first, std::min(kRows, rows - first), n / program_.columns);
    }
  }

 private:
  // Of a node: one of the two, by its type.
  struct Result {
    Values<float> f;
    Values<int32_t> i;
  };

  size_t elements() const { return program_.nodes.size() * kRows * kColBlock; }

  void write_few(int64_t m, int rows, int64_t out_columns) {
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      if (program_.nodes[i].varies) evaluate(static_cast<int>(i), m, rows);
    }
    for (const Program::Output& out : program_.outputs) {
      for (int r = 0; r < rows; ++r) {
        const int64_t first = (m + r) * out_columns + col_ / program_.columns;
        store(out, r, static_cast<char*>(out.d) + first * out.bytes());
      }
    }
  }

  void store(const Program::Output& out, int row, void* to) const {
    const int count = count_ / program_.columns;
    const Result& result = results_[out.node];
    const float* const f = result.f.data + row * result.f.stride;
    const int32_t* const i = result.i.data + row * result.i.stride;
    if (!out.dtype) {
      std::memcpy(to, i, count * sizeof(int32_t));
    } else if (is_8_bit(*out.dtype)) {
      auto* const bytes = static_cast<uint8_t*>(to);
      for (int n = 0; n < count; ++n) bytes[n] = static_cast<uint8_t>(i[n]);
    } else {
      with_dtype(*out.dtype, [&](auto d) { narrow_row<Format<d>>(f, to, count); });
    }
  }

  // Rows of an operand.
  void load_operand(const Program::Leaf& leaf, float* f, int32_t* i, int64_t m, int rows) const {
    const EpilogueOperand& of = leaf.operand;
    const auto ints = [&](int64_t row, int64_t col) {
      return static_cast<const int32_t*>(of.data)[row * of.row_stride + col * of.col_stride];
    };
    if (leaf.axis == epilogue::Axis::Col) {
      for (int r = 0; r < rows && !leaf.is_float; ++r) fill(i + r * kColBlock, ints(m + r, 0));
      for (int r = 0; r < rows && leaf.is_float; ++r) {
        float value = 0;
        if (of.dtype == DType::float32) {
          value = static_cast<const float*>(of.data)[(m + r) * of.row_stride];
        } else {
          widen_columns(of, m + r, 0, &value, 1);
        }
        fill(f + r * kColBlock, value);
      }
      return;
    }
    const int64_t col = col_ / leaf.columns;
    const int count = count_ / leaf.columns;
    for (int r = 0; r < rows; ++r) {
      if (leaf.is_float) {
        widen_columns(of, m + r, col, f + r * kColBlock, count);
      } else {
        for (int n = 0; n < count; ++n) i[r * kColBlock + n] = ints(m + r, col + n);
      }
    }
  }

  template <class Of>
  void round_through(Values<float> x, float* to, int rows) const {
    for (int r = 0; r < rows; ++r) {
      typename Of::storage rounded[kColBlock];
      Of::narrow(x.data + r * x.stride, rounded, count_);
      Of::widen(rounded, to + r * kColBlock, count_);
    }
  }

  void evaluate(int index, int64_t m, int rows);

  const Program& program_;
  Buffer<float> floats_;
  Buffer<int32_t> ints_;
  std::vector<Result> results_;
  int64_t col_ = 0;
  int count_ = 0;
};

inline void Rows::evaluate(int index, int64_t m, int rows) {
  const Node& node = program_.nodes[index];
  float* const f = floats_.data() + int64_t{index} * kRows * kColBlock;
  int32_t* const i = ints_.data() + int64_t{index} * kRows * kColBlock;
  if (node.op == Op::operand) {
    return load_operand(program_.leaves[node.args[0]], f, i, m, rows);
  }
  const auto& [x, a] = results_[node.args[0]];
  const auto& [y, b] = results_[node.args[1]];
  const auto& [z, c] = results_[node.args[2]];
  const auto whole = [&](const auto& op, auto... of) { each(rows, i, op, of...); };
  const auto real = [&](const auto& op, auto... of) { each(rows, f, op, of...); };
  constexpr auto u = unsigned_of;
  switch (node.op) {
    case Op::acc:
    case Op::operand: return;
    case Op::integer: return fill(i, node.bits);
    case Op::number: return fill(f, from_bits(u(node.bits)));
    case Op::add_int: return whole([](int32_t p, int32_t q) { return wrapped(u(p) + u(q)); }, a, b);
    case Op::sub_int: return whole([](int32_t p, int32_t q) { return wrapped(u(p) - u(q)); }, a, b);
    case Op::mul_int: return whole([](int32_t p, int32_t q) { return wrapped(u(p) * u(q)); }, a, b);
    case Op::neg_int: return whole([](int32_t p) { return wrapped(0u - u(p)); }, a);
    case Op::abs_int: return whole([](int32_t p) { return p < 0 ? wrapped(0u - u(p)) : p; }, a);
    case Op::min_int: return whole([](int32_t p, int32_t q) { return p < q ? p : q; }, a, b);
    case Op::max_int: return whole([](int32_t p, int32_t q) { return p > q ? p : q; }, a, b);
    case Op::less_int: return whole([](int32_t p, int32_t q) { return p < q; }, a, b);
    case Op::at_most_int: return whole([](int32_t p, int32_t q) { return p <= q; }, a, b);
    case Op::equal_int: return whole([](int32_t p, int32_t q) { return p == q; }, a, b);
    case Op::where_int:
      return whole([](int32_t t, int32_t p, int32_t q) { return t ? p : q; }, a, b, c);
    case Op::to_float: return real([](int32_t p) { return static_cast<float>(p); }, a);
    case Op::to_int: return whole(to_int, x);
    case Op::add: return real([](float p, float q) { return p + q; }, x, y);
    case Op::sub: return real([](float p, float q) { return p - q; }, x, y);
    case Op::mul: return real([](float p, float q) { return p * q; }, x, y);
    case Op::div: return real([](float p, float q) { return p / q; }, x, y);
    case Op::fma: return real(fused_multiply_add, x, y, z);
    case Op::neg: return real([](float p) { return from_bits(to_bits(p) ^ 0x80000000u); }, x);
    case Op::abs: return real([](float p) { return from_bits(to_bits(p) & 0x7fffffffu); }, x);
    case Op::min: return real([](float p, float q) { return p < q || p != p ? p : q; }, x, y);
    case Op::max: return real([](float p, float q) { return p > q || p != p ? p : q; }, x, y);
    case Op::sqrt: return real([](float p) { return __builtin_sqrtf(p); }, x);
    case Op::less: return whole([](float p, float q) { return p < q; }, x, y);
    case Op::at_most: return whole([](float p, float q) { return p <= q; }, x, y);
    case Op::equal: return whole([](float p, float q) { return p == q; }, x, y);
    case Op::where: return real([](int32_t t, float p, float q) { return t ? p : q; }, a, y, z);
    case Op::relu: return real([](float p) { return functions::relu<FunctionOps>(p); }, x);
#define OP(...)
#define FUNCTION(number, name, ...) \
  case Op::name: return real([](float p) { return functions::name<FunctionOps>(p); }, x);
#include "epilogue/program.def"
#undef OP
    case Op::to_bfloat16: return round_through<Format<DType::bfloat16>>(x, f, rows);
    case Op::to_float16: return round_through<Format<DType::float16>>(x, f, rows);
    case Op::gate:
    case Op::value: {
      const int first = node.op == Op::value;
      for (int r = 0; r < rows; ++r) {
        for (int n = 0; n < kColBlock / 2; ++n) {
          f[r * kColBlock + n] = x.data[r * x.stride + 2 * n + first];
        }
      }
      return;
    }
    case Op::to_int8:
      return whole([](float p, float s) { return to_int8(p, s, 0, -127.0f); }, x, y);
    case Op::to_int8_azp:
      return whole([](float p, float s, int32_t q) { return to_int8(p, s, q, -128.0f); }, x, y, c);
    case Op::to_e4m3: return whole(to_e4m3, x, y);
  }
}

}  // namespace program
