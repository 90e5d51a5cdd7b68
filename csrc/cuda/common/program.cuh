// The interpreter of a program, for one thread: it has kProgramColumns neighbouring columns of B,
// and kProgramRows rows at a time, step after step. All threads take the same branches.
#pragma once

#include "cuda/common/finish.cuh"
#include "cuda/program.h"

namespace scaled_mm::cuda {
namespace program {

using Op = Program::Op;
constexpr int kRows = kProgramRows, kCols = kProgramColumns;

// A value for each of the thread's elements: the bits of a float32, an int32, or a truth value. Of
// pairs of columns the first half of a row.
struct Values {
  uint32_t of[kRows][kCols];
};

struct alignas(16) Slot {
  uint32_t word[4];
};
static_assert(kRows == 4 && kCols == 4, "a slot holds as many");

// clamp(rne(RN(x / scale)) + azp, lowest, 127)
__device__ inline uint32_t to_int8(float x, float scale, int32_t azp, float lowest) {
  Quantizer by = {};
  by.divisor = scale, by.azp = azp, by.lowest = lowest;
  return static_cast<uint32_t>(static_cast<int32_t>(by.exact(x)));
}

// An operation of many instructions on two elements: it is called, not written out for each of
// them.
__device__ __noinline__ inline float2 slowly(Op op, float2 x, float2 y, int2 z) {
  const auto each = [&](auto f) { x = {f(x.x, y.x, z.x), f(x.y, y.y, z.y)}; };
  const auto bits = [&](auto f) {
    each([&](float p, float q, int32_t azp) { return __uint_as_float(f(p, q, azp)); });
  };
  switch (op) {
    case Op::div: each([](float p, float q, int32_t) { return __fdiv_rn(p, q); }); break;
    case Op::sqrt: each([](float p, float, int32_t) { return __fsqrt_rn(p); }); break;
#define FUNCTION(name, function)                                                       \
  case Op::name:                                                                       \
    each([](float p, float, int32_t) { return functions::function<FunctionOps>(p); }); \
    break
      FUNCTION(silu, silu);
      FUNCTION(gelu, gelu);
      FUNCTION(gelu_tanh, gelu_tanh);
      FUNCTION(exp, exp);
      FUNCTION(erf, erf_of);
      FUNCTION(sigmoid, sigmoid);
      FUNCTION(tanh, tanh);
#undef FUNCTION
    case Op::to_int8:
      bits([](float p, float q, int32_t) { return to_int8(p, q, 0, -127.0f); });
      break;
    case Op::to_int8_azp:
      bits([](float p, float q, int32_t azp) { return to_int8(p, q, azp, -128.0f); });
      break;
    case Op::to_e4m3:
      bits([](float p, float q, int32_t) {
        return pack_e4m3(within_e4m3(__fmul_rn(p, __frcp_rn(q))), 0.0f) & 0xff;
      });
      break;
    default: break;
  }
  return x;
}

// `count` elements that do not lie as a vector does, widened.
template <class Of>
__device__ __noinline__ Slot load_elements(const typename Of::storage* row, int64_t stride,
                                           int count) {
  Slot made{};
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    if (c < count) made.word[c] = __float_as_uint(Of::widen(row[c * stride], 0));
  }
  return made;
}

// A row of values rounded to a 16-bit dtype, two in a word.
template <DType dtype>
__device__ inline void narrow(const uint32_t (&x)[kCols], uint32_t (&words)[kCols]) {
#pragma unroll
  for (int i = 0; i < kCols; i += 2) {
    words[i / 2] = Format<dtype>::narrow(__uint_as_float(x[i]), __uint_as_float(x[i + 1]));
  }
}

struct Arguments {
  Values y, z;  // the second and third, if the operation has them
};

class Thread {
 public:
  // slots: `stride` apart. col: the thread's first column of B.
  __device__ Thread(const ProgramParams& p, Slot* slots, int stride, int64_t col)
      : p_(p),
        slots_(slots),
        stride_(stride),
        col_(col),
        inside_(static_cast<int>(min(p.n - col, int64_t{kCols}))) {}

