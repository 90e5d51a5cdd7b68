// The epilogue of four neighbouring channels of one token, and their store.
#pragma once

#include "cuda/common/lower.cuh"
#include "cuda/common/store.cuh"
#include "problems/int8.h"

namespace scaled_mm::cuda {

struct Destination {
  Output out;   // vectors: of what four channels make
  int64_t ldd;  // in elements: columns of D
};

// `acc`: the sums of channels `channel` to `channel` + 3, of which `inside` are there; `channel` is
// even. get(leaf, e): the operand's value for the e-th of them.
template <class E, class Get>
__device__ inline void finish_four(const Destination& to, const int32_t (&acc)[4], int64_t token,
                                   int64_t channel, int inside, const Get& get) {
  using Value = decltype(Lower<E>::at(0, [&](auto leaf) { return get(leaf, 0); }));
  Value value[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    value[e] = Lower<E>::at(acc[e], [&](auto leaf) { return get(leaf, e); });
  }
  if constexpr (epilogue::columns_of<E> == 2) {
    const float pair[2] = {Lower<E>::join_columns(value[0], value[1]),
                           Lower<E>::join_columns(value[2], value[3])};
    store_row(to.out, token * to.ldd + channel / 2, inside / 2, pair);
  } else {
    store_row(to.out, token * to.ldd + channel, inside, value);
  }
}

template <class E>
Destination destination(const Int8Problem& p) {
  const int64_t columns = p.size.out_columns();
  return {{p.d, p.size.out_dtype, columns % (4 / epilogue::columns_of<E>) == 0}, columns};
}

}  // namespace scaled_mm::cuda
