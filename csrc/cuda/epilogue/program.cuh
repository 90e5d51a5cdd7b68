// The interpreter of a program, for one thread: it has kProgramColumns neighbouring columns of B,
// and kProgramRows rows at a time, step after step. All threads take the same branches.
#pragma once

#include "cuda/epilogue/finish.cuh"
#include "cuda/program.h"

namespace scaled_mm::cuda {
namespace program {

using Op = StepOp;
constexpr int kRows = kProgramRows, kCols = kProgramColumns;

// A row of a thread's elements: the bits of a float32, an int32, or a truth value for each. Of
// pairs of columns the first half.
struct alignas(16) Slot {
  uint32_t word[kCols];
};
struct Values {
  Slot row[kRows];
};

__device__ inline uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ inline uint32_t bits_of(bool x) { return x; }
__device__ inline float least(float x, float y) { return x < y || x != x ? x : y; }
__device__ inline float greatest(float x, float y) { return x > y || x != x ? x : y; }

// clamp(rne(RN(x / scale)) + azp, lowest, 127)
__device__ inline uint32_t to_int8(float x, float scale, int32_t azp, float lowest) {
  Quantizer by = {};
  by.divisor = scale, by.azp = azp, by.lowest = lowest;
  return static_cast<uint32_t>(static_cast<int32_t>(by.exact(x)));
}

// An operation of many instructions on a row.
__device__ __forceinline__ void slowly(Op op, Slot& x, const Slot& y, const Slot& z) {
  const auto bits = [&](auto f) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      x.word[c] = f(__uint_as_float(x.word[c]), __uint_as_float(y.word[c]),
                    static_cast<int32_t>(z.word[c]));
    }
  };
  const auto real = [&](auto f) {
    bits([&](float p, float q, int32_t) { return __float_as_uint(f(p, q)); });
  };
  switch (op) {
    case Op::div: real([](float p, float q) { return __fdiv_rn(p, q); }); break;
    case Op::sqrt: real([](float p, float) { return __fsqrt_rn(p); }); break;
#define OP(...)
#define FUNCTION(number, name, ...) \
  case Op::name: real([](float p, float) { return functions::name<FunctionOps>(p); }); break;
#include "epilogue/program.def"
#undef OP
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
}

// A row of values rounded to a 16-bit dtype, two in a word.
template <DType dtype>
__device__ inline void narrow(const uint32_t (&x)[kCols], uint32_t (&words)[kCols]) {
#pragma unroll
  for (int i = 0; i < kCols; i += 2) {
    words[i / 2] = Format<dtype>::narrow(__uint_as_float(x[i]), __uint_as_float(x[i + 1]));
  }
}

class Thread {
 public:
  // slots: the thread's own. col: its first column of B.
  __device__ Thread(const ProgramParams& p, Slot* slots, int col)
      : p_(p), slots_(slots), col_(col) {}

  // Rows from first + mine on, kRows at every multiple of `apart`; first and apart are the block's,
  // and the compiler sees that all threads take the same branches. What is the same for every row
  // is made with the first.
  __device__ __forceinline__ void run(uint32_t first, uint32_t mine, uint32_t apart) {
    int i = 0;
    for (; first < p_.m; first += apart, i = p_.once) {
      rows_ = static_cast<int>(min(p_.m - first - mine, int64_t{kRows}));
      m_ = static_cast<uint32_t>(min(int64_t{first} + mine, p_.m - 1));
      for (; i < p_.count; ++i) {
        asm volatile("" : "+r"(col_));  // what follows from it is not kept in registers
        evaluate(p_.steps[i]);
      }
    }
  }

 private:
  // Of the columns.
  __device__ int inside() const { return static_cast<int>(min(p_.n - col_, int64_t{kCols})); }

  // x: the thread's elements of an operand, widened. What is outside stands for others.
  __device__ __forceinline__ void load(const ProgramLeaf& leaf) {
    if (leaf.columns == 0) return load_column(leaf, last_);
    with_dtype(leaf.operand.dtype, [&](auto dtype) {
      const bool half = leaf.columns == 2;
      load_matrix<Format<decltype(dtype)::value>>(leaf.operand, half ? col_ / 2 : col_,
                                                  half ? inside() / 2 : inside());
    });
  }

  // One element for all columns of a row.
  __device__ __forceinline__ void load_column(const ProgramLeaf& leaf, Values& x) const {
    const EpilogueOperand& from = leaf.operand;
    with_dtype(from.dtype, [&](auto dtype) {
      using Of = Format<decltype(dtype)::value>;
      using T = typename Of::storage;
      const auto* row = static_cast<const T*>(from.data) + m_ * from.row_stride;
      T all[kRows];  // under way together
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        all[r] = *row;
        row += r + 1 < rows_ ? from.row_stride : 0;
      }
#pragma unroll
      for (int i = 0; i < kRows * kCols; ++i) {
        x.row[i / kCols].word[i % kCols] = __float_as_uint(Of::widen(all[i / kCols], 0));
      }
    });
  }

