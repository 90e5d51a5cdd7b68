// The epilogues. Each is its formula and one type. Backends lower the type; tests read the formula
// again in scaled_mm/reference. To add one: docs/adding.md.
//
// Throughout: acc = sum_k a[m, k] * b[k, n] (int32, exact), RN = round to nearest even. The bias
// and the zero points may be absent.
#pragma once

#include "epilogue/expr.h"

namespace scaled_mm::epilogue {

// scale_b first, then scale_a: the order is part of the bit contract (docs/numerics.md).
template <class T>
using Rescaled = Apply<Fma, ScaleA, Apply<Mul, ScaleB, Apply<ToFloat, T>>, Bias>;

// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc)) + bias[n])
using ScaledEpilogue = Rescaled<Acc>;

// A zero point per token (or one for all); azp_adj[n] = sum_k b[k, n]. A call may give their
// product as azp_with_adj[n], which takes the place of azp_adj, with azp = 1. D = RN(scale_a[m] *
// RN(scale_b[n] * RN(acc - azp[m] * azp_adj[n])) + bias[n])
using ScaledEpilogueAzp = Rescaled<Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>>;

// The sum of a residual connection.
// D = RN(RN(x) + residual[m, n]), x as above
using ScaledEpilogueResidual = Apply<Add, ScaledEpilogueAzp, Residual>;

// An activation, which may be none, in 8 bits or not.
// D = f(RN(x)), or q of it
using ScaledEpilogueActivated = Quantised<Activated<ScaledEpilogueAzp>>;

// A gated linear unit: columns 2 j and 2 j + 1 of B are gate and value.
// D[m, j] = RN(f(RN(x[m, 2 j])) * RN(x[m, 2 j + 1])), or q of it
using ScaledEpilogueGated = Quantised<Gated<ScaledEpilogueAzp>>;

// A product of floats before its activation. D = RN(acc + bias[n])
using BiasedSum = Apply<Add, Accumulator<float>, Bias>;

// int8_mm: the accumulator itself, written as int32.
using RawAccumulator = Acc;

}  // namespace scaled_mm::epilogue
