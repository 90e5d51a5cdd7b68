// An epilogue's type (epilogue/epilogues.h) lowered to device code: operations that round as the
// bit contract says, the expression as a function of one element's accumulator and operands, and
// the operands of a tile of D staged in shared memory. What is particular to a generation of
// CUTLASS is in its own lower.h.
#pragma once

#include <iterator>
#include <type_traits>

#include "cuda/common/formats.cuh"
#include "cuda/common/load_if.cuh"
#include "epilogue/epilogues.h"

namespace scaled_mm::cuda {

// --- operations: one rounding each, never contracted --------------------------------------------

__device__ inline float apply(epilogue::ToFloat, int32_t x) { return __int2float_rn(x); }
__device__ inline float apply(epilogue::Add, float x, float y) { return __fadd_rn(x, y); }
__device__ inline float apply(epilogue::Mul, float x, float y) { return __fmul_rn(x, y); }
__device__ inline float apply(epilogue::Fma, float x, float y, float z) {
  return __fmaf_rn(x, y, z);
}
__device__ inline int32_t apply(epilogue::Mul, int32_t x, int32_t y) {
  return static_cast<int32_t>(static_cast<uint32_t>(x) * static_cast<uint32_t>(y));
}
__device__ inline int32_t apply(epilogue::Sub, int32_t x, int32_t y) {
  return static_cast<int32_t>(static_cast<uint32_t>(x) - static_cast<uint32_t>(y));
}

// --- the expression ------------------------------------------------------------------------------

template <class... Ls>
struct Leaves {
  static constexpr int count = sizeof...(Ls);
  static constexpr bool has_full = ((Ls::axis == epilogue::Axis::Full) || ...);
};
template <class... As>
Leaves<As...> concat(Leaves<As...>);
template <class... As, class... Bs, class... Rest>
auto concat(Leaves<As...>, Leaves<Bs...>, Rest... rest) {
  return concat(Leaves<As..., Bs...>{}, rest...);
}

// Lower<E>::at(acc, get): the value of E at one element, where get(leaf) is an operand's value.
// Lower<E>::List: the operands that E reads.
template <class E>
struct Lower;

template <class T>
struct Lower<epilogue::Accumulator<T>> {
  using List = Leaves<>;
  template <class Get>
  __device__ static T at(T acc, const Get&) {
    return acc;
  }
};

template <Operand Id, class T, epilogue::Axis A, bool ScalarOk>
struct Lower<epilogue::Leaf<Id, T, A, ScalarOk>> {
  using L = epilogue::Leaf<Id, T, A, ScalarOk>;
  using List = Leaves<L>;
  template <class Acc, class Get>
  __device__ static T at(Acc, const Get& get) {
    return get(L{});
  }
};

template <class Op, class... Args>
struct Lower<epilogue::Apply<Op, Args...>> {
  using List = decltype(concat(typename Lower<Args>::List{}...));
  template <class Acc, class Get>
  __device__ static auto at(Acc acc, const Get& get) {
    return apply(Op{}, Lower<Args>::at(acc, get)...);
  }
};

// at() gives the value before an ending, which is for a kernel to add (finish.cuh).
template <class E>
struct Lower<epilogue::Activated<E>> : Lower<E> {};
template <class E>
struct Lower<epilogue::Gated<E>> : Lower<E> {};
template <class E>
struct Lower<epilogue::Quantised<E>> : Lower<E> {
  using List =
      decltype(concat(typename Lower<E>::List{}, Leaves<epilogue::OutScale, epilogue::OutAzp>{}));
};

// --- operands ------------------------------------------------------------------------------------

// Element (m, n) of an operand, widened; its neutral value where it is absent.
template <class L>
__device__ inline typename L::value load_operand(const EpilogueOperand& operand, int64_t m,
                                                 int64_t n) {
  using T = typename L::value;
  if constexpr (epilogue::MayBeAbsent<L::id>) {
    if (operand.data == nullptr) return T(epilogue::Neutral<L::id>::value);
  }
  if constexpr (std::is_same_v<T, float>) {
    return load_float(operand, m, n);
  } else {
    return static_cast<const T*>(operand.data)[m * operand.row_stride + n * operand.col_stride];
  }
}

// The bytes of kSize neighbouring elements: they are a vector where they lie at a multiple of it.
template <DType dtype, int kSize>
inline constexpr int vector_bytes = kSize * sizeof(typename Format<dtype>::storage);

// The elements of a vector, widened.
template <DType dtype, int kSize>
__device__ inline void load_vector(const typename Format<dtype>::storage* from,
                                   float (&value)[kSize]) {
  using Of = Format<dtype>;
  constexpr int kBytes = vector_bytes<dtype, kSize>;
  struct alignas(kBytes < 16 ? kBytes : 16) Vector {
    uint32_t word[kBytes / 4];
  };
  const Vector all = *reinterpret_cast<const Vector*>(from);
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    value[i] = Of::widen(all.word[i / Of::kPerWord], i % Of::kPerWord);
  }
}