  // Rows from `first` on, kRows at every multiple of `apart`.
  __device__ __forceinline__ void run(int64_t first, int64_t apart) {
    for (m_ = first - apart; m_ < p_.m; m_ += apart) {
      const bool once = m_ < first;  // what does not change from row to row
      rows_ = once ? 1 : static_cast<int>(min(p_.m - m_, int64_t{kRows}));
      if (!once)
        load_matrix<Format<DType::float32>>({p_.sums, DType::float32, p_.n, 1}, col_, inside_,
                                            acc_);
      const int end = once ? p_.once : p_.count;
      for (int i = once ? 0 : p_.once; i < end; ++i) evaluate(p_.steps[i]);
    }
  }

 private:
  // The thread's elements of an operand, widened. What is outside stands for others.
  __device__ __forceinline__ void load(const ProgramLeaf& leaf, Values& to) const {
    const EpilogueOperand& from = leaf.operand;
    with_dtype(from.dtype, [&](auto dtype) {
      using Of = Format<decltype(dtype)::value>;
      const bool half = leaf.columns == 2;
      if (leaf.columns == 0) {
        load_rows<Of>(from, to);
      } else {
        load_matrix<Of>(from, half ? col_ / 2 : col_, half ? inside_ / 2 : inside_, to);
      }
    });
  }

  // One element for all columns of a row.
  template <class Of, class T = typename Of::storage>
  __device__ __forceinline__ void load_rows(const EpilogueOperand& from, Values& to) const {
    const auto* row = static_cast<const T*>(from.data) + m_ * from.row_stride;
    T all[kRows];  // under way together
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      all[r] = *row;
      if (r + 1 < rows_) row += from.row_stride;
    }
#pragma unroll
    for (int i = 0; i < kRows * kCols; ++i) {
      to.of[i / kCols][i % kCols] = __float_as_uint(Of::widen(all[i / kCols], 0));
    }
  }

  template <class Of, class T = typename Of::storage>
  __device__ __forceinline__ void load_matrix(const EpilogueOperand& from, int64_t col, int count,
                                              Values& to) const {
    struct alignas(kCols * sizeof(T)) Vector {
      uint32_t word[kCols / Of::kPerWord];
    };
    const auto* row =
        static_cast<const T*>(from.data) + m_ * from.row_stride + col * from.col_stride;
    const auto skips = reinterpret_cast<uintptr_t>(row) | from.row_stride * sizeof(T);
    if (count == kCols && from.col_stride == 1 && skips % sizeof(Vector) == 0) {
      Vector all[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        all[r] = *reinterpret_cast<const Vector*>(row);
        if (r + 1 < rows_) row += from.row_stride;
      }
#pragma unroll
      for (int i = 0; i < kRows * kCols; ++i) {
        const int c = i % kCols;
        const uint32_t word = all[i / kCols].word[c / Of::kPerWord];
        to.of[i / kCols][c] = __float_as_uint(Of::widen(word, c % Of::kPerWord));
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Slot of = load_elements<Of>(row, from.col_stride, count);
#pragma unroll
        for (int c = 0; c < kCols; ++c) to.of[r][c] = of.word[c];
        if (r + 1 < rows_) row += from.row_stride;
      }
    }
  }

  __device__ __forceinline__ Slot& slot(int at) const { return slots_[at * stride_]; }

