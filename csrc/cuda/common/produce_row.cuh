// What the kernel of produce.cu does to one row: how its inputs are read and q written, and the
// producers. Groups of eight columns are numbered within the row; thread t of the team has groups
// t, t + team, ...
#pragma once

#include <cstdint>

#include "cuda/common/group.cuh"
#include "cuda/common/quantizer.cuh"
#include "functions.h"
#include "problems/produce.h"

namespace scaled_mm::cuda {

// Where functions.h has its operations from.
struct FunctionOps {
  static __device__ float fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
  static __device__ uint32_t bits(float x) { return __float_as_uint(x); }
  static __device__ float from_bits(uint32_t x) { return __uint_as_float(x); }
  static __device__ float at_least(float x, float least) { return fmaxf(x, least); }
  static __device__ float at_most(float x, float most) { return fminf(x, most); }
  // The approximation is within 1 ulp, and one step makes it RN(1 / x): tried for all 2^23 + 1 x.
  static __device__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
  }
};

// --- what a team of threads does together: a warp, or a block -----------------------------------

// The sum of the team's values by halves. `shared`: [team], used once.
__device__ inline float sum_of_team(float value, float* shared) {
  const int team = blockDim.x, lane = threadIdx.x % 32;
  if (team > 32) {
    shared[threadIdx.x] = value;
    __syncthreads();
    float part[16];  // of the warps
#pragma unroll
    for (int i = 0; i < 16; ++i) part[i] = 32 * i < team ? shared[32 * i + lane] : 0.0f;
#pragma unroll
    for (int half = 8; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) part[i] += part[i + half];
    }
    value = part[0];
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// max, or a NaN that stays.
__device__ inline float max_or_nan(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
#else
  return x != x || y != y ? x + y : fmaxf(x, y);
#endif
}

// The largest of a thread's elements, and of their negatives, and 0; or NaN. Symmetric quantisers
// need but the largest magnitude, in `hi`.
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
  __device__ Range range() const { return {-minus_lo, hi, __fmaf_rn(hi, 0.0f, minus_lo * 0.0f)}; }
};

// The range of the team's, in every thread. `shared`: [team / 32], used once.
__device__ inline Range range_of_team(Range range, Range* shared) {
  range = range_of_warp(range);
  if (blockDim.x == 32) return range;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = range;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return range_of_warp(lane < blockDim.x / 32 ? shared[lane] : Range{});
}

// --- a row --------------------------------------------------------------------------------------

// What all producers share: x, the other input, and q. Groups that the row has not are zeros, as
// are the columns that its last group has not.
template <bool kVectors, DType dtype>
class RowBase {
  using Storage = typename Format<dtype>::storage;

 public:
  static constexpr int kWordsOfGroup = Words<dtype>::kWords;

  __device__ RowBase(const ProduceProblem& p, int64_t index)
      : p_(p),
        index_(index),
        cols_(static_cast<int>(p.cols)),
        x_(static_cast<const Storage*>(p.x.data) + index * p.x.row_stride),
        other_(p.other.data ? static_cast<const Storage*>(p.other.data) + index * p.other.row_stride
                            : nullptr) {}

  __device__ int cols() const { return cols_; }
  __device__ int groups() const { return (cols_ + kSumGroup - 1) / kSumGroup; }
  __device__ int group(int i) const { return threadIdx.x + i * blockDim.x; }