// Elements (m, n) to (m, n + kSize - 1) of a matrix operand, widened, `count` of which are there.
// All at once where they are a vector.
template <class L, int kSize>
__device__ inline void load_elements(const EpilogueOperand& operand, int64_t m, int64_t n,
                                     int count, float (&value)[kSize]) {
  static_assert(L::axis == epilogue::Axis::Full);
  with_dtype(operand.dtype, [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    using Of = Format<kDType>;
    const auto* const from = static_cast<const typename Of::storage*>(operand.data) +
                             m * operand.row_stride + n * operand.col_stride;
    if (count >= kSize && reinterpret_cast<uintptr_t>(from) % vector_bytes<kDType, kSize> == 0) {
      load_vector<kDType>(from, value);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) value[i] = i < count ? Of::widen(from[i], 0) : 0.0f;
    }
  });
}

// The same of kRows rows, `step` apart, `rows` rows of the matrix being there from m on. Vectors
// are under way together; what stands for a row that is not there is unspecified.
template <class L, int kRows, int kSize>
__device__ inline void load_rows(const EpilogueOperand& operand, int64_t m, int rows, int step,
                                 int64_t n, int count, float (&value)[kRows][kSize]) {
  const bool vectors = with_dtype(operand.dtype, [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    using Storage = typename Format<kDType>::storage;
    const auto* const from =
        static_cast<const Storage*>(operand.data) + m * operand.row_stride + n * operand.col_stride;
    if (count < kSize || operand.row_stride % kSize != 0 ||
        reinterpret_cast<uintptr_t>(from) % vector_bytes<kDType, kSize> != 0) {
      return false;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      load_vector<kDType>(from + min(r * step, rows - 1) * operand.row_stride, value[r]);
    }
    return true;
  });
  if (vectors) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    load_elements<L>(operand, m + min(r * step, rows - 1), n, count, value[r]);
  }
}

// An element of an operand on its way from memory: a thread sends for all that it wants before it
// takes the first value.
template <class L>
class Arriving {
 public:
  using T = typename L::value;

  // Element (m, n), if it is `inside` D. The value of others is neutral: a scale of 0 would take
  // the quantiser's long way.
  __device__ void send_for(const EpilogueOperand& operand, bool inside, int64_t m, int64_t n) {
    if constexpr (epilogue::MayBeAbsent<L::id>) {
      const T neutral = T(epilogue::Neutral<L::id>::value);
      word_ = __builtin_bit_cast(uint32_t, neutral);
      inside = inside && operand.data != nullptr;
    }
    const int64_t at = m * operand.row_stride + n * operand.col_stride;
    const bool is_half = kMayBeHalf && operand.dtype != DType::float32;
    const void* from = static_cast<const char*>(operand.data) + (is_half ? 2 * at : 4 * at);
    load_if<4>(inside && !is_half, from, &word_);
    if constexpr (kMayBeHalf) load_if<2>(inside && is_half, from, &half_);
  }

  // Widened.
  __device__ T value(DType dtype) const {
    if constexpr (kMayBeHalf) {
      if (half_ != kNone) {
        return dtype == DType::float16 ? Format<DType::float16>::widen(half_, 0)
                                       : Format<DType::bfloat16>::widen(half_, 0);
      }
    }
    return __builtin_bit_cast(T, word_);
  }

 private:
  static_assert(sizeof(T) == 4);
  // Scales are float32 (check_operand_dtype).
  static constexpr bool kMayBeHalf = std::is_same_v<T, float> && L::id != Operand::scale_a &&
                                     L::id != Operand::scale_b && L::id != Operand::out_scale;
  static constexpr uint32_t kNone = 1 << 16;

  uint32_t word_ = 0, half_ = kNone;  // the one of them that the dtype has
};

// How many elements of an operand belong to `rows` x `cols` elements of D, and which of two
// numbers, of a row and of a column, counts along the operand. A Full operand is a matrix: it is
// not staged.
template <epilogue::Axis A>
struct Along;
template <>
struct Along<epilogue::Axis::Row> {
  static constexpr int64_t pick(int64_t, int64_t col) { return col; }
};
template <>
struct Along<epilogue::Axis::Col> {
  static constexpr int64_t pick(int64_t row, int64_t) { return row; }
};
template <>
struct Along<epilogue::Axis::Full> {
  static constexpr int64_t pick(int64_t, int64_t) { return 0; }
};

