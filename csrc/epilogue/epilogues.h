// The epilogues. Each is its formula and one type. Backends lower the type; tests read the formula
// again in scaled_mm/reference. To add one: docs/adding.md.
//
// Throughout: acc = sum_k a[m, k] * b[k, n] (int32, exact), RN = round to nearest even, and a bias
// is optional where the type says Optional<Bias>.
#pragma once

#include "epilogue/expr.h"

namespace scaled_mm::epilogue {

// scale_b first, then scale_a: the order is part of the bit contract (docs/numerics.md).
template <class T>
using Rescaled = Apply<Mul, ScaleB, Apply<ToFloat, T>>;

template <class T>
using ScaledAndBiased = Apply<Fma, ScaleA, Rescaled<T>, Optional<Bias>>;

using AccLessAzp = Apply<Sub, Acc, AzpWithAdj>;
using AccLessAzpPerToken = Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>;

// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc)))
using ScaledEpilogue = Apply<Mul, ScaleA, Rescaled<Acc>>;

// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc)) + bias[n])
using ScaledEpilogueBias = Apply<Fma, ScaleA, Rescaled<Acc>, Bias>;

// One zero point for the whole activation, multiplied into the column sums beforehand.
// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc - azp_with_adj[n])) + bias[n])
using ScaledEpilogueAzp = ScaledAndBiased<AccLessAzp>;

// One zero point per token (or one for all); azp_adj[n] = sum_k b[k, n].
// D = RN(scale_a[m] * RN(scale_b[n] * RN(acc - azp[m] * azp_adj[n])) + bias[n])
using ScaledEpilogueAzpPerToken = ScaledAndBiased<AccLessAzpPerToken>;

// The sum of a residual connection, after any of the above (x).
// D = RN(RN(x) + residual[m, n])
template <class X>
using PlusResidual = Apply<Add, X, Residual>;
using ScaledEpilogueResidual = PlusResidual<ScaledAndBiased<Acc>>;
using ScaledEpilogueAzpResidual = PlusResidual<ScaledEpilogueAzp>;
using ScaledEpilogueAzpPerTokenResidual = PlusResidual<ScaledEpilogueAzpPerToken>;

// In 8 bits, any of the first four (x).
// D = q(RN(x))
using ScaledEpilogueQuantised = Quantised<ScaledAndBiased<Acc>>;
using ScaledEpilogueAzpQuantised = Quantised<ScaledEpilogueAzp>;
using ScaledEpilogueAzpPerTokenQuantised = Quantised<ScaledEpilogueAzpPerToken>;

// An activation of the same, in 8 bits or not.
// D = f(RN(x)), or q of it
template <class E>
using MaybeQuantised = Quantised<E, Optional<OutScale>>;
using ScaledEpilogueActivated = MaybeQuantised<Activated<ScaledAndBiased<Acc>>>;
using ScaledEpilogueAzpActivated = MaybeQuantised<Activated<ScaledEpilogueAzp>>;
using ScaledEpilogueAzpPerTokenActivated = MaybeQuantised<Activated<ScaledEpilogueAzpPerToken>>;

// A gated linear unit of the same: columns 2 j and 2 j + 1 of B are gate and value.
// D[m, j] = RN(f(RN(x[m, 2 j])) * RN(x[m, 2 j + 1])), or q of it
using ScaledEpilogueGated = MaybeQuantised<Gated<ScaledAndBiased<Acc>>>;
using ScaledEpilogueAzpGated = MaybeQuantised<Gated<ScaledEpilogueAzp>>;
using ScaledEpilogueAzpPerTokenGated = MaybeQuantised<Gated<ScaledEpilogueAzpPerToken>>;

// int8_mm: the accumulator itself, written as int32.
using RawAccumulator = Acc;

}  // namespace scaled_mm::epilogue