  __device__ __forceinline__ void fetch(Place from, Values& to) const {
    const auto fill = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kRows * kCols; ++i) to.of[i / kCols][i % kCols] = f(i / kCols, i % kCols);
    };
    switch (static_cast<Kept>(from.kept)) {
      case Kept::none: return;
      case Kept::last: to = last_; return;  // or is it
      case Kept::acc: to = acc_; return;
      case Kept::constant: {
        const auto word = static_cast<uint32_t>(p_.constants[from.at]);
        return fill([&](int, int) { return word; });
      }
      case Kept::columns: {
        const Slot of = slot(from.at);
        return fill([&](int, int c) { return of.word[c]; });
      }
      case Kept::rows: {
        const Slot of = slot(from.at);
        return fill([&](int r, int) { return of.word[r]; });
      }
      case Kept::each:
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const Slot of = slot(from.at + r);
#pragma unroll
          for (int c = 0; c < kCols; ++c) to.of[r][c] = of.word[c];
        }
    }
  }

  // The last value, which is the first argument of the next step, or that is fetched there.
  __device__ __forceinline__ void keep(Place to) const {
    const auto& x = last_.of;
    switch (static_cast<Kept>(to.kept)) {
      case Kept::columns: slot(to.at) = {x[0][0], x[0][1], x[0][2], x[0][3]}; return;
      case Kept::rows: slot(to.at) = {x[0][0], x[1][0], x[2][0], x[3][0]}; return;
      case Kept::each:
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          slot(to.at + r) = {x[r][0], x[r][1], x[r][2], x[r][3]};
        }
        return;
      default: return;
    }
  }

  // kSize columns of D.
  template <int kSize>
  __device__ __forceinline__ void write(const ProgramOutput& to, const Values& x) const {
    const int64_t columns = p_.n / p_.columns, first = m_ * columns + col_ / p_.columns;
    const int count = inside_ / p_.columns;
    const bool vectors = columns % kSize == 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows_) break;
      const int64_t at = first + r * columns;
      uint32_t words[kCols] = {};
      if (is_8_bit(to.dtype)) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) words[0] |= (x.of[r][i] & 0xff) << 8 * i;
        detail::store_words<kSize>(static_cast<uint8_t*>(to.d) + at, words, count, vectors);
      } else if (to.dtype == DType::float32) {
        detail::store_words<kSize>(static_cast<uint32_t*>(to.d) + at, x.of[r], count, vectors);
      } else {
        with_dtype16(to.dtype, [&](auto dtype) { narrow<decltype(dtype)::value>(x.of[r], words); });
        detail::store_words<kSize>(static_cast<uint16_t*>(to.d) + at, words, count, vectors);
      }
    }
  }

  // last = f(last, y, z), of bits.
  template <class F>
  __device__ __forceinline__ void each(const Arguments& by, const F& f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        last_.of[r][c] = f(last_.of[r][c], by.y.of[r][c], by.z.of[r][c]);
      }
    }
  }
  template <class F>
  __device__ __forceinline__ void real(const Arguments& by, const F& f) {
    each(by, [&](uint32_t x, uint32_t y, uint32_t z) {
      return __float_as_uint(f(__uint_as_float(x), __uint_as_float(y), __uint_as_float(z)));
    });
  }
  template <class F>
  __device__ __forceinline__ void whole(const Arguments& by, const F& f) {
    each(by, [&](uint32_t x, uint32_t y, uint32_t) {
      return static_cast<uint32_t>(f(static_cast<int32_t>(x), static_cast<int32_t>(y)));
    });
  }
  template <class F>
  __device__ __forceinline__ void test(const Arguments& by, const F& f) {
    each(by, [&](uint32_t x, uint32_t y, uint32_t) {
      return static_cast<uint32_t>(f(__uint_as_float(x), __uint_as_float(y)));
    });
  }
  template <DType dtype>
  __device__ __forceinline__ void round_through() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint32_t words[kCols];
      narrow<dtype>(last_.of[r], words);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        last_.of[r][c] = __float_as_uint(Format<dtype>::widen(words[c / 2], c % 2));
      }
    }
  }
  __device__ __forceinline__ void of_pairs(int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      last_.of[r][0] = last_.of[r][first], last_.of[r][1] = last_.of[r][2 + first];
    }
  }
  __device__ __forceinline__ void call(Op op, const Arguments& by) {
#pragma unroll
    for (int i = 0; i < kRows * kCols; i += 2) {
      const int r = i / kCols, c = i % kCols;
      const auto two = [&](const Values& v) {
        return float2{__uint_as_float(v.of[r][c]), __uint_as_float(v.of[r][c + 1])};
      };
      const int2 azps = {static_cast<int>(by.z.of[r][c]), static_cast<int>(by.z.of[r][c + 1])};
      const float2 made = slowly(op, two(last_), two(by.y), azps);
      last_.of[r][c] = __float_as_uint(made.x), last_.of[r][c + 1] = __float_as_uint(made.y);
    }
  }

  __device__ __forceinline__ void evaluate(const ProgramStep& step);

  const ProgramParams& p_;
  Slot* const slots_;
  const int stride_;
  const int64_t col_;
  const int inside_;  // of the columns
  int64_t m_;
  int rows_;
  Values acc_, last_;
};

