// The rotation of rows in front of the quantiser (docs/numerics.md, section 4), and the quantiser
// of rows that registers hold.
//
// A warp has a unit: 128 groups of eight columns, four to a lane. The bits of a group's number
// within its unit are, from the lowest on: `low` bits of the lane, two bits that choose among the
// lane's own four, the lane's other bits. So a butterfly meets other lanes in `low` of its stages
// only, the others stay within a lane.
#pragma once

#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/quantize/group.cuh"
#include "cuda/quantize/produce_team.cuh"
#include "cuda/quantize/quantizer.cuh"
#include "cuda/quantize/rotate_slots.cuh"

namespace scaled_mm::cuda {

constexpr int kUnitGroups = 4;  // of a lane
constexpr int kUnitColumns = 32 * kUnitGroups * kSumGroup;

// The stage that joins a lane's values with those of the lane whose number differs in `bit`.
__device__ __forceinline__ void rotate_lanes(float (&v)[kSumGroup], int bit) {
  const float sign = threadIdx.x & bit ? -1.0f : 1.0f;
#pragma unroll
  for (int e = 0; e < kSumGroup; ++e) {
    v[e] = __fmaf_rn(v[e], sign, __shfl_xor_sync(~0u, v[e], bit));
  }
}

class Rotation {
 public:
  using Unit = float[kUnitGroups][kSumGroup];

  __device__ explicit Rotation(int block)
      : block_(block),
        low_(block <= 64    ? 1
             : block == 128 ? 2
             : block == 256 ? 3
                            : 4),
        factor_(rotation_factor(block)) {}

  // The number of the lane's group i within its unit.
  __device__ int group(int lane, int i) const {
    const int below = lane & ((1 << low_) - 1);
    return below | i << low_ | (lane - below) << 2;
  }

  __device__ __forceinline__ void operator()(Unit& v) const {
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) rotate_group(v[i]);
#pragma unroll 1
    for (int bit = 1; bit < 1 << low_; bit *= 2) {
#pragma unroll
      for (int i = 0; i < kUnitGroups; ++i) rotate_lanes(v[i], bit);
    }
    if (block_ >= 2 * kSumGroup << low_) rotate_own<1>(v);
    if (block_ >= 4 * kSumGroup << low_) rotate_own<2>(v);
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[i][e] *= factor_;
    }
  }

 private:
  template <int kBit>
  static __device__ __forceinline__ void rotate_own(Unit& v) {
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
      if (i & kBit) continue;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const float sum = v[i][e] + v[i + kBit][e];
        v[i + kBit][e] = v[i][e] - v[i + kBit][e];
        v[i][e] = sum;
      }
    }
  }

  int block_, low_;
  float factor_;
};

// A team of warps (x) for each row, kUnits units to a warp; x is read 16 bytes at a time.
template <DType dtype, int kUnits>
__global__ void __launch_bounds__(kMaxTeam) quantize_rotated(const QuantizeProblem p) {
  __shared__ alignas(Exchange) uint8_t memory[sizeof(Exchange)];
  wait_for_dependencies();
  launch_dependents();
  const int64_t index = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (index >= p.rows) return;
  const Rotation rotation(static_cast<int>(p.rotate));
  const Team<false> team(false);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cols = static_cast<int>(p.cols);
  const auto group = [&](int unit, int i) {
    return (unit * warps + warp) * (kUnitColumns / kSumGroup) + rotation.group(lane, i);
  };

  const auto* const x =
      static_cast<const typename Format<dtype>::storage*>(p.x.data) + index * p.x.row_stride;
  Words<dtype> words[kUnits][kUnitGroups];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i)
      words[u][i] = read_group<true, dtype>(x, group(u, i), cols);
  }
  float v[kUnits][kUnitGroups][kSumGroup];
  Extremes extremes;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[u][i][e] = words[u][i][e];
    }
    rotation(v[u]);
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) extremes.extend(v[u][i], p.symmetric);
  }

  float& scale = p.scale[index * p.scale_stride];
  int32_t* const azp = p.azp ? p.azp + index * p.azp_stride : nullptr;
  Quantizer by;
  if (p.given) {
    by = quantizer_given(scale, azp ? *azp : 0, p.symmetric);
  } else {
    by = quantizer_of(team.range(extremes, *reinterpret_cast<Exchange*>(memory), p.symmetric),
                      p.symmetric);
    if (threadIdx.x == 0) {
      scale = by.scale;
      if (azp) *azp = by.azp;
    }
  }
  by.with_bytes(p.given, p.symmetric, [&](const auto& bytes) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int i = 0; i < kUnitGroups; ++i) {
        const int64_t first = int64_t{group(u, i)} * kSumGroup;
        if (first >= cols) continue;
        *reinterpret_cast<uint2*>(p.q + index * p.cols + first) =
            make_uint2(bytes(v[u][i]), bytes(v[u][i] + 4));
      }
    }
  });
}

// x times `smooth` [cols] (or null) and rotated where p says so, as float32 without gaps: what the
// other kernels read where none does that by itself. A warp has a unit of a row at a time.
template <DType dtype>
__global__ void __launch_bounds__(256)
    rotate_rows(const QuantizeProblem p, const float* smooth, float* to) {
  wait_for_dependencies();
  launch_dependents();
  using Of = Format<dtype>;
  const Rotation rotation(static_cast<int>(p.rotate));
  const int lane = threadIdx.x % 32;
  const int64_t units = (p.cols + kUnitColumns - 1) / kUnitColumns;
  const int64_t step = int64_t{gridDim.x} * (blockDim.x / 32);
  int64_t unit = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  for (; unit < p.rows * units; unit += step) {
    const int64_t row = unit / units, first = unit % units * kUnitColumns;
    const auto* const x = static_cast<const typename Of::storage*>(p.x.data) + row * p.x.row_stride;
    float v[kUnitGroups][kSumGroup];
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
      const int64_t col = first + rotation.group(lane, i) * kSumGroup;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const bool there = col + e < p.cols;
        v[i][e] = there ? Of::widen(x[(col + e) * p.x.col_stride], 0) : 0.0f;
        if (smooth && there) v[i][e] *= smooth[col + e];
      }
    }
    if (p.rotate) rotation(v);
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
      const int64_t col = first + rotation.group(lane, i) * kSumGroup;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        if (col + e < p.cols) to[row * p.cols + col + e] = v[i][e];
      }
    }
  }
}

}  // namespace scaled_mm::cuda
