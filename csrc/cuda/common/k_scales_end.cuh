// How products with scales along K end (docs/numerics.md, section 8): the sum over groups is a
// float, and what is behind it that of scaled_mm without scale_b and zero points.
#pragma once

#include <algorithm>

#include "cuda/common/finish.cuh"
#include "epilogue/registry.h"
#include "problems/k_scales.h"

namespace scaled_mm::cuda {

// The epilogue of the sum over groups that stands for one of scaled_mm's.
template <class E>
struct OfGroups;
template <>
struct OfGroups<epilogue::ScaledEpilogue> {
  using type = epilogue::Apply<epilogue::Fma, epilogue::ScaleA, epilogue::Accumulator<float>,
                               epilogue::Bias>;
};
using ScaledGroups = OfGroups<epilogue::ScaledEpilogue>::type;
template <>
struct OfGroups<epilogue::ScaledEpilogueResidual> {
  using type = epilogue::Apply<epilogue::Add, ScaledGroups, epilogue::Residual>;
};
template <>
struct OfGroups<epilogue::ScaledEpilogueActivated> {
  using type = epilogue::Quantised<epilogue::Activated<ScaledGroups>>;
};
template <>
struct OfGroups<epilogue::ScaledEpilogueGated> {
  using type = epilogue::Quantised<epilogue::Gated<ScaledGroups>>;
};

// use(Type<E>) with the epilogue of the sum over groups. They have no zero points of their own.
template <class Use>
constexpr void with_groups_epilogue(epilogue::Id id, const Use& use) {
  using epilogue::Id;
  switch (id) {
    case Id::ScaledEpilogueResidual: return use(OfGroups<epilogue::ScaledEpilogueResidual>{});
    case Id::ScaledEpilogueActivated: return use(OfGroups<epilogue::ScaledEpilogueActivated>{});
    case Id::ScaledEpilogueGated: return use(OfGroups<epilogue::ScaledEpilogueGated>{});
    default: return use(OfGroups<epilogue::ScaledEpilogue>{});
  }
}

struct GroupsEnd {
  epilogue::Id epilogue;
  int n;                                   // columns of B
  EpilogueOperand operands[kNumOperands];  // scale_a without data is 1
  Destination to;
};

inline GroupsEnd groups_end(const Int8Problem& p) {
  GroupsEnd end{p.size.epilogue, static_cast<int>(p.size.n), {}, {}};
  std::copy(std::begin(p.operands), std::end(p.operands), end.operands);
  with_groups_epilogue(p.size.epilogue,
                       [&](auto e) { end.to = destination<typename decltype(e)::type>(p); });
  return end;
}

namespace detail {

template <class E>
__device__ inline void finish_groups(const GroupsEnd& end, const float (&sum)[4], int64_t token,
                                     int64_t channel, int inside) {
  float matrix[4];  // the elements of a matrix operand
  if constexpr (Lower<E>::List::has_full) {
    load_elements<epilogue::Residual>(end.operands[static_cast<int>(Operand::residual)], token,
                                      channel, inside, matrix);
  }
  const auto get = [&](auto leaf, int e) {
    using L = decltype(leaf);
    const EpilogueOperand& operand = end.operands[static_cast<int>(L::id)];
    const int64_t at = min(channel + e, int64_t{end.n} - 1);  // what is beyond is not stored
    if constexpr (L::axis == epilogue::Axis::Full) {
      return matrix[e];
    } else if constexpr (L::id == Operand::scale_a) {
      return operand.data ? load_operand<L>(operand, token, at) : 1.0f;
    } else {
      return load_operand<L>(operand, token, at);
    }
  };
  constexpr int kColumns = epilogue::columns_of(E::form);
  float value[4], made[4 / kColumns];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    value[e] = Lower<E>::at(sum[e], [&](auto leaf) { return get(leaf, e); });
  }
  activate<E>(end.to.function, value, made);
  store_ended<E>(end.to, token * end.to.ldd + channel / kColumns, inside / kColumns, made,
                 [&](auto leaf) { return get(leaf, 0); });
}

}  // namespace detail

// Four neighbouring columns of B of a token, of which the first is there: the epilogue of their
// sums, and its store. `channel` is a multiple of 4. The epilogue is chosen here and not around a
// loop of these: what its loop would keep in registers are too many.
__device__ inline void finish_groups(const GroupsEnd& end, const float (&sum)[4], int64_t token,
                                     int64_t channel) {
  with_groups_epilogue(end.epilogue, [&](auto e) {
    detail::finish_groups<typename decltype(e)::type>(end, sum, token, channel,
                                                      static_cast<int>(end.n - channel));
  });
}

}  // namespace scaled_mm::cuda
