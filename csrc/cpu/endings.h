// How an epilogue ends, row by row: the activation, the output's quantiser, the rounding to its
// dtype. Each is a loop over the row's elements, which lie in a few cache lines, so the call's
// choice of them is made once for a row and not compiled into every epilogue.
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace, behind the
// producers, whose functions these are.

// f over a row, or over its even columns, times the odd ones.
template <Function f>
inline void activate(float (&d)[kColBlock], Form form) {
  if (form == Form::activated) {
    for (int n = 0; n < kColBlock; ++n) d[n] = functions::value<FunctionOps, f>(d[n]);
    return;
  }
  alignas(64) float gates[kColBlock / 2], values[kColBlock / 2];
  for (int n = 0; n < kColBlock / 2; ++n) {
    gates[n] = d[2 * n];
    values[n] = d[2 * n + 1];
  }
  for (int n = 0; n < kColBlock / 2; ++n) {
    d[n] = functions::value<FunctionOps, f>(gates[n]) * values[n];
  }
}

inline void activate(float (&d)[kColBlock], Form form, Function function) {
  with_function(function, [&](auto f) { activate<f>(d, form); });
}

// float8_e4m3fn of |x| <= 448, or of NaN.
inline uint8_t float_to_e4m3(float x) {
  const uint32_t bits = to_bits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  // Normal: 20 bits are dropped, the exponent's bias goes from 127 to 7. Below 2^-6 the unit is
  // 2^-9: adding 2^14 puts it at the last bit of the float, where it rounds.
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  const uint32_t small = to_bits(from_bits(magnitude) + 16384.0f) - 0x46800000;
  const uint32_t finite = magnitude >= 0x3c800000 ? normal : small;
  return static_cast<uint8_t>(sign | (magnitude > 0x7f800000 ? 0x7f : finite));
}

// A row in units of the output's scale.
inline void quantise_output(const RowContext& row, const float* d, uint8_t* q, int count) {
  const auto operand = [&](Operand id) { return row.p.operands[static_cast<int>(id)]; };
  const auto read = [&](auto* data, int64_t stride) { return data[row.m * stride]; };
  const EpilogueOperand scales = operand(Operand::out_scale), azps = operand(Operand::out_azp);
  const float scale = read(static_cast<const float*>(scales.data), scales.row_stride);
  if (row.p.size.out_dtype == DType::int8) {
    const auto* azp = static_cast<const int32_t*>(azps.data);
    const QParams by{scale, azp ? read(azp, azps.row_stride) : 0};
    return quantize_row(d, count, by, azp ? -128.0f : -127.0f, reinterpret_cast<int8_t*>(q));
  }
  const float reciprocal = 1.0f / scale;
  for (int n = 0; n < count; ++n) {
    float x = d[n] * reciprocal;
    x = x > 448.0f ? 448.0f : x;
    x = x < -448.0f ? -448.0f : x;
    q[n] = float_to_e4m3(x);
  }
}

// --- the functions that the product calls ------------------------------------------------------

// Of an epilogue: what loads the operands of columns [col, col + count), and what gives the
// elements of a row of them up to its ending; null where D holds the accumulators themselves.
struct RowEpilogue {
  void (*load)(RowOperands& to, const Int8Problem& p, int64_t col, int count);
  void (*evaluate)(const RowContext& row, float (&d)[kColBlock]);
};

template <class Body>
void evaluate(const RowContext& row, float (&d)[kColBlock]) {
  const Lower<Body> element(row);
  for (int n = 0; n < kColBlock; ++n) d[n] = element[n];
}

inline RowEpilogue find_epilogue(const Int8Problem::Size& size) {
  return epilogue::with_epilogue(size.epilogue, [&](auto e) {
    using E = epilogue::Body<typename decltype(e)::type>;
    if constexpr (epilogue::is_raw<E>) {
      return RowEpilogue{Lower<E>::load, nullptr};
    } else {
      return RowEpilogue{Lower<E>::load, evaluate<E>};
    }
  });
}

// `count` elements rounded to D's dtype. A whole row of a block needs no way round.
template <class Of>
inline void narrow_row(const float* d, void* out, int count) {
  using S = typename Of::storage;
  if (count == kColBlock) return Of::narrow(d, static_cast<S*>(out), kColBlock);
  alignas(64) S rounded[kColBlock];
  Of::narrow(d, rounded, kColBlock);
  std::memcpy(out, rounded, count * sizeof(S));
}

// A row of the block to D.
inline void write_row(const RowEpilogue& epilogue, const RowContext& row, void* out) {
  if (!epilogue.evaluate) {
    std::memcpy(out, row.acc, row.count * sizeof(int32_t));
    return;
  }
  alignas(64) float d[kColBlock];
  epilogue.evaluate(row, d);
  const Form form = epilogue::entry(row.p.size.epilogue).form;
  if (form != Form::none) activate(d, form, row.p.size.function);
  const int count = row.count / epilogue::columns_of(form);
  const DType dtype = row.p.size.out_dtype;
  if (is_8_bit(dtype)) return quantise_output(row, d, static_cast<uint8_t*>(out), count);
  with_dtype(dtype, [&](auto to) { narrow_row<Format<to>>(d, out, count); });
}
