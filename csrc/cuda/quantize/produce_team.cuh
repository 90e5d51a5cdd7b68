// What the threads do together that have a row: a warp, a block, or the blocks of a cluster. Groups
// of eight columns are numbered within the row; thread t of the team has groups t, t + team, ...
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "cuda/quantize/quantizer.cuh"
#include "problems/produce.h"

namespace scaled_mm::cuda {

constexpr int kMaxTeam = 512;   // threads of a block
constexpr int kMaxCluster = 8;  // blocks

// max, or a NaN that stays: the one whose bits are the largest that a float >= 0 may have.
__device__ inline float max_or_nan(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
#else
  return x != x || y != y ? __int_as_float(0x7fffffff) : fmaxf(x, y);
#endif
}

// The largest of floats >= 0 (or NaN) of a warp's lanes: their bits are in the same order.
__device__ inline float max_of_warp(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x = max_or_nan(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
#endif
}

// The largest of some elements, and of their negatives, and 0; or NaN. Symmetric quantisers need
// but the largest magnitude, in `hi`.
struct Extremes {
  float hi = 0.0f, minus_lo = 0.0f;

  __device__ void extend(const float (&v)[kSumGroup], bool symmetric) {
    if (symmetric) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) hi = max_or_nan(hi, fabsf(v[e]));
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        hi = max_or_nan(hi, v[e]);
        minus_lo = max_or_nan(minus_lo, -v[e]);
      }
    }
  }
  __device__ void reduce_warp(bool symmetric) {
    hi = max_of_warp(hi);
    if (!symmetric) minus_lo = max_of_warp(minus_lo);
  }
  __device__ Range range() const { return {-minus_lo, hi, __fmaf_rn(hi, 0.0f, minus_lo * 0.0f)}; }
};

// The sum of v by halves, which overwrites it.
template <int kCount>
__device__ __forceinline__ float sum_by_halves(float* v) {
  if constexpr (kCount > 1) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) v[i] += v[i + kCount / 2];
    return sum_by_halves<kCount / 2>(v);
  }
  return v[0];
}

// A team's shared memory; each of its parts is used once.
struct Exchange {
  float sums[2][kMaxTeam];
  Extremes extremes[kMaxCluster * kMaxTeam / 32];
};

// The threads with a row: those of a warp, of a block, or (kClusters) of a cluster's blocks.
template <bool kClusters>
class Team {
 public:
  using Exchange = cuda::Exchange;
  static constexpr bool kMeets = !kClusters;  // for rotate_warps

  // Every block of a cluster must be there before `range` of another one writes into it.
  __device__ explicit Team(bool calls_range) {
    if (kClusters && calls_range) arrive();
  }

  __device__ int size() const { return kClusters ? blockDim.x * gridDim.x : blockDim.x; }
  __device__ int thread() const {
    return kClusters ? blockIdx.x * blockDim.x + threadIdx.x : threadIdx.x;
  }

  // The sum of the threads' values by halves. `shared`: [size], used once.
  static __device__ __forceinline__ float sum(float value, float* shared) {
    const int lane = threadIdx.x % 32;
    if (blockDim.x > 32) {
      shared[threadIdx.x] = value;
      __syncthreads();
      switch (blockDim.x) {
        case 64: value = sum_of_warps<2>(shared + lane); break;
        case 128: value = sum_of_warps<4>(shared + lane); break;
        case 256: value = sum_of_warps<8>(shared + lane); break;
        default: value = sum_of_warps<16>(shared + lane); break;
      }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(~0u, value, distance);
    }
    return value;
  }

  // The stage of a butterfly that joins a warp's values with its neighbour's; all threads call it.
  static __device__ __forceinline__ void rotate_warps(float (&v)[kSumGroup],
                                                      float (&shared)[2][kMaxTeam]) {
    const float sign = threadIdx.x & 32 ? -1.0f : 1.0f;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) {
      float* const values = shared[e % 2];  // of the one before, others may still read
      values[threadIdx.x] = v[e];
      __syncthreads();
      v[e] = __fmaf_rn(v[e], sign, values[threadIdx.x ^ 32]);
    }
  }

  // The range of all threads' elements, in every thread.
  __device__ __forceinline__ Range range(Extremes mine, Exchange& exchange, bool symmetric) const {
    mine.reduce_warp(symmetric);
    if (size() == 32) return mine.range();
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int all = warps;
    if constexpr (kClusters) {
      wait();
      if (lane < gridDim.x) {
        *at_block(&exchange.extremes[blockIdx.x * warps + warp], lane) = mine;
      }
      arrive();
      wait();
      all *= gridDim.x;
    } else {
      if (lane == 0) exchange.extremes[warp] = mine;
      __syncthreads();
    }
#pragma unroll 1
    for (int i = lane; i < all; i += 32) {
      const Extremes other = exchange.extremes[i];
      mine.hi = max_or_nan(mine.hi, other.hi);
      mine.minus_lo = max_or_nan(mine.minus_lo, other.minus_lo);
    }
    mine.reduce_warp(symmetric);
    return mine.range();
  }

 private:
  // The sum of a lane's values in all warps, by halves.
  template <int kWarps>
  static __device__ __forceinline__ float sum_of_warps(const float* of_lane) {
    float part[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) part[i] = of_lane[32 * i];
    return sum_by_halves<kWarps>(part);
  }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static __device__ void arrive() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");  // releases
  }
  static __device__ void wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // acquires
  }
  template <class T>
  static __device__ T* at_block(T* shared, int block) {
    return cooperative_groups::this_cluster().map_shared_rank(shared, block);
  }
#else
  static __device__ void arrive() {}
  static __device__ void wait() {}
  template <class T>
  static __device__ T* at_block(T* shared, int) {
    return shared;
  }
#endif
};

}  // namespace scaled_mm::cuda
