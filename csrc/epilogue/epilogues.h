// The epilogues. Each is its formula and one type; backends lower the type, tests read the formula
// again in scaled_mm/reference.py. To add one: docs/adding.md.
//
// Throughout: acc = sum_k a[m, k] * b[k, n] (int32, exact), RN = round to nearest even.
#pragma once

#include "epilogue/expr.h"

namespace scaled_mm::epilogue {

// scale_b first, then scale_a: the order is part of the bit contract (docs/numerics.md).
template <class T>
using Rescaled = Apply<Mul, ScaleB, Apply<ToFloat, T>>;

// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc)))
using ScaledEpilogue = Apply<Mul, ScaleA, Rescaled<Acc>>;

// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc)) + bias[n])
using ScaledEpilogueBias = Apply<Fma, ScaleA, Rescaled<Acc>, Bias>;

// One zero point for the whole activation, multiplied into the column sums beforehand.
// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc - azp_with_adj[n])) + bias[n])
using ScaledEpilogueAzp = Apply<Fma, ScaleA, Rescaled<Apply<Sub, Acc, AzpWithAdj>>, Optional<Bias>>;

// One zero point per token (or one for all); azp_adj[n] = sum_k b[k, n].
// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc - azp[m] * azp_adj[n])) + bias[n])
using ScaledEpilogueAzpPerToken =
    Apply<Fma, ScaleA, Rescaled<Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>>, Optional<Bias>>;

// int8_mm: the accumulator itself, written as int32.
using RawAccumulator = Acc;

}  // namespace scaled_mm::epilogue
