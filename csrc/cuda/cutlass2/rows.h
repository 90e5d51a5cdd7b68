// How the multistage mainloop of CUTLASS 2.x reads an operand whose rows lie along K: A row-major,
// B column-major. CUTLASS's own iterator keeps a bit for each row of the tile and adds up 64-bit
// pointers behind it: a tile of 128 x 128 x 128 has 300 instructions so, and 273 here
// (docs/mma_sync.md, "What pays").
#pragma once

#include <cutlass/array.h>
#include <cutlass/gemm/threadblock/mma_multistage.h>
#include <cutlass/matrix_coord.h>

#include <cstdint>

#include "cuda/common/relayout.h"

namespace scaled_mm::cuda::cutlass2 {

constexpr int64_t kMostRowStride = (int64_t{1} << 32) - 1;  // bytes

// Rows of int8 as CUTLASS 2.x reads them, in whole vectors of 16 bytes, at least one, and by
// strides that RowsAlongK can multiply by: as they are, or a copy with zeros up to a multiple
// of 16.
inline Matrix<const int8_t> whole_rows(const Matrix<const int8_t>& from, int64_t rows, int64_t k,
                                       const Scope& scope) {
  if (k % 16 == 0 && k > 0 && from.row_stride <= kMostRowStride) return from;
  const int64_t stride = packed_stride(k);
  auto* const copy = scope.allocate<int8_t>(rows * stride);
  relayout(from, rows, k, copy, stride, scope.stream);
  return {copy, stride, 1};
}

// The copies of 16 bytes that a thread makes of the tiles that follow each other along K. kRows:
// which coordinate of a MatrixCoord counts rows, 0 of A and 1 of B. kDepth: bytes of K of a tile.
// The first tile has what is left of K beside whole tiles: its zeros are written before the
// mainloop, which copies nothing but whole ones.
template <class ThreadMap_, int kRows, int kDepth>
class RowsAlongK {
 public:
  using Element = int8_t;
  using Pointer = const Element*;
  using ThreadMap = ThreadMap_;
  using AccessType = cutlass::Array<Element, ThreadMap::kElementsPerAccess>;
  static constexpr int kAccessesPerVector = 1;
  static_assert(ThreadMap::Iterations::kContiguous == 1 && sizeof(AccessType) == 16);

  struct Params {
    uint32_t stride;  // bytes from a row to the next
    template <class Layout>
    explicit Params(const Layout& layout) : stride(static_cast<uint32_t>(layout.stride(0))) {}
  };

  // `extent`: the first row and element of K that the operand has not; `first`: those of the tile.
  __device__ RowsAlongK(const Params& params, Pointer data, const cutlass::MatrixCoord& extent,
                        int thread, const cutlass::MatrixCoord& first)
      : stride_(params.stride) {
    const auto mine = ThreadMap::initial_offset(thread);
    const int row = first[kRows] + mine.strided(), begin = first[1 - kRows];
    const int behind = (extent[1 - kRows] - begin) % kDepth;
    rest_ = behind ? behind : kDepth;
    rows_ = extent[kRows] - row;
    limit_ = mine.contiguous() < rest_ ? rows_ : 0;
    data_ = data + int64_t{row} * stride_ + begin + mine.contiguous();
  }

  __device__ void set_iteration_index(int index) { index_ = index; }
  __device__ RowsAlongK& operator++() {
    ++index_;
    return *this;
  }
  __device__ const AccessType* get() const {
    const auto down = static_cast<uint32_t>(index_ * ThreadMap::Delta::kStrided);
    return reinterpret_cast<const AccessType*>(data_ + uint64_t{down} * stride_);
  }
  __device__ bool valid() const { return index_ * ThreadMap::Delta::kStrided < limit_; }

  // To the next tile along K; its coordinates are not looked at.
  __device__ void add_tile_offset(const cutlass::MatrixCoord&) {
    data_ += is_first_ ? rest_ : kDepth;
    if (is_first_) limit_ = rows_;
    is_first_ = false;
  }
  // Behind the last tile nothing is copied.
  __device__ void clear_mask(bool clear = true) {
    if (clear) limit_ = 0;
  }

 private:
  Pointer data_;
  uint32_t stride_;
  int rows_;   // from the thread's first on
  int limit_;  // those of them that are copied
  int rest_;   // bytes of K of the first tile
  int index_ = 0;
  bool is_first_ = true;
};

// Of CUTLASS's choice for int8: the same mainloop with these iterators.
template <class Default, class Mma = typename Default::ThreadblockMma>
using MultistageOfRows = cutlass::gemm::threadblock::MmaMultistage<
    typename Mma::Shape, RowsAlongK<typename Default::ThreadMapA, 0, Mma::Shape::kK>,
    typename Mma::SmemIteratorA, Mma::kCacheOpA,
    RowsAlongK<typename Default::ThreadMapB, 1, Mma::Shape::kK>, typename Mma::SmemIteratorB,
    Mma::kCacheOpB, typename Mma::ElementC, typename Mma::LayoutC, typename Mma::Policy,
    Mma::Detail::kStages>;

}  // namespace scaled_mm::cuda::cutlass2
