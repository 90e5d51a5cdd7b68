// A producer's row as its team has it: in registers, or made anew whenever it is needed.
#pragma once

#include <algorithm>

#include "cuda/quantize/produce_row.cuh"
#include "cuda/quantize/produce_team.cuh"
#include "cuda/quantize/rotate.cuh"

namespace scaled_mm::cuda {

// A row of a team, group by group.
template <class P, class A, class T>
class TeamRow {
 public:
  static constexpr int kHeld = A::kHeld;
  using Exchange = typename T::Exchange;

  __device__ TeamRow(const P& producer, const T& team, Exchange& exchange, int64_t row)
      : producer_(producer), team_(team), exchange_(exchange), row_(row) {
    // Loads in flight together: of more the registers would spill, from 10.0 on sooner.
#if __CUDA_ARCH__ >= 1000
    constexpr int kWordsAtOnce = 4;
#else
    constexpr int kWordsAtOnce = kHeld > 4 ? 8 : 16;
#endif
    constexpr int kAtOnce = std::clamp(kWordsAtOnce / Words<A::dtype>::kWords, 1, kMost);
    Inputs<A::dtype> inputs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kHeld; i += kAtOnce) {
      producer_.template fetch<kAtOnce>(inputs, row, group(i), team.size());
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        producer_.take(row, group(i + j), inputs[j], held_[i + j]);
      }
    }
  }

  __device__ int group(int i) const { return team_.thread() + i * team_.size(); }

  // use(group, v) of every group that there is, which may change v where it is held.
  template <class Use>
  __device__ void each(const Use& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (producer_.has(group(i))) use(group(i), held_[i]);
      }
    } else {
#pragma unroll 1
      for (int i = 0; producer_.has(group(i)); ++i) use(group(i), again(i));
    }
  }

  // use(group, v) of every group that the team could have, the same number of times in every
  // thread; of a row that is not held.
  template <class Use>
  __device__ void all(const Use& use) {
#pragma unroll 1
    for (int i = 0; producer_.has(i * team_.size()); ++i) use(group(i), again(i));
  }

  // Rotates a group that was made, with those of other threads. Blocks lie in neighbouring threads,
  // those of 512 columns in two warps.
  __device__ void rotate(int block, float (&v)[kSumGroup]) const {
    rotate_group(v);
#pragma unroll 1
    for (int bit = 1; bit < min(32, block / kSumGroup); bit *= 2) rotate_lanes(v, bit);
    if constexpr (T::kMeets) {
      if (block > 32 * kSumGroup) T::rotate_warps(v, exchange_.sums);
    }
    const float factor = rotation_factor(block);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) v[e] *= factor;
  }

  // The sum of f(v) over the row, in the contract's order. Without registers that hold the row the
  // team is kMaxTeam: the thread has kSlots lanes and comes round to each in turn. `which`: of the
  // row's sums.
  template <class F>
  __device__ float sum(const F& f, int which) {
    constexpr int kSlots = kHeld > 0 ? kHeld : kSumLanes / kMaxTeam;
    float slots[kSlots] = {};
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) slots[i] = sum_of_group(group(i), held_[i], f);
    } else {
#pragma unroll 1
      for (int first = 0; producer_.has(group(first)); first += kSlots) {
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
          slots[i] += sum_of_group(group(first + i), again(first + i), f);
        }
      }
    }
    return T::sum(sum_by_halves<kSlots>(slots), exchange_.sums[which]);
  }

 private:
  using Floats = float[kSumGroup];

  template <class F>
  __device__ float sum_of_group(int group, const Floats& v, const F& f) const {
    float term[kSumGroup];
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) term[e] = f(v[e]);
    producer_.clear_beyond(group, term);
    const float sum =
        ((term[0] + term[4]) + (term[2] + term[6])) + ((term[1] + term[5]) + (term[3] + term[7]));
    return producer_.has(group) ? sum : 0.0f;
  }
  __device__ Floats& again(int i) {
    Inputs<A::dtype> inputs;
    producer_.template fetch<1>(&inputs, row_, group(i), 0);
    producer_.take(row_, group(i), inputs, held_[0]);
    return held_[0];
  }

  static constexpr int kMost = kHeld > 0 ? kHeld : 1;
  const P& producer_;
  const T& team_;
  Exchange& exchange_;
  int64_t row_;
  float held_[kMost][kSumGroup];
};

}  // namespace scaled_mm::cuda