  // kCount of the thread's groups, from its `first` on: x where there is no other input, else what
  // combine(group, v, other) makes of it. All loads are in flight together.
  template <int kCount, class Combine>
  __device__ void load_with(float (*v)[kSumGroup], int first, const Combine& combine) const {
    Words<dtype> x[kCount], other[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = read_group<kVectors, dtype>(x_, group(first + i), cols_);
    }
    if (other_) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        other[i] = read_group<kVectors, dtype>(other_, group(first + i), cols_);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float values[kSumGroup];
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) values[e] = x[i][e];
      combine(group(first + i), values, other[i]);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[i][e] = values[e];
    }
  }

  __device__ void times_smooth(int group, float (&v)[kSumGroup]) const {
    if (!p_.smooth) return;
    float by[kSumGroup];
    read_floats<kVectors>({p_.smooth, DType::float32}, group, cols_, by);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) v[e] *= by[e];
  }

  // The row's quantiser: of a range, which is written down, or of what is given.
  __device__ Quantizer quantizer(const Range& range) const {
    float& scale = p_.scale[index_ * p_.scale_stride];
    int32_t* const azp = p_.azp ? p_.azp + index_ * p_.azp_stride : nullptr;
    if (p_.given) return quantizer_given(scale, azp ? *azp : 0, p_.symmetric);
    const Quantizer by = quantizer_of(range, p_.symmetric);
    if (threadIdx.x == 0) {
      scale = by.scale;
      if (azp) *azp = by.azp;
    }
    return by;
  }

  // What counts in sums and ranges: 0 for columns that the row has not.
  __device__ void clear_beyond(int group, float (&v)[kSumGroup]) const {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) {
      if (group * kSumGroup + (kVectors ? 0 : e) >= cols_) v[e] = 0.0f;
    }
  }

  __device__ void store(int group, const float (&v)[kSumGroup], const Quantizer& by) const {
    if (group * kSumGroup >= cols_) return;
    int32_t q[kSumGroup];
    if (!by.is_quick) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) q[e] = by.exact(v[e]);
    } else if (p_.given) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) q[e] = by.quick_limited(v[e]);
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) q[e] = by.quick(v[e]);
    }
    const uint2 words = make_uint2(pack(q[0], q[1], q[2], q[3]), pack(q[4], q[5], q[6], q[7]));
    int8_t* const to = p_.q + index_ * p_.cols + group * kSumGroup;
    if constexpr (kVectors) {
      *reinterpret_cast<uint2*>(to) = words;
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const uint32_t word = e < 4 ? words.x : words.y;
        if (group * kSumGroup + e < cols_) to[e] = static_cast<int8_t>(word >> 8 * (e % 4));
      }
    }
  }

 protected:
  const ProduceProblem& p_;
  int64_t index_;
  int cols_;
  const Storage *x_, *other_;
};

// --- the producers ------------------------------------------------------------------------------
//
// load<n>(v, first)     n of the thread's groups from its `first` on, as far as a row's sum is not
// needed finisher(row, sums)   finish(group, v), which does the rest

// function(x) or function(x) other.
template <bool kVectors, DType dtype, Producer producer>
class FunctionRow : public RowBase<kVectors, dtype> {
 public:
  using RowBase<kVectors, dtype>::RowBase;

  template <int kCount>
  __device__ void load(float (*v)[kSumGroup], int first) const {
    this->template load_with<kCount>(v, first, [&](int, auto& x, const auto& other) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) x[e] = function(x[e]);
      if (!this->other_) return;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) x[e] *= other[e];
    });
  }
  template <class Row>
  __device__ auto finisher(Row&, float (*)[512]) const {
    return [this](int group, float (&v)[kSumGroup]) { this->times_smooth(group, v); };
  }

 private:
  static __device__ float function(float x) {
    using F = FunctionOps;
    if constexpr (producer == Producer::relu) return functions::relu<F>(x);
    if constexpr (producer == Producer::silu) return functions::silu<F>(x);
    if constexpr (producer == Producer::gelu) return functions::gelu<F>(x);
    if constexpr (producer == Producer::gelu_tanh) return functions::gelu_tanh<F>(x);
  }
};

// x, or x + other rounded to x's dtype and written down; what norms are made of.
template <bool kVectors, DType dtype>
class SummedRow : public RowBase<kVectors, dtype> {
 public:
  using RowBase<kVectors, dtype>::RowBase;

  template <int kCount>
  __device__ void load(float (*v)[kSumGroup], int first) const {
    this->template load_with<kCount>(v, first, [&](int group, auto& x, const auto& other) {
      if (this->other_) add(group, x, other);
    });
  }

