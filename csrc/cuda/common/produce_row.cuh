// What the kernel of produce.cu does to one row: how its inputs are read and q written, and the
// producers. Groups of eight columns are numbered within the row; thread t of the team has groups
// t, t + team, ...
#pragma once

#include <cstdint>

#include "cuda/common/formats.cuh"
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

// The range of the team's, in every thread. `shared`: [team / 32], used once.
__device__ inline Range range_of_team(Range range, Range* shared) {
  range = range_of_warp(range);
  if (blockDim.x == 32) return range;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = range;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return range_of_warp(lane < blockDim.x / 32 ? shared[lane] : Range{});
}

// --- reading and writing ------------------------------------------------------------------------

// Eight elements of a 16-bit or 32-bit float dtype, as they come.
union Words {
  uint4 vector[2];
  uint32_t word[8];
};

// A row of elements of a dtype. kVectors: groups begin at multiples of 16 bytes, and all are whole.
template <bool kVectors>
class InputRow {
 public:
  __device__ InputRow(const void* data, DType dtype, int64_t first, int cols)
      : data_(static_cast<const char*>(data) + first * size_of(dtype)),
        dtype_(dtype),
        cols_(cols) {}

  // Group `group` as it comes, or nothing where the row has none.
  __device__ void fetch(int group, Words& to) const {
    if (group * kSumGroup >= cols_) return;
    if constexpr (kVectors) {
      const auto* from = reinterpret_cast<const uint4*>(data_);
      if (dtype_ == DType::float32) {
        to.vector[0] = __ldg(from + 2 * group);
        to.vector[1] = __ldg(from + 2 * group + 1);
      } else {
        to.vector[0] = __ldg(from + group);
      }
    } else {
      with_dtype(dtype_, [&](auto dtype) {
        using Of = Format<decltype(dtype)::value>;
        const auto* from = reinterpret_cast<const typename Of::storage*>(data_);
#pragma unroll
        for (int e = 0; e < kSumGroup; ++e) {
          const int k = group * kSumGroup + e;
          const uint32_t x = k < cols_ ? from[k] : 0;
          to.word[e / Of::kPerWord] |= x << (e % Of::kPerWord * 16);
        }
      });
    }
  }
  __device__ void widen(const Words& from, float (&v)[kSumGroup]) const {
    with_dtype(dtype_, [&](auto dtype) {
      using Of = Format<decltype(dtype)::value>;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        v[e] = Of::widen(from.word[e / Of::kPerWord], e % Of::kPerWord);
      }
    });
  }
  __device__ void read(int group, float (&v)[kSumGroup]) const {
    Words words = {};
    fetch(group, words);
    widen(words, v);
  }

 private:
  const char* data_;
  DType dtype_;
  int cols_;
};

// What all producers share: x, the other input, and q. Groups that the row has not are zeros, as
// are the columns that its last group has not.
template <bool kVectors>
class RowBase {
 public:
  __device__ RowBase(const ProduceProblem& p, int64_t index)
      : p_(p), index_(index), cols_(static_cast<int>(p.cols)) {}

  __device__ int cols() const { return cols_; }
  __device__ int groups() const { return (cols_ + kSumGroup - 1) / kSumGroup; }
  __device__ int group(int i) const { return threadIdx.x + i * blockDim.x; }

  // kCount of the thread's groups, from its `first` on, by combine(group, x, other) in place of x:
  // all loads in flight together.
  template <int kCount, class Combine>
  __device__ void load_with(float (*v)[kSumGroup], int first, const Combine& combine) const {
    const InputRow<kVectors> x(p_.x.data, p_.x_dtype, index_ * p_.x.row_stride, cols_);
    const InputRow<kVectors> other(p_.other.data, p_.x_dtype, index_ * p_.other.row_stride, cols_);
    Words words[kCount] = {}, more[kCount] = {};
#pragma unroll
    for (int i = 0; i < kCount; ++i) x.fetch(group(first + i), words[i]);
    if (p_.other.data) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) other.fetch(group(first + i), more[i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float values[kSumGroup], others[kSumGroup];
      x.widen(words[i], values);
      other.widen(more[i], others);
      combine(group(first + i), values, others);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[i][e] = values[e];
    }
  }

  __device__ void times_smooth(int group, float (&v)[kSumGroup]) const {
    if (!p_.smooth) return;
    float by[kSumGroup];
    InputRow<kVectors>(p_.smooth, DType::float32, 0, cols_).read(group, by);
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
};

// --- the producers ------------------------------------------------------------------------------
//
// load<n>(v, first)     n of the thread's groups from its `first` on, as far as a row's sum is not needed
// finisher(row, sums)   finish(group, v), which does the rest

// function(x) or function(x) other.
template <bool kVectors, Producer producer>
class FunctionRow : public RowBase<kVectors> {
 public:
  using RowBase<kVectors>::RowBase;

