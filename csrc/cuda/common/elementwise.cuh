// The operations of the vocabulary on CUTLASS's fragments, for visitor trees.
#pragma once

#include <cutlass/array.h>

#include "cuda/epilogue/lower.cuh"

namespace scaled_mm::cuda {

// An operation on fragments, in the form that CUTLASS's compute nodes take.
template <class Op>
struct Elementwise {
  template <class>
  struct Function {
    template <class T, int kSize, class... Ts>
    CUTLASS_DEVICE auto operator()(const cutlass::Array<T, kSize>& first,
                                   const cutlass::Array<Ts, kSize>&... rest) const {
      cutlass::Array<decltype(apply(Op{}, first[0], rest[0]...)), kSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) result[i] = apply(Op{}, first[i], rest[i]...);
      return result;
    }
  };
};

}  // namespace scaled_mm::cuda
