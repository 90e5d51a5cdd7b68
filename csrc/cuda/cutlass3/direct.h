// The epilogue of a CUTLASS 3.x kernel that writes D from registers. CUTLASS's own goes through
// shared memory and TMA, with a tile of D as large as the tile of sums, of a dtype that is known
// when it is compiled. This one ends in what those cannot: one column of two, and any dtype.
//
// wgmma leaves a thread two neighbouring columns of every eight. Four threads, a quad, hold a row
// of these; they swap until each has all that four groups of eight columns had of one group:
//
//     columns    0 1 | 2 3 | 4 5 | 6 7 || 8 9 | ...             lane 0      lane 1      ...
//     in lane     0     1     2     3      0           ->      0 .. 7     8 .. 15
//
// so that a thread writes what eight columns make, and a quad what 32 do, side by side.
//
// Include after CUTLASS's collective builders.
#pragma once

#include <cutlass/epilogue/collective/detail.hpp>

#include <algorithm>

#include "cuda/common/finish.cuh"

namespace scaled_mm::cuda::cutlass3 {

// Lane l of a quad gets item l of each of its four lanes.
__device__ inline void transpose_quad(float (&item)[4], int lane) {
  const auto swap = [&](float& low, float& high, int distance) {
    const bool upper = lane & distance;
    const float got = __shfl_xor_sync(~0u, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  swap(item[0], item[1], 1);
  swap(item[2], item[3], 1);
  swap(item[0], item[2], 2);
  swap(item[1], item[3], 2);
}

// use(constant) with index as an integral_constant, of kFirst <= index < kFirst + kCount. Registers
// have no index: this is how a loop that is not unrolled takes some of them in turn.
template <int kFirst, int kCount, class Use>
__device__ inline void with_index(int index, const Use& use) {
  if constexpr (kCount == 1) {
    use(cute::Int<kFirst>{});
  } else if (index < kFirst + kCount / 2) {
    with_index<kFirst, kCount / 2>(index, use);
  } else {
    with_index<kFirst + kCount / 2, kCount - kCount / 2>(index, use);
  }
}

template <class E, class Tile>
class DirectStore {
  static constexpr int kRows = cute::size<0>(Tile{}), kCols = cute::size<1>(Tile{});
  static constexpr int kColumns = epilogue::columns_of(E::form);
  using Operands = StagedOperands<typename Lower<E>::List, kRows, kCols>;

 public:
  using DispatchPolicy = cutlass::epilogue::NoSmemWarpSpecialized;
  using ElementAccumulator = int32_t;
  using ElementC = void;
  using ElementD = uint8_t;  // whatever it is
  using StrideC = cutlass::gemm::TagToStrideC_t<cutlass::layout::RowMajor>;
  using StrideD = StrideC;
  struct SharedStorage {
    Operands operands;
  };
  struct Arguments {
    EpilogueOperand operands[kNumOperands];
    Destination to;
  };
  using Params = Arguments;

  static Arguments arguments(const EpilogueOperand (&operands)[kNumOperands],
                             const Destination& to) {
    Arguments all{{}, to};
    all.to.out.vectors = to.ldd % (8 / kColumns) == 0;  // of what eight channels make
    std::copy(std::begin(operands), std::end(operands), all.operands);
    return all;
  }
  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& args, void*) {
    return args;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE explicit DirectStore(const Params& params) : params_(params) {}

  template <class ProblemShape, class BlockShape, class BlockCoord, class Engine, class Layout,
            class TiledMma, class Residue>
  CUTLASS_DEVICE void operator()(ProblemShape problem, BlockShape, BlockCoord coord,
                                 const cute::Tensor<Engine, Layout>& sums, TiledMma tiled_mma,
                                 Residue, int thread, char* memory) {
    using namespace cute;
    constexpr int kThreads = size(TiledMma{});
    auto& operands = reinterpret_cast<SharedStorage*>(memory)->operands;
    const int m = get<0>(problem), n = get<1>(problem);
    const int row = get<0>(coord) * kRows, col = get<1>(coord) * kCols;
    const auto meet = [] {
      cutlass::arch::NamedBarrier::sync(kThreads,
                                        cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    };
    cutlass::arch::wait_on_dependent_grids();  // the kernel before may have written operands
    meet();                                    // all have done with the tile before
    operands.load(params_.operands, row, col, m, n, thread, kThreads);
    meet();

    // (((column of two, row of two, group of eight columns), along M, along N)): of the tile
    const auto places =
        tiled_mma.get_thread_slice(thread).partition_C(make_identity_tensor(take<0, 2>(Tile{})));
    static_assert(size<0, 0>(Layout{}) == 2 && size<0, 1>(Layout{}) == 2);
    // What a thread has of a row in four groups is an item. All go through the same code: that of
    // the functions and the quantisers is long, and a copy for each item would not stay in the
    // instruction cache.
    constexpr int kGroups = size<0, 2>(Layout{}), kRowsOf = 2 * size<1>(Layout{});
    static_assert(kGroups % 4 == 0 && size<2>(Layout{}) == 1);
    constexpr int kItems = kGroups / 4 * kRowsOf;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int item = 0; item < kItems; ++item) {
      int32_t acc[8];
      with_index<0, kItems>(item, [&](auto index) {
        constexpr int kItem = decltype(index)::value;
        constexpr int kGroup = kItem / kRowsOf * 4, kRow = kItem % kRowsOf;
        CUTLASS_PRAGMA_UNROLL
        for (int e = 0; e < 8; ++e) {
          acc[e] = sums(make_coord(make_coord(e % 2, kRow % 2, kGroup + e / 2), kRow / 2, 0));
        }
      });
      const int group = item / kRowsOf * 4, i = item % kRowsOf;
      const auto at = places(make_coord(make_coord(0, i % 2, group), i / 2, 0));
      finish_eight(acc, operands, row, get<0>(at), col, get<1>(at), m, n, thread % 4);
    }
  }

 private:
  // The epilogue of what a thread has of a row in four groups of columns, the first at `first_col`
  // of the tile, and the store of what it has after the swap.
  CUTLASS_DEVICE void finish_eight(const int32_t (&acc)[8], const Operands& operands, int first_row,
                                   int row, int tile_col, int first_col, int m, int n, int lane) {
    float value[8], made[8 / kColumns];
    CUTLASS_PRAGMA_UNROLL
    for (int e = 0; e < 8; ++e) {
      value[e] = Lower<E>::at(
          acc[e], [&](auto leaf) { return operands.at(leaf, row, first_col + e / 2 * 8 + e % 2); });
    }
    // The quad's columns begin at those of its first lane in the first group.
    const int channel = tile_col + first_col - 2 * lane + 8 * lane;
    activate<E>(params_.to.function, value, made);
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < 2 / kColumns; ++c) {  // first and second of two columns by themselves
      float item[4];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) item[j] = made[2 / kColumns * j + c];
      transpose_quad(item, lane);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) made[2 / kColumns * j + c] = item[j];
    }
    if (first_row + row >= m) return;
    const int64_t at = int64_t{first_row + row} * params_.to.ldd + channel / kColumns;
    store_ended<E>(params_.to, at, (n - channel) / kColumns, made,
                   [&](auto leaf) { return operands.at(leaf, row, 0); });
  }

  Params params_;
};

}  // namespace scaled_mm::cuda::cutlass3
