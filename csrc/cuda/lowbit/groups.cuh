// What grouped kernels for weights of few bits share.
#pragma once

#include "cuda/common/groups.cuh"
#include "cuda/lowbit/end.cuh"
#include "problems/mixed_groups.h"

namespace scaled_mm::cuda {

inline Groups groups_of(const GroupedLowbitProblem& p) {
  return {p.offsets, static_cast<int>(p.experts), static_cast<int>(p.product.m), p.rows,
          static_cast<int>(p.x_rows)};
}

// bias_at, of an expert's bias.
__device__ inline float bias_of(const LowbitEnd& end, int channel, int expert) {
  return end.bias.data && channel < end.channels ? load_float(end.bias, expert, channel) : -0.0f;
}

}  // namespace scaled_mm::cuda