__device__ __forceinline__ void Thread::evaluate(const ProgramStep& step) {
  Arguments by;
  fetch(step.from[1], by.y);
  fetch(step.from[2], by.z);
  fetch(step.from[0], last_);
  if (step.op == kWriteStep) {
    if (p_.columns == 1) return write<kCols>(p_.outputs[step.leaf], last_);
    return write<kCols / 2>(p_.outputs[step.leaf], last_);
  }
  switch (step.op) {
    case Op::operand: load(p_.leaves[step.leaf], last_); break;
    case Op::add_int: each(by, [](uint32_t p, uint32_t q, uint32_t) { return p + q; }); break;
    case Op::sub_int: each(by, [](uint32_t p, uint32_t q, uint32_t) { return p - q; }); break;
    case Op::mul_int: each(by, [](uint32_t p, uint32_t q, uint32_t) { return p * q; }); break;
    case Op::neg_int: each(by, [](uint32_t p, uint32_t, uint32_t) { return 0u - p; }); break;
    case Op::abs_int:
      each(by, [](uint32_t p, uint32_t, uint32_t) { return p >> 31 ? 0u - p : p; });
      break;
    case Op::min_int: whole(by, [](int32_t p, int32_t q) { return p < q ? p : q; }); break;
    case Op::max_int: whole(by, [](int32_t p, int32_t q) { return p > q ? p : q; }); break;
    case Op::less_int: whole(by, [](int32_t p, int32_t q) { return p < q; }); break;
    case Op::at_most_int: whole(by, [](int32_t p, int32_t q) { return p <= q; }); break;
    case Op::equal_int: whole(by, [](int32_t p, int32_t q) { return p == q; }); break;
    case Op::where_int:
    case Op::where: each(by, [](uint32_t t, uint32_t p, uint32_t q) { return t ? p : q; }); break;
    case Op::to_float:
      each(by, [](uint32_t p, uint32_t, uint32_t) {
        return __float_as_uint(__int2float_rn(static_cast<int32_t>(p)));
      });
      break;
    case Op::to_int:  // the instruction saturates, and makes 0 of a NaN
      each(by, [](uint32_t p, uint32_t, uint32_t) {
        return static_cast<uint32_t>(__float2int_rn(__uint_as_float(p)));
      });
      break;
    case Op::add: real(by, [](float p, float q, float) { return __fadd_rn(p, q); }); break;
    case Op::sub: real(by, [](float p, float q, float) { return __fsub_rn(p, q); }); break;
    case Op::mul: real(by, [](float p, float q, float) { return __fmul_rn(p, q); }); break;
    case Op::fma: real(by, [](float p, float q, float s) { return __fmaf_rn(p, q, s); }); break;
    case Op::neg: each(by, [](uint32_t p, uint32_t, uint32_t) { return p ^ 0x80000000u; }); break;
    case Op::abs: each(by, [](uint32_t p, uint32_t, uint32_t) { return p & 0x7fffffffu; }); break;
    case Op::min: real(by, [](float p, float q, float) { return p < q || p != p ? p : q; }); break;
    case Op::max: real(by, [](float p, float q, float) { return p > q || p != p ? p : q; }); break;
    case Op::less: test(by, [](float p, float q) { return p < q; }); break;
    case Op::at_most: test(by, [](float p, float q) { return p <= q; }); break;
    case Op::equal: test(by, [](float p, float q) { return p == q; }); break;
    case Op::relu:
      real(by, [](float p, float, float) { return functions::relu<FunctionOps>(p); });
      break;
    case Op::to_bfloat16: round_through<DType::bfloat16>(); break;
    case Op::to_float16: round_through<DType::float16>(); break;
    case Op::gate: of_pairs(0); break;
    case Op::value: of_pairs(1); break;
    default: call(step.op, by); break;
  }
  keep(step.to);
}

}  // namespace program
}  // namespace scaled_mm::cuda
