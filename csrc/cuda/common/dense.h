// What the kernels share that multiply by a weight of few bits as CUTLASS multiplies 16-bit floats.
#pragma once

#include <cutlass/numeric_types.h>

#include "epilogue/epilogues.h"

namespace scaled_mm::cuda {

// CUTLASS's type of a 16-bit dtype.
template <DType>
struct CutlassHalf;
template <>
struct CutlassHalf<DType::float16> {
  using type = cutlass::half_t;
};
template <>
struct CutlassHalf<DType::bfloat16> {
  using type = cutlass::bfloat16_t;
};

// D before the activation: acc + bias. An absent bias reads as -0, which adds nothing.
using BiasedSum = epilogue::Apply<epilogue::Add, epilogue::Accumulator<float>, epilogue::Bias>;

}  // namespace scaled_mm::cuda
