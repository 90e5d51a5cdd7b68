// The activations of lowbit products.
#pragma once

#include "cuda/common/functions.cuh"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// Of kCount values, in place.
template <int kCount>
__device__ inline void activate(float (&x)[kCount], LowbitActivation activation) {
  const auto all = [&](const auto& f) {
#pragma unroll
    for (float& value : x) value = f(value);
  };
  using F = FunctionOps;
  switch (activation) {
    case LowbitActivation::none: break;
    case LowbitActivation::relu: return all([](float v) { return functions::relu<F>(v); });
    case LowbitActivation::gelu: return all([](float v) { return functions::gelu<F>(v); });
    case LowbitActivation::gelu_tanh:
      return all([](float v) { return functions::gelu_tanh<F>(v); });
    case LowbitActivation::silu: return all([](float v) { return functions::silu<F>(v); });
  }
}

}  // namespace scaled_mm::cuda
