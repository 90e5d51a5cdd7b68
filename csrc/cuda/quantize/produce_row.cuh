// What the kernel of produce.cu does to one row: how its inputs are read and q written, and the
// producers. Groups of eight columns are numbered within the row; thread t of the team has groups
// t, t + team, ... (produce_team.cuh).
#pragma once

#include <cstdint>

#include "cuda/epilogue/functions.cuh"
#include "cuda/quantize/group.cuh"
#include "cuda/quantize/produce_team.cuh"
#include "cuda/quantize/quantizer.cuh"
#include "problems/produce.h"

namespace scaled_mm::cuda {

// --- a row --------------------------------------------------------------------------------------

// How the groups of a row are read. kVectors: every group is whole and begins at a multiple of 16
// bytes. kHeld: as many of them a thread holds; 0: none. `weights`: the dtype of a norm's weight
// and bias, where they are not read by read_floats.
template <DType kDType, DType kWeights, int kHeldGroups>
struct Access {
  static constexpr DType dtype = kDType, weights = kWeights;
  static constexpr int kHeld = kHeldGroups;
  static constexpr bool kVectors = kHeld > 0;
};

// A group of x and of the other input, as they come.
template <DType dtype>
struct Inputs {
  Words<dtype> x, other;
};

// What all producers share: x, the other input, and q. Groups that the row has not are zeros, as
// are the columns that its last group has not.
template <class A>
class RowBase {
 public:
  static constexpr bool kVectors = A::kVectors;
  using Of = Format<A::dtype>;
  using Storage = typename Of::storage;
  using Floats = float[kSumGroup];

  __device__ explicit RowBase(const ProduceProblem& p) : p_(p), cols_(static_cast<int>(p.cols)) {}

  __device__ int groups() const { return (cols_ + kSumGroup - 1) / kSumGroup; }
  __device__ bool has(int group) const { return group * kSumGroup < cols_; }

  // Begins to read kCount groups of a row, the team's `step` apart: all are in flight together.
  template <int kCount>
  __device__ void fetch(Inputs<A::dtype>* to, int64_t row, int group, int step) const {
    const Storage* const x = row_of<const Storage>(p_.x, row);
#pragma unroll
    for (int i = 0; i < kCount; ++i) read(to[i].x, x, group + i * step);
    if (!p_.other.data) return;
    const Storage* const other = row_of<const Storage>(p_.other, row);
#pragma unroll
    for (int i = 0; i < kCount; ++i) read(to[i].other, other, group + i * step);
  }

  __device__ void times_smooth(int group, Floats& v) const {
    float by[kSumGroup];
    read_floats<kVectors>({p_.smooth, DType::float32}, group, cols_, by);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) v[e] *= by[e];
  }

  // The row's quantiser: of a range, which is written down, or of what is given.
  __device__ Quantizer quantizer(int64_t row, const Range& range, bool first) const {
    float& scale = p_.scale[row * p_.scale_stride];
    int32_t* const azp = p_.azp ? p_.azp + row * p_.azp_stride : nullptr;
    if (p_.given) return quantizer_given(scale, azp ? *azp : 0, p_.symmetric);
    const Quantizer by = quantizer_of(range, p_.symmetric);
    if (first) {
      scale = by.scale;
      if (azp) *azp = by.azp;
    }
    return by;
  }

  // What counts in a sum or a range: zeros for columns that the row has not.
  __device__ void clear_beyond(int group, Floats& v) const {
    if constexpr (!kVectors) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        if (group * kSumGroup + e >= cols_) v[e] = 0.0f;
      }
    }
  }

  // q of a group that the row has: bytes(v) of four values as a word.
  template <class Bytes>
  __device__ void store(int64_t row, int group, const Floats& v, const Bytes& bytes) const {
    const uint2 words = make_uint2(bytes(v), bytes(v + 4));
    int8_t* const to = p_.q + row * p_.cols + group * kSumGroup;
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
  template <class T>
  static __device__ T* row_of(const Matrix<const void>& matrix, int64_t row) {
    return static_cast<T*>(matrix.data) + row * matrix.row_stride;
  }

  // Of several groups, whose loads are under way together anyway, a predicate makes slower code.
  __device__ void read(Words<A::dtype>& to, const Storage* row, int group) const {
    if constexpr (A::kHeld == 1) {
      to.read_if(has(group), row, group);
    } else {
      to = read_group<kVectors, A::dtype>(row, group, cols_);
    }
  }

  const ProduceProblem& p_;
  int cols_;
};

// --- the producers ------------------------------------------------------------------------------
//
// keep(group)                  reads what is the same for every row, as far as it is held
// take(row, group, inputs, v)  a group of a row, before what needs the row's sum
// finisher(row)                finish(group, v), which does the rest but smooth

// function(x) or function(x) other.
template <class A, Producer producer>
class FunctionRow : public RowBase<A> {
 public:
  using RowBase<A>::RowBase;
  using Floats = float[kSumGroup];

  __device__ void keep(int) {}
  __device__ void take(int64_t, int, const Inputs<A::dtype>& inputs, Floats& v) const {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) {
      v[e] = functions::value<FunctionOps, function_of(producer)>(inputs.x[e]);
      if (this->p_.other.data) v[e] *= inputs.other[e];
    }
  }
  template <class Row>
  __device__ auto finisher(Row&) const {
    return [](int, Floats&) {};
  }
};

// A weight or bias of a norm: read once for all rows where a thread holds one group, else again for
// each, out of the nearest cache.
template <class A, uint32_t kNeutralBits>
class NormVector {
 public:
  __device__ NormVector(const EpilogueOperand& operand, int cols)
      : operand_(operand), cols_(cols) {}

