// Stores of a few neighbouring elements of a row of D.
#pragma once

#include <type_traits>

#include "cuda/common/formats.cuh"

namespace scaled_mm::cuda {

struct Output {
  void* d;
  DType dtype;   // unless what is stored is int32
  bool vectors;  // whether as many elements can be written at once, from every multiple of them on
};

namespace detail {

// kSize elements of type T, `count` of which are inside, from the words that hold them.
template <int kSize, class T>
__device__ inline void store_words(T* d, const uint32_t* words, int count, bool vectors) {
  constexpr int kPerWord = 4 / sizeof(T), kBits = 8 * sizeof(T);
  constexpr int kWords = (kSize + kPerWord - 1) / kPerWord;
  using Word = std::conditional_t<kSize * sizeof(T) == 2, uint16_t, uint32_t>;
  // A thread writes 16 bytes at a time, at most.
  constexpr int kAlign = kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16;
  struct alignas(kAlign) Vector {
    Word of[kWords];
  };
  if (vectors && count >= kSize) {
    Vector all;
#pragma unroll
    for (int i = 0; i < kWords; ++i) all.of[i] = static_cast<Word>(words[i]);
    *reinterpret_cast<Vector*>(d) = all;
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (i < count) d[i] = static_cast<T>(words[i / kPerWord] >> i % kPerWord * kBits);
    }
  }
}

}  // namespace detail

// Elements [at, at + kSize) of D, rounded to its dtype, of which `count` are inside.
template <class T, int kSize>
__device__ inline void store_row(const Output& out, int64_t at, int count,
                                 const T (&value)[kSize]) {
  if constexpr (std::is_same_v<T, int32_t>) {
    uint32_t words[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) words[i] = static_cast<uint32_t>(value[i]);
    detail::store_words<kSize>(static_cast<uint32_t*>(out.d) + at, words, count, out.vectors);
  } else {
    uint32_t words[kSize];
    const int bytes = with_dtype(out.dtype, [&](auto dtype) {
      using To = Format<decltype(dtype)::value>;
      static_assert(sizeof(typename To::storage) == 4 || sizeof(typename To::storage) == 2);
      if constexpr (To::kPerWord == 1) {
#pragma unroll
        for (int i = 0; i < kSize; ++i) words[i] = __float_as_uint(value[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kSize; i += 2) words[i / 2] = To::narrow(value[i], value[i + 1]);
      }
      return static_cast<int>(sizeof(typename To::storage));
    });
    // A store for each size, not for each dtype: short kernels wait for their code to be loaded.
    if (bytes == 4) {
      detail::store_words<kSize>(static_cast<uint32_t*>(out.d) + at, words, count, out.vectors);
    } else {
      detail::store_words<kSize>(static_cast<uint16_t*>(out.d) + at, words, count, out.vectors);
    }
  }
}

}  // namespace scaled_mm::cuda
