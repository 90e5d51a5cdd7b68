// The quantiser over rows (docs/numerics.md): float32, one rounding per operation, true division.
// Plain loops for the compiler to vectorise; comparisons are written so that NaN falls where the
// contract wants it.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

// One row of x as float32: the row itself, or a widened copy in `scratch`.
inline const float* widen_row(const QuantizeProblem& p, int64_t row, float* scratch) {
  const float* result = scratch;
  with_dtype(p.x_dtype, [&](auto dtype) {
    using Of = Format<dtype>;
    using S = typename Of::storage;
    const S* x = static_cast<const S*>(p.x.data) + row * p.x.row_stride;
    if (std::is_same_v<S, float> && p.x.col_stride == 1) {
      result = reinterpret_cast<const float*>(x);
    } else {
      widen_strided<Of>(x, p.x.col_stride, scratch, p.cols);
    }
  });
  return result;
}

#ifdef SCALED_MM_HAS_AVX512
inline constexpr int kLanes = 16, kMostVectors = 16;
#else
inline constexpr int kLanes = 8, kMostVectors = 8;
#endif
using Lanes = float __attribute__((vector_size(4 * kLanes)));

// A stage of a butterfly within a vector.
template <int kStride, size_t... kAt>
inline void rotate_lanes(Lanes& v, std::index_sequence<kAt...>) {
  constexpr Lanes kSigns = {(kAt & kStride ? -1.0f : 1.0f)...};
  v = __builtin_shufflevector(v, v, (kAt ^ kStride)...) + v * kSigns;
}

// All stages over kVectors vectors of a row, then the factor.
template <int kVectors>
inline void rotate_in_registers(float* x, float factor) {
  Lanes v[kVectors];
  std::memcpy(v, x, sizeof v);
#pragma GCC unroll 16
  for (Lanes& of : v) {
    constexpr std::make_index_sequence<kLanes> kAll;
    rotate_lanes<1>(of, kAll);
    rotate_lanes<2>(of, kAll);
    rotate_lanes<4>(of, kAll);
    if constexpr (kLanes == 16) rotate_lanes<8>(of, kAll);
  }
#pragma GCC unroll 4
  for (int stride = 1; stride < kVectors; stride *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if (i & stride) continue;
      const Lanes sum = v[i] + v[i + stride];
      v[i + stride] = v[i] - v[i + stride];
      v[i] = sum;
    }
  }
#pragma GCC unroll 16
  for (Lanes& of : v) of *= factor;
  std::memcpy(x, v, sizeof v);
}

// Rotates blocks of a row, in place: strides from 1 upwards, then the factor.
template <int kVectors = 16 / kLanes>
inline void rotate_row(float* x, int64_t cols, int64_t block) {
  if constexpr (kVectors < kMostVectors) {
    if (block > kVectors * kLanes) return rotate_row<2 * kVectors>(x, cols, block);
  }
  constexpr int64_t kHeld = kVectors * kLanes;
  const float factor = rotation_factor(block);
  for (int64_t k = 0; k < cols; k += kHeld) {
    rotate_in_registers<kVectors>(x + k, block == kHeld ? factor : 1.0f);
  }
  for (int64_t stride = kHeld; stride < block; stride *= 2) {
    const float by = 2 * stride == block ? factor : 1.0f;
    for (int64_t first = 0; first < cols; first += 2 * stride) {
      float *a = x + first, *b = a + stride;
      for (int64_t i = 0; i < stride; ++i) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum * by;
        b[i] = difference * by;
      }
    }
  }
}

// The row that is quantised: x's as float32, times `smooth` [cols] and rotated where that is asked
// for.
inline const float* read_row(const QuantizeProblem& p, const float* smooth, int64_t row,
                             float* scratch) {
  const float* x = widen_row(p, row, scratch);
  if ((!smooth && !p.rotate) || p.cols == 0) return x;
  if (smooth) {
    for (int64_t k = 0; k < p.cols; ++k) scratch[k] = x[k] * smooth[k];
  } else if (x != scratch) {
    std::memcpy(scratch, x, p.cols * sizeof(float));
  }
  if (p.rotate) rotate_row(scratch, p.cols, p.rotate);
  return scratch;
}