struct SameRow {
  template <class L>
  __device__ int64_t operator()(L, int64_t row) const {
    return row;
  }
};

// The operands of kRows x kCols elements of D, widened, one 32-bit word each:
//
//   | leaf 0: kRows or kCols words | leaf 1 | ...
template <class List, int kRows, int kCols>
struct StagedOperands;

template <class... Ls, int kRows, int kCols>
struct StagedOperands<Leaves<Ls...>, kRows, kCols> {
  template <class L>
  static constexpr int length = static_cast<int>(Along<L::axis>::pick(kRows, kCols));
  template <class L>
  static constexpr int offset() {
    int words = 0;
    bool found = false;
    ((found |= std::is_same_v<L, Ls>, words += found ? 0 : length<Ls>), ...);
    return words;
  }

  alignas(16) uint32_t words[(length<Ls> + ... + 1)];

  template <class L>
  __device__ typename L::value* of(L) {
    return reinterpret_cast<typename L::value*>(words + offset<L>());
  }
  template <class L>
  __device__ const typename L::value* of(L) const {
    return reinterpret_cast<const typename L::value*>(words + offset<L>());
  }
  // The element of a staged operand for row `row` and column `col` of the tile.
  template <class L>
  __device__ typename L::value at(L leaf, int row, int col) const {
    static_assert(L::axis != epilogue::Axis::Full, "a matrix is read where it lies");
    return of(leaf)[Along<L::axis>::pick(row, col)];
  }

  // Every thread of `threads` takes part; they must meet before the operands are read.
  // element(leaf, row): the number that a row of D has in the operand.
  template <class Operands, class Element = SameRow>
  __device__ void load(const Operands& operands, int64_t row, int64_t col, int64_t m, int64_t n,
                       int thread, int threads, const Element& element = {}) {
    constexpr int longest = kRows > kCols ? kRows : kCols;
#pragma unroll 1  // or registers for several turns would be wanted at once
    for (int i = thread; i < longest; i += threads) {
      struct : Arriving<Ls>... {
      } arriving;
      const auto send_for = [&](auto leaf) {
        using L = decltype(leaf);
        const bool inside =
            i < length<L> && i + Along<L::axis>::pick(row, col) < Along<L::axis>::pick(m, n);
        static_cast<Arriving<L>&>(arriving).send_for(operands[static_cast<int>(L::id)], inside,
                                                     inside ? element(leaf, row + i) : 0, col + i);
      };
      (send_for(Ls{}), ...);
      const auto put = [&](auto leaf) {
        using L = decltype(leaf);
        const DType dtype = operands[static_cast<int>(L::id)].dtype;
        if (i < length<L>) of(leaf)[i] = static_cast<Arriving<L>&>(arriving).value(dtype);
      };
      (put(Ls{}), ...);
    }
  }
};

// Staged operands of a few elements of a tile, in registers: those of kRows rows and kCols columns.
template <class L, int kRows, int kCols>
struct HeldOperand {
  static constexpr epilogue::Axis axis = L::axis;
  typename L::value value[axis == epilogue::Axis::Row ? kCols : kRows];

  // place(i): the row or the column that the i-th of them is.
  template <class Staged, class Place>
  __device__ void load(const Staged& staged, const Place& place) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(std::size(value)); ++i) {
      value[i] = staged.of(L{})[place(i)];
    }
  }
};
template <class List, int kRows, int kCols>
struct HeldOperands;
template <class... Ls, int kRows, int kCols>
struct HeldOperands<Leaves<Ls...>, kRows, kCols> : HeldOperand<Ls, kRows, kCols>... {
  // Those along an axis.
  template <epilogue::Axis kAxis, class Staged, class Place>
  __device__ void load(const Staged& staged, const Place& place) {
    const auto load_one = [&](auto& held) {
      if constexpr (std::decay_t<decltype(held)>::axis == kAxis) held.load(staged, place);
    };
    (load_one(static_cast<HeldOperand<Ls, kRows, kCols>&>(*this)), ...);
  }
  template <class L>
  __device__ typename L::value at(L, int row, int col) const {
    return HeldOperand<L, kRows, kCols>::value[Along<L::axis>::pick(row, col)];
  }
};

}  // namespace scaled_mm::cuda
