// The producers over rows (docs/numerics.md, section 6), in front of quantize_rows.h: a row as
// float32, then its range, then its q. Plain loops for the compiler to vectorise.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

inline float float_of(uint32_t bits) { return from_bits(bits); }

// Where functions.h has its operations from.
struct FunctionOps {
  static float fma(float x, float y, float z) { return fused_multiply_add(x, y, z); }
  static uint32_t bits(float x) { return to_bits(x); }
  static float from_bits(uint32_t x) { return float_of(x); }
  static float size(float x) { return float_of(to_bits(x) & 0x7fffffffu); }
  static float at_least(float x, float least) { return x > least ? x : least; }
  static float at_most(float x, float most) { return x > most ? most : x; }
  static float reciprocal(float x) { return 1.0f / x; }
};

// The sum of `count` floats: groups of eight, in lanes, each by halves.
inline float ordered_sum(const float* x, int64_t count, float* lanes) {
  const int64_t whole = count / kSumGroup, groups = ceil_div(count, kSumGroup);
  const int64_t used = std::min<int64_t>(groups, kSumLanes);
  const auto group = [](const float* p) {
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
  };
  int64_t width = 1;
  while (width < used) width *= 2;
  std::fill(lanes, lanes + width, 0.0f);
  for (int64_t first = 0; first < whole; first += kSumLanes) {
    const int64_t some = std::min<int64_t>(kSumLanes, whole - first);
    const float* from = x + first * kSumGroup;
    for (int64_t i = 0; i < some; ++i) lanes[i] += group(from + i * kSumGroup);
  }
  if (whole < groups) {
    float rest[kSumGroup] = {};
    std::memcpy(rest, x + whole * kSumGroup, (count - whole * kSumGroup) * sizeof(float));
    lanes[whole % kSumLanes] += group(rest);
  }
  for (int64_t half = width / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Scratch memory of a task: some rows of float32.
struct ProducerRows {
  explicit ProducerRows(const ProduceProblem& p)
      : stride(round_up(p.cols, 16)),
        all(static_cast<size_t>(5 * stride + kSumLanes)),
        weight(all.data() + 3 * stride),
        bias(all.data() + 4 * stride),
        lanes(all.data() + 5 * stride) {
    widen_operand(p.weight, 1.0f, weight, p.cols);
    widen_operand(p.bias, -0.0f, bias, p.cols);
  }
  float* row(int i) { return all.data() + i * stride; }

  int64_t stride;
  Buffer<float> all;
  float *weight, *bias, *lanes;

 private:
  // An operand of norms, or what is neutral in its place.
  static void widen_operand(const EpilogueOperand& operand, float neutral, float* to,
                            int64_t count) {
    if (!operand.data) {
      std::fill(to, to + count, neutral);
    } else {
      widen_columns(operand, 0, 0, to, count);
    }
  }
};

// One row of an operand of x's dtype as float32.
inline void widen_row_of(const Matrix<const void>& rows, DType dtype, int64_t row, float* to,
                         int64_t count) {
  with_dtype(dtype, [&](auto d) {
    using Of = Format<d>;
    const auto* from = static_cast<const typename Of::storage*>(rows.data);
    Of::widen(from + row * rows.row_stride, to, count);
  });
}

// One row of a row-major output of x's dtype.
inline void narrow_row_to(void* rows, const ProduceProblem& p, int64_t row, const float* v) {
  with_dtype(p.x_dtype, [&](auto d) {
    using Of = Format<d>;
    Of::narrow(v, static_cast<typename Of::storage*>(rows) + row * p.cols, p.cols);
  });
}

// v = x + other, rounded to x's dtype, which goes to `sum` as well.
inline void add_residual(const ProduceProblem& p, int64_t row, const float* other, float* v) {
  for (int64_t k = 0; k < p.cols; ++k) v[k] += other[k];
  narrow_row_to(p.sum, p, row, v);
  widen_row_of({p.sum, p.cols, 1}, p.x_dtype, row, v, p.cols);
}

inline float reciprocal_root(float sum, const ProduceProblem& p) {
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(p.cols) + p.eps);
}

// v by the norm, in place.
inline void rms_norm(const ProduceProblem& p, ProducerRows& scratch, float* v) {
  float* squares = scratch.row(2);
  for (int64_t k = 0; k < p.cols; ++k) squares[k] = v[k] * v[k];
  const float r = reciprocal_root(ordered_sum(squares, p.cols, scratch.lanes), p);
  const float* weight = scratch.weight;
  for (int64_t k = 0; k < p.cols; ++k) v[k] = v[k] * r * weight[k];
}

inline void layer_norm(const ProduceProblem& p, ProducerRows& scratch, float* v) {
  float* squares = scratch.row(2);
  const float mean = ordered_sum(v, p.cols, scratch.lanes) / static_cast<float>(p.cols);
  for (int64_t k = 0; k < p.cols; ++k) {
    v[k] -= mean;
    squares[k] = v[k] * v[k];
  }
  const float r = reciprocal_root(ordered_sum(squares, p.cols, scratch.lanes), p);
  const float *weight = scratch.weight, *bias = scratch.bias;
  for (int64_t k = 0; k < p.cols; ++k) v[k] = fused_multiply_add(v[k] * r, weight[k], bias[k]);
}

// Row `row` of what is quantised, in scratch.row(0).
template <Producer producer>
inline float* produce_row(const ProduceProblem& p, int64_t row, ProducerRows& scratch) {
  float *v = scratch.row(0), *other = scratch.row(1);
  widen_row_of(p.x, p.x_dtype, row, v, p.cols);
  if (p.other.data) widen_row_of(p.other, p.x_dtype, row, other, p.cols);
  if constexpr (is_norm(producer)) {
    if (p.other.data) add_residual(p, row, other, v);
    if constexpr (producer == Producer::rms_norm) rms_norm(p, scratch, v);
    if constexpr (producer == Producer::layer_norm) layer_norm(p, scratch, v);
    if (p.normed) narrow_row_to(p.normed, p, row, v);
  } else {
    for (int64_t k = 0; k < p.cols; ++k) {
      v[k] = functions::value<FunctionOps, function_of(producer)>(v[k]);
    }
    if (p.other.data) {
      for (int64_t k = 0; k < p.cols; ++k) v[k] *= other[k];
    }
  }
  if (p.smooth) {
    for (int64_t k = 0; k < p.cols; ++k) v[k] *= p.smooth[k];
  }
  if (p.rotate) rotate_row(v, p.cols, p.rotate);
  return v;
}

inline void produce_rows(const ProduceProblem& p, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  ProducerRows scratch(p);
  with_producer(p.producer, [&](auto producer) {
    for (int64_t row = begin; row < end; ++row) {
      quantize_one(p, row, produce_row<producer>(p, row, scratch));
    }
  });
}