// Reductions run on integers, which a compiler may reorder: floats order like their bits once the
// magnitude of negative ones is flipped.
inline int32_t ordered(float value) {
  const int32_t bits = static_cast<int32_t>(to_bits(value));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
inline float from_ordered(int32_t key) {
  return from_bits(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

inline void extend(Range& range, const float* x, int64_t count, bool symmetric) {
  int32_t largest = 0;
  if (symmetric) {
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, static_cast<int32_t>(to_bits(x[i]) & 0x7fffffff));
    }
    range.hi = std::max(range.hi, from_bits(static_cast<uint32_t>(largest)));
  } else {
    int32_t lo = ordered(range.lo), hi = ordered(range.hi);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t key = ordered(x[i]);
      lo = std::min(lo, key);
      hi = std::max(hi, key);
      largest = std::max(largest, static_cast<int32_t>(to_bits(x[i]) & 0x7fffffff));
    }
    range.lo = from_ordered(lo);
    range.hi = from_ordered(hi);
  }
  range.finite &= largest < 0x7f800000;
}

inline QParams qparams(const Range& range, bool symmetric) {
  const FloatEnvironment environment;
  if (!range.finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (symmetric) return {std::max(range.hi / 127.0f, FLT_MIN), 0};
  float scale = (range.hi - range.lo) / 255.0f;
  if (std::isinf(scale)) scale = (range.hi / 2 - range.lo / 2) / 127.5f;
  scale = std::max(scale, FLT_MIN);
  const float azp = std::rint(-128.0f - range.lo / scale);
  return {scale, static_cast<int32_t>(std::min(std::max(azp, -128.0f), 127.0f))};
}

inline float round_even(float x) {
#if defined(SCALED_MM_HAS_FMA_F16C) || defined(__aarch64__)
  return __builtin_rintf(x);
#else
  // From 2^23 on floats are integers; below, adding 2^23 leaves no room for a fraction.
  const float shift = std::copysign(8388608.0f, x);
  return std::fabs(x) < 8388608.0f ? (x + shift) - shift : x;
#endif
}

// q = clamp(round(x / scale) + azp). Dividing is not what takes the time: multiplying by 1 / scale,
// and dividing only where that comes near half an integer, was slower.
inline void quantize_row(const float* x, int64_t count, QParams by, float lowest, int8_t* q) {
  const float azp = static_cast<float>(by.azp);
  for (int64_t k = 0; k < count; ++k) {
    float value = round_even(x[k] / by.scale) + azp;
    value = value == value ? value : 0.0f;  // NaN
    value = value > lowest ? value : lowest;
    value = value < 127.0f ? value : 127.0f;
    q[k] = static_cast<int8_t>(static_cast<int32_t>(value));
  }
}

inline Range range_rows(const QuantizeProblem& p, const float* smooth, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  Buffer<float, 16384> scratch(static_cast<size_t>(p.cols));
  Range range;
  for (int64_t row = begin; row < end; ++row) {
    extend(range, read_row(p, smooth, row, scratch.data()), p.cols, p.symmetric);
  }
  return range;
}

// Row `row`, which is x as float32: by the scale given, or by its own, which it writes.
inline void quantize_one(const QuantizeProblem& p, int64_t row, const float* x) {
  float& scale = p.scale[row * p.scale_stride];
  int32_t no_azp = 0;
  int32_t& azp = p.azp ? p.azp[row * p.azp_stride] : no_azp;
  if (!p.given) {
    Range range;
    extend(range, x, p.cols, p.symmetric);
    const QParams own = qparams(range, p.symmetric);
    scale = own.scale;
    azp = own.azp;
  }
  quantize_row(x, p.cols, {scale, azp}, p.symmetric ? -127.0f : -128.0f, p.q + row * p.cols);
}

inline void quantize_rows(const QuantizeProblem& p, const float* smooth, int64_t begin,
                          int64_t end) {
  const FloatEnvironment environment;
  Buffer<float, 16384> scratch(static_cast<size_t>(p.cols));
  for (int64_t row = begin; row < end; ++row) {
    quantize_one(p, row, read_row(p, smooth, row, scratch.data()));
  }
}