  template <class Of, class T = typename Of::storage>
  __device__ __forceinline__ void load_matrix(const EpilogueOperand& from, int col, int count) {
    // Under way together, as above.
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
        row += r + 1 < rows_ ? from.row_stride : 0;
      }
      set([&](int r, int c) {
        return __float_as_uint(Of::widen(all[r].word[c / Of::kPerWord], c % Of::kPerWord));
      });
    } else {
      row_by_row({}, [&](int r, Slot& x, const Slot&) {
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
          if (c < count) x.word[c] = __float_as_uint(Of::widen(row[c * from.col_stride], 0));
        }
        if (r + 1 < rows_) row += from.row_stride;
      });
    }
  }

  // A value that is kept: it is read, last becomes one, and a row of it.
  __device__ __forceinline__ void read(Place at, Values& x) const {
    const Slot* const from = slots_ + at.at;
    x.row[0] = from[0];
    if (at.rows == 1) {
#pragma unroll
      for (int r = 1; r < kRows; ++r) x.row[r] = x.row[0];
    } else {
#pragma unroll
      for (int r = 1; r < kRows; ++r) x.row[r] = from[r];
    }
  }
  __device__ __forceinline__ void keep(Place at) const {
    Slot* const to = slots_ + at.at;
    to[0] = last_.row[0];
    if (at.rows == 1) return;
#pragma unroll
    for (int r = 1; r < kRows; ++r) to[r] = last_.row[r];
  }
  __device__ __forceinline__ const Slot& slot(Place at, int r) const {
    return slots_[at.at + (at.rows > 1 ? r : 0)];
  }

  // last = f(r, c), of bits.
  template <class F>
  __device__ __forceinline__ void set(const F& f) {
#pragma unroll
    for (int i = 0; i < kRows * kCols; ++i) {
      last_.row[i / kCols].word[i % kCols] = f(i / kCols, i % kCols);
    }
  }

  // kSize columns of D; and in elements of type T, whose words pack(x, words) makes of a row.
  template <int kSize>
  __device__ __forceinline__ void write(const ProgramOutput& to) const {
    if (is_8_bit(to.dtype)) {
      write_as<kSize, uint8_t>(to, [](const auto& x, auto& words) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) words[0] |= (x[i] & 0xff) << 8 * i;
      });
    } else if (to.dtype == DType::float32) {
      write_as<kSize, uint32_t>(to, [](const auto& x, auto& words) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) words[i] = x[i];
      });
    } else {
      with_dtype16(to.dtype, [&](auto dtype) {
        write_as<kSize, uint16_t>(to, narrow<decltype(dtype)::value>);
      });
    }
  }
  template <int kSize, class T, class Pack>
  __device__ __forceinline__ void write_as(const ProgramOutput& to, const Pack& pack) const {
    constexpr int kPer = kCols / kSize;
    const int64_t columns = p_.n / kPer;
    auto* at = static_cast<T*>(to.d) + m_ * columns + col_ / kPer;
    const int count = inside() / kPer;
    const bool vectors = columns % kSize == 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r, at += columns) {
      if (r >= rows_) break;
      uint32_t words[kCols] = {};
      pack(last_.row[r].word, words);
      detail::store_words<kSize>(at, words, count, vectors);
    }
  }

  // f(r, row of x, row of y), where f is of many instructions: they are written out once.
  template <class F>
  __device__ __forceinline__ void row_by_row(Values y, const F& f) {
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      Slot x = last_.row[0];
      f(r, x, y.row[0]);
#pragma unroll
      for (int i = 1; i < kRows; ++i) last_.row[i - 1] = last_.row[i], y.row[i - 1] = y.row[i];
      last_.row[kRows - 1] = x;
    }
  }

  template <DType dtype>
  __device__ __forceinline__ void round_through() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      auto& x = last_.row[r].word;
      uint32_t words[kCols];
      narrow<dtype>(x, words);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        x[c] = __float_as_uint(Format<dtype>::widen(words[c / 2], c % 2));
      }
    }
  }
  __device__ __forceinline__ void of_pairs(int first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      auto& x = last_.row[r].word;
      x[0] = x[first], x[1] = x[2 + first];
    }
  }
  __device__ __forceinline__ void evaluate(const ProgramStep& by);

  const ProgramParams& p_;
  Slot* const slots_;
  int col_;
  uint32_t m_;
  int rows_;
  Values last_;
};

