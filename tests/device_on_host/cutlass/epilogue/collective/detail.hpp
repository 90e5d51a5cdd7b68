// Of CUTLASS, what cutlass3/direct.h takes from it: names, and the places of a wgmma's sums.
#pragma once

#include <tuple>
#include <type_traits>

#include "cuda_runtime.h"

#define CUTLASS_DEVICE inline
#define CUTLASS_HOST_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL
#define CUTLASS_PRAGMA_NO_UNROLL

namespace cutlass {
struct CudaHostAdapter;
enum class Status { kSuccess };
namespace layout {
struct RowMajor {};
}  // namespace layout
namespace gemm {
template <class>
using TagToStrideC_t = std::tuple<int64_t, int, int>;
}  // namespace gemm
namespace epilogue {
struct NoSmemWarpSpecialized {};
}  // namespace epilogue
namespace arch {
enum class ReservedNamedBarriers { EpilogueBarrier };
struct NamedBarrier {
  static void sync(int threads, ReservedNamedBarriers) { Block::meet(-1, threads); }
};
inline void wait_on_dependent_grids() {}
}  // namespace arch
}  // namespace cutlass

namespace cute {

using std::get;
template <int kValue>
using Int = std::integral_constant<int, kValue>;
template <class... Sizes>
using Shape = std::tuple<Sizes...>;
template <class... Parts>
constexpr auto make_coord(Parts... parts) {
  return std::make_tuple(parts...);
}
template <int, int, class M, class N, class K>
constexpr Shape<M, N> take(Shape<M, N, K>) {
  return {};
}
template <class Tile>
constexpr Tile make_identity_tensor(Tile tile) {
  return tile;
}

// The sums that a thread of a warpgroup has of a tile of kRows x kCols, by ((column of two, row of
// two, group of eight columns), along M, along N). PTX ISA, "Register fragments" of
// wgmma.mma_async.m64nNk32, matrix D.
template <int kRows, int kCols>
struct WgmmaSums {
  template <int... kMode>
  static constexpr int size() {
    constexpr int kModes[] = {kMode..., -1};
    if (sizeof...(kMode) == 2) return kModes[1] == 2 ? kCols / 8 : 2;
    return kModes[0] == 1 ? kRows / 64 : 1;
  }
};
template <int kFirst, int... kRest, class T>
constexpr int size(const T&) {
  if constexpr (requires { T::template size<kFirst, kRest...>(); }) {
    return T::template size<kFirst, kRest...>();
  } else {
    return std::tuple_element_t<kFirst, T>::value;
  }
}

// The place in the tile of one of them.
struct Warpgroup {
  int thread = 0;

  Warpgroup get_thread_slice(int of) const { return {of}; }
  template <class Tile>
  Warpgroup partition_C(const Tile&) const {
    return *this;
  }
  template <class Coord>
  std::tuple<int, int> operator()(const Coord& at) const {
    const auto [column, row, group] = get<0>(at);
    return {64 * get<1>(at) + 16 * (thread / 32) + thread % 32 / 4 + 8 * row,
            8 * group + thread % 4 * 2 + column};
  }
};
constexpr int size(const Warpgroup&) { return 128; }

// Engine: of(row, column) of the tile.
template <class Engine, class Layout>
struct Tensor {
  Engine of;
  Warpgroup places;

  template <class Coord>
  int32_t operator()(const Coord& at) const {
    const auto [row, col] = places(at);
    return of(row, col);
  }
};

}  // namespace cute
