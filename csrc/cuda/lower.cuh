// An epilogue's type (epilogue/epilogues.h) lowered to device code, once for every kernel: the
// expression as a function of one element's accumulator and operands, the operands of a tile of D
// staged in shared memory, and the rounding to the output dtype.
#pragma once

#include "cuda/floats.cuh"
#include "cuda/product.h"
#include "epilogue/epilogues.h"

namespace scaled_mm::cuda {

// --- operations: one rounding each, never contracted --------------------------------------------

__device__ inline float apply(epilogue::ToFloat, int32_t x) { return __int2float_rn(x); }
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
};
template <class... As>
Leaves<As...> join(Leaves<As...>);
template <class... As, class... Bs, class... Rest>
auto join(Leaves<As...>, Leaves<Bs...>, Rest... rest) {
  return join(Leaves<As..., Bs...>{}, rest...);
}

// Lower<E>::at(acc, get): the value of E at one element, where get(leaf) is an operand's value.
// Lower<E>::List: the operands that E reads.
template <class E>
struct Lower;

template <>
struct Lower<epilogue::Acc> {
  using List = Leaves<>;
  template <class Get>
  __device__ static int32_t at(int32_t acc, const Get&) {
    return acc;
  }
};

template <Operand Id, class T, epilogue::Axis A, bool ScalarOk>
struct Lower<epilogue::Leaf<Id, T, A, ScalarOk>> {
  using L = epilogue::Leaf<Id, T, A, ScalarOk>;
  using List = Leaves<L>;
  template <class Get>
  __device__ static T at(int32_t, const Get& get) {
    return get(L{});
  }
};

template <class L>
struct Lower<epilogue::Optional<L>> : Lower<L> {};

template <class Op, class... Args>
struct Lower<epilogue::Apply<Op, Args...>> {
  using List = decltype(join(typename Lower<Args>::List{}...));
  template <class Get>
  __device__ static auto at(int32_t acc, const Get& get) {
    return apply(Op{}, Lower<Args>::at(acc, get)...);
  }
};

// --- the operands of a tile ----------------------------------------------------------------------

// Element i of an operand, widened. Absent ones are neutral: any epilogue that has room for a bias
// or a zero point gives the bits of one that has not.
template <class L>
__device__ inline typename L::value load_operand(const Vector& v, int64_t i) {
  if (v.data == nullptr) return epilogue::neutral<L>();
  if constexpr (std::is_same_v<typename L::value, float>) {
    return load_float(v, i);
  } else {
    return static_cast<const typename L::value*>(v.data)[i * v.stride];
  }
}

// The operands of kRows x kCols elements of D, widened, one 32-bit word each:
//
//   | leaf 0: kRows or kCols words | leaf 1 | ...
template <class List, int kRows, int kCols>
struct Staged;

template <class... Ls, int kRows, int kCols>
struct Staged<Leaves<Ls...>, kRows, kCols> {
  template <class L>
  static constexpr int length = L::axis == epilogue::Axis::Col ? kRows : kCols;
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

  // Every thread of `threads` takes part; they must meet before the operands are read. All loads
  // of a thread are under way before the first is stored.
  __device__ void load(const Operands& operands, int64_t row, int64_t col, int64_t m, int64_t n,
                       int thread, int threads) {
    constexpr int longest = kRows > kCols ? kRows : kCols;
    for (int i = thread; i < longest; i += threads) {
      const auto fetch = [&](auto leaf) {
        using L = decltype(leaf);
        const bool by_row = L::axis == epilogue::Axis::Col;
        const int64_t at = i + (by_row ? row : col);
        const bool inside = i < length<L> && at < (by_row ? m : n);
        const Vector& v = operands.of[static_cast<int>(L::id)];
        return inside ? load_operand<L>(v, at) : typename L::value(0);
      };
      const auto store = [&](auto leaf, auto value) {
        if (i < length<decltype(leaf)>) of(leaf)[i] = value;
      };
      [&](auto... values) { (store(Ls{}, values), ...); }(fetch(Ls{})...);
    }
  }
};

}  // namespace scaled_mm::cuda
