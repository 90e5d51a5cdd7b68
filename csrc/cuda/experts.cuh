// Sorting of tokens by their experts, and the sum of what experts make of a token.
#pragma once

#include <cstdint>

#include "cuda/epilogue/lower.cuh"
#include "cuda/epilogue/store.cuh"
#include "problems/groups.h"

namespace scaled_mm::cuda {

inline constexpr int kSortThreads = 1024;

// Block e places the rows of expert e, in their order, behind those of the experts before, which it
// counts itself: no block waits for another. The last block places those that name no expert.
template <class T>
__device__ void sort_experts(const T* const expert_of, const int count, const int experts,
                             const int top_k, const SortedTokens to) {
  constexpr int kWarps = kSortThreads / 32;
  __shared__ int of_warp[2][kWarps];
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const auto at = [&](int i) {
    const T e = expert_of[i];
    return e >= 0 && e < experts ? static_cast<int>(e) : experts;
  };
  int before = 0;
  for (int i = thread; i - thread < count; i += kSortThreads) {
    before += __popc(__ballot_sync(~0u, i < count && at(i) < expert));
  }
  if (lane == 0) of_warp[0][warp] = before;
  __syncthreads();
  int next = 0;  // the first row of those still to be placed
  for (int w = 0; w < kWarps; ++w) next += of_warp[0][w];
  __syncthreads();
  for (int begin = 0, turn = 0; begin < count; begin += kSortThreads, turn ^= 1) {
    const int i = begin + thread;
    const bool mine = i < count && at(i) == expert;
    const unsigned lanes = __ballot_sync(~0u, mine);
    if (lane == 0) of_warp[turn][warp] = __popc(lanes);
    __syncthreads();
    int row = next + __popc(lanes & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) row += of_warp[turn][w];
      next += of_warp[turn][w];
    }
    if (mine) to.rows[row] = i / top_k, to.order[row] = i;
  }
  if (thread == 0 && expert < experts) to.offsets[expert] = next;
}

// A thread has four columns of a token: RN(w y) of its experts, added in their order, then the
// residual.
__device__ inline void combine_experts(const CombinedTokens& p) {
  const int64_t quads = (p.columns + 3) / 4, all = p.tokens * quads;
  const int rows = static_cast<int>(p.tokens) * p.top_k;
  const Output out{p.d, p.dtype, p.columns % 4 == 0};
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t token = i / quads, column = i % quads * 4;
    const int inside = static_cast<int>(min(p.columns - column, int64_t{4}));
    float sum[4] = {};
    for (int j = 0; j < p.top_k; ++j) {
      const int row = min(max(p.row_of[token * p.top_k + j], 0), rows - 1);
      const float weight = load_float(p.weights, token, j);
      float value[4];
      load_elements<epilogue::Residual>(p.y, row, column, inside, value);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float part = __fmul_rn(value[e], weight);
        sum[e] = j == 0 ? part : __fadd_rn(sum[e], part);
      }
    }
    if (p.residual.data != nullptr) {
      float value[4];
      load_elements<epilogue::Residual>(p.residual, token, column, inside, value);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] = __fadd_rn(sum[e], value[e]);
    }
    store_row(out, token * p.columns + column, inside, sum);
  }
}

}  // namespace scaled_mm::cuda
