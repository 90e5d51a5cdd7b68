// Some elements of a row of x and their q, as the kernels of quantize.cu read and write them.
#pragma once

#include <cstdint>

#include "cuda/common/formats.cuh"
#include "cuda/quantize/quantizer.cuh"
#include "problems/quantize.h"

namespace scaled_mm::cuda {

// The elements of x that a thread loads at once, as words.
template <class Format, int kElements>
struct Chunk {
  static constexpr int kWords = (kElements + Format::kPerWord - 1) / Format::kPerWord;
  uint32_t words[kWords];

  __device__ float operator[](int i) const {
    return Format::widen(words[i / Format::kPerWord], i % Format::kPerWord);
  }
};

// A row, or a part of it, cut into chunks of kElements. Either that is 1, or x and q are aligned to
// chunks at the same elements, and a row may begin and end within one:
//
//   x, q    | . . . 0 1 2 3 4 | 5 6 7 8 9 ... | ... | K-2 K-1 . . .  |
//            chunk 0           chunk 1               last chunk
//
// Chunks that are whole go through registers; the few elements beside them (`odd`) one to a thread.
// Threads are numbered within the team that the part belongs to, which has 32 at least.
template <class Format, int kElements>
class RowPart {
  using Storage = typename Format::storage;

 public:
  using X = Chunk<Format, kElements>;

  // Chunks [first, first + count) of a row, as far as it has them; at most 2^30 elements.
  __device__ RowPart(const QuantizeProblem& p, int64_t row, int64_t first, int64_t count) {
    const int64_t shift = row * p.cols % kElements;  // of the row's beginning within its chunk 0
    const int64_t start = first * kElements - shift;
    x_ = static_cast<const Storage*>(p.x.data) + row * p.x.row_stride + start * p.x.col_stride;
    q_ = p.q + row * p.cols + start;
    stride_ = p.x.col_stride;
    begin_ = first == 0 ? static_cast<int>(shift) : 0;
    end_ = static_cast<int>(min(p.cols - start, count * kElements));
  }

  // The end of the whole chunks.
  __device__ int chunks() const { return end_ / kElements; }

  // Chunks first, first + step, ..., all in flight together; zeros where there is none.
  template <int kChunks>
  __device__ void load(int first, int step, X (&x)[kChunks]) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = first + i * step;
      x[i] = {};
      if (!is_whole(chunk)) continue;
      if constexpr (kElements == 1) {
        x[i].words[0] = x_[chunk * stride_];
      } else {
        const uint4 all = __ldca(reinterpret_cast<const uint4*>(x_) + chunk);
        x[i].words[0] = all.x;
        x[i].words[1] = all.y;
        x[i].words[2] = all.z;
        x[i].words[3] = all.w;
      }
    }
  }

  // Extends the range by what `load` loaded.
  template <int kChunks>
  __device__ void extend(Range& range, int first, int step, const X (&x)[kChunks]) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (first + i * step >= chunks()) return;
#pragma unroll
      for (int e = 0; e < kElements; ++e) range.extend(x[i][e]);
    }
  }
  __device__ void extend_by_odd(Range& range, int thread) const {
    const int k = odd(thread);
    if (k >= 0) range.extend(element(k));
  }

  // The counterpart of load: q of an element x is quick(x), saturated.
  template <int kChunks, class Quick>
  __device__ void store(int first, int step, const X (&x)[kChunks], const Quick& quick) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = first + i * step;
      if (!is_whole(chunk)) continue;
      if constexpr (kElements == 1) {
        q_[chunk] = static_cast<int8_t>(pack(quick(x[i][0]), 0, 0, 0));
      } else {
        uint32_t words[kElements / 4];
#pragma unroll
        for (int w = 0; w < kElements / 4; ++w) {
          words[w] = pack(quick(x[i][4 * w]), quick(x[i][4 * w + 1]), quick(x[i][4 * w + 2]),
                          quick(x[i][4 * w + 3]));
        }
        store_whole(chunk, words);
      }
    }
  }
  template <class Quick>
  __device__ void store_odd(int thread, const Quick& quick) const {
    const int k = odd(thread);
    if (k >= 0) q_[k] = static_cast<int8_t>(pack(quick(element(k)), 0, 0, 0));
  }

  // All elements, by the formula as it stands: for scales that are rare. Threads take every
  // `step`-th, the first `thread`.
  __device__ void store_exact(int thread, int step, const Quantizer& by) const {
    for (int k = begin_ + thread; k < end_; k += step) {
      q_[k] = by.exact(element(k));
    }
  }

 private:
  __device__ bool is_whole(int chunk) const { return chunk >= (begin_ > 0) && chunk < chunks(); }
  __device__ float element(int k) const { return Format::widen(x_[k * stride_], 0); }

  // The element beside the whole chunks that is the thread's, or -1: first those of a chunk 0 that
  // is not whole, then those of a last chunk that is neither that one nor whole.
  __device__ int odd(int thread) const {
    if constexpr (kElements == 1) return -1;
    const int head_end = begin_ > 0 ? min(kElements, end_) : 0;
    const int head = head_end - begin_;
    if (thread < head) return begin_ + thread;
    const int k = max(chunks() * kElements, head_end) + thread - head;
    return k < end_ ? k : -1;
  }

  __device__ void store_whole(int chunk, const uint32_t (&words)[1]) const {
    reinterpret_cast<uint32_t*>(q_)[chunk] = words[0];
  }
  __device__ void store_whole(int chunk, const uint32_t (&words)[2]) const {
    reinterpret_cast<uint2*>(q_)[chunk] = make_uint2(words[0], words[1]);
  }

  // Of chunk 0's first element, be it of the row or not.
  const Storage* x_;
  int8_t* q_;
  int64_t stride_;   // of x
  int begin_, end_;  // the elements that there are, counted from there
};

}  // namespace scaled_mm::cuda
