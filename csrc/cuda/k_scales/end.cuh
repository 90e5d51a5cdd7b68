// How products with scales along K end (docs/numerics.md, section 8): the sum over groups is a
// float, and what is behind it that of scaled_mm without scale_b and zero points.
#pragma once

#include <algorithm>

#include "cuda/epilogue/finish.cuh"
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

// A token's scale, and the biases of four neighbouring columns.
__device__ inline float groups_scale(const GroupsEnd& end, int64_t token) {
  const EpilogueOperand& scales = end.operands[static_cast<int>(Operand::scale_a)];
  return scales.data ? load_operand<epilogue::ScaleA>(scales, token, 0) : 1.0f;
}
struct GroupsBias {
  float of[4];
  __device__ GroupsBias(const GroupsEnd& end, int64_t channel) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t at = min(channel + e, int64_t{end.n} - 1);  // what is beyond is not stored
      of[e] = load_operand<epilogue::Bias>(end.operands[static_cast<int>(Operand::bias)], 0, at);
    }
  }
};

namespace detail {

template <class E>
__device__ inline void finish_groups(const GroupsEnd& end, const float (&sum)[4], int64_t token,
                                     int64_t channel, int inside, float scale,
                                     const GroupsBias& bias) {
  float matrix[4];  // the elements of a matrix operand
  if constexpr (Lower<E>::List::has_full) {
    load_elements<epilogue::Residual>(end.operands[static_cast<int>(Operand::residual)], token,
                                      channel, inside, matrix);
  }
  const auto get = [&](auto leaf, int e) {
    using L = decltype(leaf);
    if constexpr (L::axis == epilogue::Axis::Full) {
      return matrix[e];
    } else if constexpr (L::id == Operand::scale_a) {
      return scale;
    } else if constexpr (L::id == Operand::bias) {
      return bias.of[e];
    } else {
      return load_operand<L>(end.operands[static_cast<int>(L::id)], token, channel);
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
                 [&] { return given_quantizer(get, end.to.symmetric); });
}

}  // namespace detail

// Four neighbouring columns of B of a token, of which the first is there: the epilogue of their
// sums, and its store. `channel` is a multiple of 4. The epilogue is chosen here and not around a
// loop of these: what its loop would keep in registers are too many.
__device__ inline void finish_groups(const GroupsEnd& end, const float (&sum)[4], int64_t token,
                                     int64_t channel, float scale, const GroupsBias& bias) {
  with_groups_epilogue(end.epilogue, [&](auto e) {
    detail::finish_groups<typename decltype(e)::type>(
        end, sum, token, channel, static_cast<int>(end.n - channel), scale, bias);
  });
}
__device__ inline void finish_groups(const GroupsEnd& end, const float (&sum)[4], int64_t token,
                                     int64_t channel) {
  finish_groups(end, sum, token, channel, groups_scale(end, token), GroupsBias(end, channel));
}

// D of the tokens [row, row + tokens) and kChannels channels from `col` on, by kThreads threads.
// sums(token, channel): the four from there on. A thread has the same channels of all its tokens,
// and sends for the next one's scale before it ends one.
template <int kChannels, int kThreads, class Sums>
__device__ __forceinline__ void finish_tile(const GroupsEnd& end, int row, int col, int tokens,
                                            int thread, const Sums& sums) {
  constexpr int kQuads = kChannels / 4, kStep = kThreads / kQuads;
  static_assert(kThreads % kQuads == 0);
  const int channel = thread % kQuads * 4;
  int token = thread / kQuads;
  if (token >= tokens || col + channel >= end.n) return;
  const GroupsBias bias(end, col + channel);
  float scale = groups_scale(end, row + token);
#pragma unroll 1
  for (; token < tokens; token += kStep) {
    const float next = groups_scale(end, row + min(token + kStep, tokens - 1));
    const float4 four = sums(token, channel);
    finish_groups(end, {four.x, four.y, four.z, four.w}, row + token, col + channel, scale, bias);
    scale = next;
  }
}

}  // namespace scaled_mm::cuda