 protected:
  __device__ void read_weights(const EpilogueOperand& operand, float neutral, int group,
                               float (&to)[kSumGroup]) const {
    if (operand.data) return read_floats<kVectors>(operand, group, this->cols_, to);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) to[e] = neutral;
  }
  __device__ float reciprocal_root(float sum) const {
    const float mean = __fdiv_rn(sum, static_cast<float>(this->cols_));
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + this->p_.eps));
  }

 private:
  using Of = Format<dtype>;
  using Storage = typename Of::storage;

  __device__ void add(int group, float (&x)[kSumGroup], const Words<dtype>& other) const {
    Words<dtype> words;
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) x[e] += other[e];
    if constexpr (Of::kPerWord == 1) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) words.word[e] = __float_as_uint(x[e]);
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; e += 2) words.word[e / 2] = Of::narrow(x[e], x[e + 1]);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) x[e] = words[e];
    }
    write(group, words);
  }
  __device__ void write(int group, const Words<dtype>& words) const {
    if (group * kSumGroup >= this->cols_) return;
    Storage* const to =
        static_cast<Storage*>(this->p_.sum) + this->index_ * this->cols_ + group * kSumGroup;
    if constexpr (kVectors) {
#pragma unroll
      for (int i = 0; i < Words<dtype>::kWords / 4; ++i) {
        reinterpret_cast<uint4*>(to)[i] = words.vector[i];
      }
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const uint32_t word = words.word[e / Of::kPerWord] >> (e % Of::kPerWord ? 16 : 0);
        if (group * kSumGroup + e < this->cols_) to[e] = static_cast<Storage>(word);
      }
    }
  }
};

// x r weight with r = 1 / sqrt(mean of squares + eps).
template <bool kVectors, DType dtype>
class RmsNormRow : public SummedRow<kVectors, dtype> {
 public:
  using SummedRow<kVectors, dtype>::SummedRow;

  template <class Row>
  __device__ auto finisher(Row& row, float (*sums)[512]) const {
    const float r = this->reciprocal_root(row.sum([](float x) { return x * x; }, sums[0]));
    return [this, r](int group, float (&v)[kSumGroup]) {
      float weight[kSumGroup];
      this->read_weights(this->p_.weight, 1.0f, group, weight);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[e] = v[e] * r * weight[e];
      this->times_smooth(group, v);
    };
  }
};

// (x - mean) r weight + bias with r = 1 / sqrt(mean of (x - mean)^2 + eps).
template <bool kVectors, DType dtype>
class LayerNormRow : public SummedRow<kVectors, dtype> {
 public:
  using SummedRow<kVectors, dtype>::SummedRow;

  template <class Row>
  __device__ auto finisher(Row& row, float (*sums)[512]) const {
    const float mean =
        __fdiv_rn(row.sum([](float x) { return x; }, sums[0]), static_cast<float>(this->cols_));
    const float r = this->reciprocal_root(
        row.sum([mean](float x) { return (x - mean) * (x - mean); }, sums[1]));
    return [this, mean, r](int group, float (&v)[kSumGroup]) {
      float weight[kSumGroup], bias[kSumGroup];
      this->read_weights(this->p_.weight, 1.0f, group, weight);
      this->read_weights(this->p_.bias, -0.0f, group, bias);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        v[e] = __fmaf_rn((v[e] - mean) * r, weight[e], bias[e]);
      }
      this->times_smooth(group, v);
    };
  }
};

template <bool kVectors, DType dtype, Producer producer>
struct RowOf {
  using type = FunctionRow<kVectors, dtype, producer>;
};
template <bool kVectors, DType dtype>
struct RowOf<kVectors, dtype, Producer::rms_norm> {
  using type = RmsNormRow<kVectors, dtype>;
};
template <bool kVectors, DType dtype>
struct RowOf<kVectors, dtype, Producer::layer_norm> {
  using type = LayerNormRow<kVectors, dtype>;
};

}  // namespace scaled_mm::cuda
