// Groups of eight elements of a row, as the producers read them.
#pragma once

#include <cstdint>

#include "cuda/common/formats.cuh"
#include "cuda/common/load_if.cuh"
#include "problems/produce.h"

namespace scaled_mm::cuda {

// A group of elements of a dtype, as they come.
template <DType dtype>
struct Words {
  static constexpr int kWords = kSumGroup / Format<dtype>::kPerWord;
  union {
    uint4 vector[kWords / 4];
    uint32_t word[kWords];
  };

  __device__ Words() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = 0;
  }
  // Group `group` of a row that begins at a multiple of 16 bytes, if `wanted`; else all stays.
  __device__ void read_if(bool wanted, const void* row, int group) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      load_if<16>(wanted, static_cast<const uint4*>(row) + (group * kWords + i) / 4, word + i);
    }
  }
  __device__ float operator[](int e) const {
    using Of = Format<dtype>;
    return Of::widen(word[e / Of::kPerWord], e % Of::kPerWord);
  }
};

// Group `group` of a row of `cols` elements, zeros where it has none. kVectors: it begins at a
// multiple of 16 bytes and is whole.
template <bool kVectors, DType dtype>
__device__ inline Words<dtype> read_group(const void* row, int group, int cols) {
  using Of = Format<dtype>;
  Words<dtype> words;
  if (group * kSumGroup >= cols) return words;
  if constexpr (kVectors) {
    constexpr int kCount = Words<dtype>::kWords / 4;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      words.vector[i] = __ldca(static_cast<const uint4*>(row) + group * kCount + i);
    }
  } else {
    const auto* from = static_cast<const typename Of::storage*>(row) + group * kSumGroup;
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) {
      const uint32_t x = group * kSumGroup + e < cols ? from[e] : 0;
      words.word[e / Of::kPerWord] |= x << (e % Of::kPerWord * 16);
    }
  }
  return words;
}

// The same of an operand of whatever dtype, as float32.
template <bool kVectors>
__device__ inline void read_floats(const EpilogueOperand& operand, int group, int cols,
                                   float (&to)[kSumGroup]) {
  with_dtype(operand.dtype, [&](auto dtype) {
    const auto words = read_group<kVectors, decltype(dtype)::value>(operand.data, group, cols);
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) to[e] = words[e];
  });
}

}  // namespace scaled_mm::cuda
