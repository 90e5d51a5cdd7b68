// Sorting of tokens by their experts, and the sum of what experts make of a token.
#pragma once

#include <cstdint>

#include "cuda/epilogue/lower.cuh"
#include "cuda/epilogue/store.cuh"
#include "problems/groups.h"

namespace scaled_mm::cuda {

inline constexpr int kSortThreads = 1024;

// Block e places the rows of expert e, in their order, behind those of the experts before, which it
// counts itself: no block waits for another. The last block places those that name no expert. Each
// warp has a share of all rows.
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
  const int share = (count + kSortThreads - 1) / kSortThreads * 32;  // of a warp
  const int first = min(warp * share, count), last = first + min(share, count - first);
  const auto expert_at = [&](int i) { return i < last ? at(i) : experts + 1; };
  int before = 0, here = 0;
#pragma unroll 4
  for (int begin = first; begin < last; begin += 32) {
    const int e = expert_at(begin + lane);
    before += __popc(__ballot_sync(~0u, e < expert));
    here += __popc(__ballot_sync(~0u, e == expert));
  }
  if (lane == 0) of_warp[0][warp] = before, of_warp[1][warp] = here;
  __syncthreads();
  int next = 0;  // the first row of those that the warp places
  for (int w = 0; w < kWarps; ++w) next += of_warp[0][w] + (w < warp ? of_warp[1][w] : 0);
  if (thread == kSortThreads - 1 && expert < experts) to.offsets[expert] = next + here;
  if (here == 0) return;
#pragma unroll 4
  for (int begin = first; begin < last; begin += 32) {
    const int i = begin + lane;
    const bool mine = expert_at(i) == expert;
    const unsigned lanes = __ballot_sync(~0u, mine);
    const int row = next + __popc(lanes & ((1u << lane) - 1));
    if (mine) to.rows[row] = i / top_k, to.places[i] = row;
    next += __popc(lanes);
  }
}

// Whether eight neighbouring elements, from every multiple of eight on, are whole vectors.
__device__ inline bool has_vectors(const EpilogueOperand& x) {
  return x.col_stride == 1 && x.row_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

// Of a token's columns [column, column + 8), `inside` of which are there: RN(w y) of its experts,
// added in their order. What four experts made is on its way at a time.
template <DType dtype, bool kVectors>
__device__ inline void add_experts(const CombinedTokens& p, int64_t token, int64_t column,
                                   int inside, float (&sum)[8]) {
  const auto* const y = static_cast<const typename Format<dtype>::storage*>(p.y.data);
  constexpr int kAtOnce = 4;
  const int last = static_cast<int>(p.rows) - 1;
  for (int begin = 0; begin < p.top_k; begin += kAtOnce) {
    int row[kAtOnce];
    float weight[kAtOnce], value[kAtOnce][8];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = min(begin + i, p.top_k - 1);
      row[i] = min(max(p.places[token * p.top_k + j], 0), last);
      weight[i] = load_float(p.weights, token, j);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= p.top_k) break;
      if constexpr (kVectors) {
        load_vector<dtype>(y + row[i] * p.y.row_stride + column, value[i]);
      } else {
        load_elements<epilogue::Residual>(p.y, row[i], column, inside, value[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= p.top_k) break;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float part = __fmul_rn(value[i][e], weight[i]);
        sum[e] = begin + i == 0 ? part : __fadd_rn(sum[e], part);
      }
    }
  }
}

// A thread has eight columns of a token: what its experts made of it, and the residual.
__device__ inline void combine_experts(const CombinedTokens& p) {
  const int64_t parts = (p.columns + 7) / 8, all = p.tokens * parts;
  const Output out{p.d, p.dtype, p.columns % 8 == 0};
  const bool vectors = p.columns % 8 == 0 && has_vectors(p.y);
  with_dtype(p.y.dtype, [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
         i += int64_t{gridDim.x} * blockDim.x) {
      const int64_t token = i / parts, column = i % parts * 8;
      const int inside = static_cast<int>(min(p.columns - column, int64_t{8}));
      float sum[8] = {};
      if (vectors) {
        add_experts<kDType, true>(p, token, column, inside, sum);
      } else {
        add_experts<kDType, false>(p, token, column, inside, sum);
      }
      if (p.residual.data != nullptr) {
        float value[8];
        load_elements<epilogue::Residual>(p.residual, token, column, inside, value);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] = __fadd_rn(sum[e], value[e]);
      }
      store_row(out, token * p.columns + column, inside, sum);
    }
  });
}

}  // namespace scaled_mm::cuda