  template <int kCount>
  __device__ void load(float (*v)[kSumGroup], int first) const {
    const bool times = this->p_.other.data;
    this->template load_with<kCount>(v, first, [&](int, auto& x, const auto& other) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) x[e] = times ? function(x[e]) * other[e] : function(x[e]);
    });
  }
  template <class Row>
  __device__ auto finisher(Row&, float (*)[512]) const {
    return [this](int group, float(&v)[kSumGroup]) { this->times_smooth(group, v); };
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

// x + other, rounded to x's dtype and written down; what norms are made of.
template <bool kVectors>
class SummedRow : public RowBase<kVectors> {
 public:
  using RowBase<kVectors>::RowBase;

  template <int kCount>
  __device__ void load(float (*v)[kSumGroup], int first) const {
    this->template load_with<kCount>(v, first, [&](int group, auto& x, const auto& other) {
      if (this->p_.other.data) add(group, x, other);
    });
  }

 protected:
  __device__ void read_weights(const EpilogueOperand& operand, float neutral, int group,
                               float (&to)[kSumGroup]) const {
    if (operand.data) {
      return InputRow<kVectors>(operand.data, operand.dtype, 0, this->cols_).read(group, to);
    }
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) to[e] = neutral;
  }
  __device__ float reciprocal_root(float sum) const {
    const float mean = __fdiv_rn(sum, static_cast<float>(this->cols_));
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + this->p_.eps));
  }

 private:
  __device__ void add(int group, float (&x)[kSumGroup], const float (&other)[kSumGroup]) const {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) x[e] += other[e];
    with_dtype(this->p_.x_dtype, [&](auto dtype) {
      using Of = Format<decltype(dtype)::value>;
      Words words = {};
      if constexpr (Of::kPerWord == 1) {
#pragma unroll
        for (int e = 0; e < kSumGroup; ++e) words.word[e] = __float_as_uint(x[e]);
      } else {
#pragma unroll
        for (int e = 0; e < kSumGroup; e += 2) words.word[e / 2] = Of::narrow(x[e], x[e + 1]);
#pragma unroll
        for (int e = 0; e < kSumGroup; ++e) x[e] = Of::widen(words.word[e / 2], e % 2);
      }
      write(group, words, static_cast<typename Of::storage*>(this->p_.sum));
    });
  }
  template <class Storage>
  __device__ void write(int group, const Words& words, Storage* sum) const {
    constexpr int kPerWord = 4 / sizeof(Storage);
    if (group * kSumGroup >= this->cols_) return;
    Storage* const to = sum + this->index_ * this->p_.cols + group * kSumGroup;
    if constexpr (kVectors) {
#pragma unroll
      for (int i = 0; i < 2 / kPerWord; ++i) reinterpret_cast<uint4*>(to)[i] = words.vector[i];
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const uint32_t word = words.word[e / kPerWord] >> (e % kPerWord ? 16 : 0);
        if (group * kSumGroup + e < this->cols_) to[e] = static_cast<Storage>(word);
      }
    }
  }
};

// x r weight with r = 1 / sqrt(mean of squares + eps).
template <bool kVectors>
class RmsNormRow : public SummedRow<kVectors> {
 public:
  using SummedRow<kVectors>::SummedRow;

  template <class Row>
  __device__ auto finisher(Row& row, float (*sums)[512]) const {
    const float r = this->reciprocal_root(row.sum([](float x) { return x * x; }, sums[0]));
    return [this, r](int group, float(&v)[kSumGroup]) {
      float weight[kSumGroup];
      this->read_weights(this->p_.weight, 1.0f, group, weight);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[e] = v[e] * r * weight[e];
      this->times_smooth(group, v);
    };
  }
};

// (x - mean) r weight + bias with r = 1 / sqrt(mean of (x - mean)^2 + eps).
template <bool kVectors>
class LayerNormRow : public SummedRow<kVectors> {
 public:
  using SummedRow<kVectors>::SummedRow;

  template <class Row>
  __device__ auto finisher(Row& row, float (*sums)[512]) const {
    const float mean =
        __fdiv_rn(row.sum([](float x) { return x; }, sums[0]), static_cast<float>(this->cols_));
    const float r = this->reciprocal_root(
        row.sum([mean](float x) { return (x - mean) * (x - mean); }, sums[1]));
    return [this, mean, r](int group, float(&v)[kSumGroup]) {
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

template <bool kVectors, Producer producer>
struct RowOf {
  using type = FunctionRow<kVectors, producer>;
};
template <bool kVectors>
struct RowOf<kVectors, Producer::rms_norm> {
  using type = RmsNormRow<kVectors>;
};
template <bool kVectors>
struct RowOf<kVectors, Producer::layer_norm> {
  using type = LayerNormRow<kVectors>;
};

}  // namespace scaled_mm::cuda