  __device__ void keep(int group) {
    if constexpr (kKept) kept_ = read(group);
  }
  __device__ void get(int group, float (&to)[kSumGroup]) const {
    if constexpr (A::kHeld == 0) {
      if (operand_.data) return read_floats<false>(operand_, group, cols_, to);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) to[e] = __uint_as_float(kNeutralBits);
    } else {
      const Words words = kKept ? kept_ : read(group);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) to[e] = words[e];
    }
  }

 private:
  using Words = cuda::Words<A::weights>;
  static constexpr bool kKept = A::kHeld == 1;

  __device__ Words read(int group) const {
    if constexpr (!kKept) {
      if (operand_.data) return read_group<true, A::weights>(operand_.data, group, cols_);
    }
    Words words;
    constexpr float kNeutral = __builtin_bit_cast(float, kNeutralBits);
#pragma unroll
    for (int i = 0; i < Words::kWords; ++i) {
      if constexpr (A::weights == DType::float32) {
        words.word[i] = kNeutralBits;
      } else {
        words.word[i] = Format<A::weights>::narrow(kNeutral, kNeutral);
      }
    }
    if constexpr (kKept) {
      const bool there = operand_.data && group * kSumGroup < cols_;
      words.read_if(there, operand_.data, group);
    }
    return words;
  }

  const EpilogueOperand& operand_;
  int cols_;
  Words kept_;
};

// x, or x + other rounded to x's dtype and written down; what norms are made of.
template <class A>
class SummedRow : public RowBase<A> {
 public:
  using Floats = float[kSumGroup];

  __device__ explicit SummedRow(const ProduceProblem& p)
      : RowBase<A>(p), weight_(p.weight, this->cols_) {}

  __device__ void keep(int group) { weight_.keep(group); }
  __device__ void take(int64_t row, int group, const Inputs<A::dtype>& inputs, Floats& v) const {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) v[e] = inputs.x[e];
    if (this->p_.other.data) add(row, group, inputs.other, v);
  }
  // The norm of a group that the row has, as floats of x's dtype, where they are wanted.
  __device__ void keep_normed(int64_t row, int group, const Floats& v) const {
    if (this->p_.normed) write(this->p_.normed, row, group, rounded(v));
  }

 protected:
  __device__ float reciprocal_root(float sum) const {
    const float mean = __fdiv_rn(sum, static_cast<float>(this->cols_));
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + this->p_.eps));
  }

  NormVector<A, 0x3f800000> weight_;  // 1 where it is absent

 private:
  using Of = Format<A::dtype>;
  using Storage = typename Of::storage;
  using Words = cuda::Words<A::dtype>;

  static __device__ Words rounded(const Floats& x) {
    Words words;
    if constexpr (Of::kPerWord == 1) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) words.word[e] = __float_as_uint(x[e]);
    } else {
#pragma unroll
      for (int e = 0; e < kSumGroup; e += 2) words.word[e / 2] = Of::narrow(x[e], x[e + 1]);
    }
    return words;
  }
  __device__ void add(int64_t row, int group, const Words& other, Floats& x) const {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) x[e] += other[e];
    const Words words = rounded(x);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) x[e] = words[e];
    if (this->has(group)) write(this->p_.sum, row, group, words);
  }
  // A group of a row-major output of x's dtype.
  __device__ void write(void* rows, int64_t row, int group, const Words& words) const {
    Storage* const to = static_cast<Storage*>(rows) + row * this->p_.cols + group * kSumGroup;
    if constexpr (A::kVectors) {
#pragma unroll
      for (int i = 0; i < Words::kWords / 4; ++i) {
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
template <class A>
class RmsNormRow : public SummedRow<A> {
 public:
  using SummedRow<A>::SummedRow;

  template <class Row>
  __device__ auto finisher(Row& row) const {
    const float r = this->reciprocal_root(row.sum([](float x) { return x * x; }, 0));
    return [this, r](int group, float (&v)[kSumGroup]) {
      float weight[kSumGroup];
      this->weight_.get(group, weight);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[e] = v[e] * r * weight[e];
    };
  }
};

// (x - mean) r weight + bias with r = 1 / sqrt(mean of (x - mean)^2 + eps).
template <class A>
class LayerNormRow : public SummedRow<A> {
 public:
  __device__ explicit LayerNormRow(const ProduceProblem& p)
      : SummedRow<A>(p), bias_(p.bias, this->cols_) {}

  __device__ void keep(int group) {
    SummedRow<A>::keep(group);
    bias_.keep(group);
  }
  template <class Row>
  __device__ auto finisher(Row& row) const {
    float mean = __fdiv_rn(row.sum([](float x) { return x; }, 0), static_cast<float>(this->cols_));
    const float r =
        this->reciprocal_root(row.sum([mean](float x) { return (x - mean) * (x - mean); }, 1));
#if __CUDA_ARCH__ >= 1000  // else ptxas keeps all x - mean of the sum for below, and spills
    asm volatile("" : "+f"(mean));
#endif
    return [this, mean, r](int group, float (&v)[kSumGroup]) {
      float weight[kSumGroup], bias[kSumGroup];
      this->weight_.get(group, weight);
      bias_.get(group, bias);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        v[e] = __fmaf_rn((v[e] - mean) * r, weight[e], bias[e]);
      }
    };
  }

 private:
  NormVector<A, 0x80000000> bias_;  // -0 where it is absent
};

template <class A, Producer producer>
struct RowOf {
  using type = FunctionRow<A, producer>;
};
template <class A>
struct RowOf<A, Producer::rms_norm> {
  using type = RmsNormRow<A>;
};
template <class A>
struct RowOf<A, Producer::layer_norm> {
  using type = LayerNormRow<A>;
};

}  // namespace scaled_mm::cuda
