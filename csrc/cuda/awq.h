// The int4 ops on CUDA: the pieces that awq.cpp puts together.
#pragma once

#include <cuda_runtime.h>

#include "awq_problem.h"
#include "cuda/awq_config.h"
#include "cuda/device.h"

namespace scaled_mm::cuda {

// W [K, N] row-major, 16-byte aligned; rows of w.scales are 16-byte aligned too. keep: it is read
// soon, and should stay in L2.
void dequantize(const AwqWeight& w, uint16_t* out, bool keep, cudaStream_t stream);

// A bias of any dtype as float32, side by side.
void widen_bias(const Vector& bias, int64_t n, float* to, cudaStream_t stream);

// D where K is 0: the bias in every row, or zeros.
void fill_with_bias(const AwqProblem& p, cudaStream_t stream);

namespace sm90 {

// D = X W + bias straight from AWQ's words, `tokens` rows of X to a tile. p.w satisfies
// `streams`; rows of q, zeros, scales and x are 16-byte aligned, x's elements side by side.
// partials: room for plan.partials() tiles of float32 sums, 16-byte aligned.
void awq_stream(const AwqProblem& p, int tokens, const AwqPlan& plan, float* partials,
                const Device& device, cudaStream_t stream);

// D = X W + bias with a W of 16-bit floats [K, N] row-major, by CUTLASS. Rows of x are 16-byte
// aligned, their elements side by side; bias: [N] float32 side by side, or null.
void dense_gemm(const AwqProblem& p, const uint16_t* w, const float* bias, const Device& device,
                cudaStream_t stream);

}  // namespace sm90
}  // namespace scaled_mm::cuda