__device__ __forceinline__ void Thread::evaluate(const ProgramStep& by) {
  if (by.x.rows) {
    read(by.x, last_);
  } else if (by.load < by.kFirstConstant) {
    load(p_.leaves[by.load]);
  } else if (by.load != by.kNone) {
    const auto word = static_cast<uint32_t>(p_.constants[by.load - by.kFirstConstant]);
    set([&](int, int) { return word; });
  }
  Values y;
  if (by.y.rows) {
    read(by.y, y);
  } else if (by.column != by.kNone) {
    load_column(p_.leaves[by.column], y);
  }
  const auto bits = [&](auto f) {
    set([&](int r, int c) { return f(last_.row[r].word[c], y.row[r].word[c]); });
  };
  const auto whole = [&](auto f) {
    bits([&](uint32_t p, uint32_t q) {
      return static_cast<uint32_t>(f(static_cast<int32_t>(p), static_cast<int32_t>(q)));
    });
  };
  const auto real = [&](auto f) {
    bits(
        [&](uint32_t p, uint32_t q) { return bits_of(f(__uint_as_float(p), __uint_as_float(q))); });
  };
  const auto three = [&](auto f) {
    Values z;
    read(by.z, z);
    set([&](int r, int c) { return f(last_.row[r].word[c], y.row[r].word[c], z.row[r].word[c]); });
  };
  const auto three_real = [&](auto f) {
    three([&](uint32_t p, uint32_t q, uint32_t s) {
      return bits_of(f(__uint_as_float(p), __uint_as_float(q), __uint_as_float(s)));
    });
  };
  switch (by.op) {
    case Op::operand: break;
    case Op::sub_product:
      three([](uint32_t p, uint32_t q, uint32_t s) { return p - q * s; });
      break;
    case Op::mul_of_int:
      bits([](uint32_t p, uint32_t q) {
        return bits_of(__fmul_rn(__int2float_rn(static_cast<int32_t>(p)), __uint_as_float(q)));
      });
      break;
    case Op::mul_add:
      three_real([](float p, float q, float s) { return __fadd_rn(__fmul_rn(p, q), s); });
      break;
    case Op::clamp:
      three_real([](float p, float q, float s) { return least(greatest(p, q), s); });
      break;
    case Op::add_int: bits([](uint32_t p, uint32_t q) { return p + q; }); break;
    case Op::sub_int: bits([](uint32_t p, uint32_t q) { return p - q; }); break;
    case Op::mul_int: bits([](uint32_t p, uint32_t q) { return p * q; }); break;
    case Op::neg_int: bits([](uint32_t p, uint32_t) { return 0u - p; }); break;
    case Op::abs_int: bits([](uint32_t p, uint32_t) { return p >> 31 ? 0u - p : p; }); break;
    case Op::min_int: whole([](int32_t p, int32_t q) { return p < q ? p : q; }); break;
    case Op::max_int: whole([](int32_t p, int32_t q) { return p > q ? p : q; }); break;
    case Op::less_int: whole([](int32_t p, int32_t q) { return p < q; }); break;
    case Op::at_most_int: whole([](int32_t p, int32_t q) { return p <= q; }); break;
    case Op::equal_int: whole([](int32_t p, int32_t q) { return p == q; }); break;
    case Op::where_int:
    case Op::where: three([](uint32_t t, uint32_t p, uint32_t q) { return t ? p : q; }); break;
    case Op::to_float: whole([](int32_t p, int32_t) { return bits_of(__int2float_rn(p)); }); break;
    case Op::to_int:  // the instruction saturates, and makes 0 of a NaN
      bits([](uint32_t p, uint32_t) {
        return static_cast<uint32_t>(__float2int_rn(__uint_as_float(p)));
      });
      break;
    case Op::add: real([](float p, float q) { return __fadd_rn(p, q); }); break;
    case Op::sub: real([](float p, float q) { return __fsub_rn(p, q); }); break;
    case Op::mul: real([](float p, float q) { return __fmul_rn(p, q); }); break;
    case Op::fma: three_real([](float p, float q, float s) { return __fmaf_rn(p, q, s); }); break;
    case Op::neg: bits([](uint32_t p, uint32_t) { return p ^ 0x80000000u; }); break;
    case Op::abs: bits([](uint32_t p, uint32_t) { return p & 0x7fffffffu; }); break;
    case Op::min: real([](float p, float q) { return least(p, q); }); break;
    case Op::max: real([](float p, float q) { return greatest(p, q); }); break;
    case Op::less: real([](float p, float q) { return p < q; }); break;
    case Op::at_most: real([](float p, float q) { return p <= q; }); break;
    case Op::equal: real([](float p, float q) { return p == q; }); break;
    case Op::relu: real([](float p, float) { return functions::relu<FunctionOps>(p); }); break;
    case Op::to_bfloat16: round_through<DType::bfloat16>(); break;
    case Op::to_float16: round_through<DType::float16>(); break;
    case Op::gate: of_pairs(0); break;
    case Op::value: of_pairs(1); break;
    default:
      row_by_row(y, [&](int r, Slot& x, const Slot& q) { slowly(by.op, x, q, slot(by.z, r)); });
  }
  if (by.to.rows) keep(by.to);
  if (by.output == by.kNone) return;
  if (p_.columns == 1) return write<kCols>(p_.outputs[by.output]);
  write<kCols / 2>(p_.outputs[by.output]);
}

}  // namespace program
}  // namespace scaled_mm::cuda
