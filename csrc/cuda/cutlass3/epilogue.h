// The epilogue of the CUTLASS 3.x kernels, in the place of CUTLASS's own collective: from the
// accumulators in registers to D.
//
//   a producer warp       operands of the tile -> shared memory, while the products still run
//   each consumer warp    accumulators -> epilogue -> its own shared memory -> TMA store, 16 rows
//
// A consumer warp waits for no other one. So the two warp groups of a cooperative kernel drift
// apart, and one multiplies while the other stores. And when a tile's products are done, its
// operands are there. docs/tuning.md has what each of these is worth.
//
// The epilogue is evaluated by Lower<E> (common/lower.cuh): once per element, as every other kernel
// does it.
#pragma once

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/grid_dependency_control.h>
#include <cutlass/epilogue/dispatch_policy.hpp>
#include <cutlass/pipeline/pipeline.hpp>

#include <algorithm>
#include <iterator>

#include "cuda/common/lower.cuh"
#include "cuda/common/pending_load.cuh"
#include "cuda/sm90/tensor_map.h"

namespace scaled_mm::cuda::cutlass3 {

// E: the epilogue. Acc, Out: types of an accumulator and of an element of D in memory; uint16_t
// serves both 16-bit dtypes. kTileM x kTileN: the block's tile of D. kThreads: of the consumers
// that share it, 64 rows of it a warp group at a time.
template <class E, class Acc, class Out, int kTileM, int kTileN, int kThreads>
class Epilogue {
  template <class List>
  struct Words;
  template <class... Ls>
  struct Words<Leaves<Ls...>> {
    static constexpr int count = sizeof...(Ls);
    template <class L>
    static constexpr int index() {
      int at = 0;
      bool found = false;
      ((found |= std::is_same_v<L, Ls>, at += !found), ...);
      return at;
    }
    // f(leaf) for every operand but matrices.
    template <class F>
    static __device__ void each(const F& f) {
      const auto one = [&](auto leaf) {
        if constexpr (decltype(leaf)::axis != epilogue::Axis::Full) f(leaf);
      };
      (one(Ls{}), ...);
    }
  };
  using List = typename Lower<E>::List;
  using Operands = Words<List>;
  using Staged = StagedOperands<List, kTileM, kTileN>;

  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBlockRows = kThreads / 128 * 64;  // rows of all warp groups together
  static constexpr int kBlocks = kTileM / kBlockRows;
  static constexpr int kRowBytes = 64;  // of a chunk: 16 rows of D, stored at once by a warp
  static constexpr int kChunkCols = kRowBytes / sizeof(Out);
  static constexpr int kOctets = kChunkCols / 8;  // wgmma leaves 2 of 8 columns to a lane
  static constexpr int kChunkBytes = 16 * kRowBytes;
  static constexpr int kBuffers = kThreads == 256 ? 3 : 4;
  static constexpr int kOperandStages = 2;
  static_assert(kTileN % kChunkCols == 0 && kTileM % kBlockRows == 0);

 public:
  // What CUTLASS's kernels want of a collective.
  using DispatchPolicy = cutlass::epilogue::Sm90TmaWarpSpecialized<0, kBuffers, 1, false, false>;
  using ElementC = Out;
  using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
  using ElementD = Out;
  using StrideD = StrideC;
  using LoadPipeline = cutlass::PipelineAsync<kOperandStages>;
  using LoadPipelineState = cutlass::PipelineState<kOperandStages>;
  using StorePipeline = cutlass::PipelineTmaStore<kBuffers>;
  using StorePipelineState = cutlass::PipelineState<kBuffers>;
  using PipelineStorage = typename LoadPipeline::SharedStorage;
  static constexpr bool RequiresTransactionBytes = false;

  struct TensorStorage {
    alignas(512) uint8_t chunks[kWarps][kBuffers][kChunkBytes];
    Staged operands[kOperandStages];
  };
  struct SharedStorage {
    TensorStorage tensors;
    PipelineStorage pipeline;
  };

  struct Arguments {
    EpilogueOperand operands[kNumOperands];
    DType out_dtype;  // of D, where Out is 16 bits wide
    Out* d;
    int64_t ldd;
  };
  struct Params {
    CUtensorMap d;
    EpilogueOperand operands[kNumOperands];
    DType out_dtype;
  };

  template <class Problem>
  static Params to_underlying_arguments(const Problem& problem, const Arguments& args, void*) {
    const int64_t m = cute::get<0>(problem), n = cute::get<1>(problem);
    Params params{
        .d = sm90::tensor_map(reinterpret_cast<const int8_t*>(args.d), m, n * int64_t{sizeof(Out)},
                              args.ldd * int64_t{sizeof(Out)}, 16, kRowBytes),
        .operands = {},
        .out_dtype = args.out_dtype};
    std::copy(std::begin(args.operands), std::end(args.operands), params.operands);
    return params;
  }
  template <class Problem>
  static size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }
  template <class Shape>
  CUTLASS_HOST_DEVICE static constexpr int get_load_pipe_increment(const Shape&) {
    return 1;
  }
  template <class Shape>
  CUTLASS_HOST_DEVICE static constexpr int get_store_pipe_increment(const Shape&) {
    return 1;
  }
  CUTLASS_DEVICE static void prefetch_tma_descriptors(const Params& params) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&params.d) : "memory");
  }

  CUTLASS_DEVICE Epilogue(const Params& params, const TensorStorage&) : params_(params) {}
  CUTLASS_DEVICE bool is_producer_load_needed() const { return Operands::count != 0; }

  // A producer warp: the operands of one tile.
  template <class Problem, class Shape, class Coord, class Mma>
  CUTLASS_DEVICE LoadPipelineState load(LoadPipeline pipeline, LoadPipelineState state,
                                        const Problem& problem, const Shape&, const Coord& coord,
                                        const Mma&, int lane, TensorStorage& shared, int = -1) {
    pipeline.producer_acquire(state);
    Staged& staged = shared.operands[state.index()];
    const int row = cute::get<0>(coord) * kTileM, rows = cute::get<0>(problem) - row;
    const int col = cute::get<1>(coord) * kTileN, cols = cute::get<1>(problem) - col;
    constexpr int kTogether = 64;  // elements of each operand under way
    CUTLASS_PRAGMA_NO_UNROLL       // a producer has few registers
        for (int first = 0; first < cute::max(kTileM, kTileN); first += kTogether) {
      Operands::each([&](auto leaf) {
        using L = decltype(leaf);
        using Length = Along<L::axis>;
        const EpilogueOperand& operand = params_.operands[static_cast<int>(L::id)];
        PendingLoad<L> pending[kTogether / 32];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kTogether / 32; ++i) {
          const int at = first + lane + 32 * i;
          pending[i].start(operand, Length::pick(row, col) + at, at < Length::pick(rows, cols));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kTogether / 32; ++i) {
          const int at = first + lane + 32 * i;
          if (at < Length::pick(kTileM, kTileN)) {
            const int to = L::axis == epilogue::Axis::Row ? spread(at) : at;
            reinterpret_cast<uint32_t*>(staged.of(leaf))[to] = pending[i].word(operand);
          }
        }
      });
    }
    pipeline.producer_commit(state);
    return ++state, state;
  }
  CUTLASS_DEVICE void load_tail(LoadPipeline pipeline, LoadPipelineState state) {
    pipeline.producer_tail(state);
  }

  // The consumers: one tile, of which each has its accumulators.
  template <class Problem, class Shape, class Coord, class Accumulators, class Mma>
  CUTLASS_DEVICE auto store(LoadPipeline pipeline, LoadPipelineState state, StorePipeline,
                            StorePipelineState store_state, const Problem& problem, const Shape&,
                            const Coord& coord, const Accumulators& accumulators, const Mma&,
                            int thread, TensorStorage& shared, int = -1) {
    static_assert(cute::size<0>(Accumulators{}) == kTileN / 2 &&
                  cute::size<1>(Accumulators{}) == kBlocks && cute::size<2>(Accumulators{}) == 1);
    if constexpr (List::has_full) cutlass::arch::wait_on_dependent_grids();
    if constexpr (Operands::count != 0) pipeline.consumer_wait(state);
    const int row = cute::get<0>(coord) * kTileM, col = cute::get<1>(coord) * kTileN;
    const int warp = __shfl_sync(0xffffffff, thread / 32, 0);  // known to be the same in all lanes
    const Tile tile{.row = row,
                    .col = col,
                    .rows = static_cast<int>(cute::get<0>(problem)) - row,
                    .cols = static_cast<int>(cute::get<1>(problem)) - col,
                    .warp = warp,
                    .lane = thread % 32,
                    .operands = shared.operands[state.index()],
                    .chunks = shared.chunks[warp][0]};
    if constexpr (sizeof(Out) == 2) {
      with_dtype16(params_.out_dtype,
                   [&](auto dtype) { store_tile<decltype(dtype)::value>(tile, accumulators); });
    } else {
      store_tile<DType::float32>(tile, accumulators);
    }
    if constexpr (Operands::count != 0) {
      pipeline.consumer_release(state);
      ++state;
    }
    ++store_state;
    return cute::make_tuple(state, store_state);
  }
  // The chunks' memory may be used by other warps, or go away, after this.
  CUTLASS_DEVICE auto store_tail(LoadPipeline, LoadPipelineState state, StorePipeline,
                                 StorePipelineState store_state) {
    cute::tma_store_wait<0>();
    return cute::make_tuple(state, store_state);
  }

 private:
  struct Tile {
    int row, col;    // where it begins
    int rows, cols;  // of D from there on
    int warp, lane;
    const Staged& operands;
    uint8_t* chunks;  // of the warp
  };
  template <class L>
  static constexpr int kAt = Operands::template index<L>();

  // Where column `col` of the tile lies in a staged row vector: a lane's columns of two octets, 2
  // of each, side by side. It reads the four at once.
  static CUTLASS_DEVICE int spread(int col) {
    return col / 16 * 16 + col % 8 / 2 * 4 + col / 8 % 2 * 2 + col % 2;
  }

  // Row of the tile of a lane's first element in a block; its other one is 8 rows further.
  static CUTLASS_DEVICE int first_row(const Tile& tile, int block) {
    return block * kBlockRows + tile.warp * 16 + tile.lane / 4;
  }

  template <DType kDType, class Accumulators>
  CUTLASS_DEVICE void store_tile(const Tile& tile, const Accumulators& accumulators) {
    uint32_t of_row[Operands::count + 1][kBlocks][2];
    Operands::each([&](auto leaf) {
      using L = decltype(leaf);
      if constexpr (L::axis == epilogue::Axis::Col) {
        const auto* const from = reinterpret_cast<const uint32_t*>(tile.operands.of(leaf));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kBlocks; ++i) {
          of_row[kAt<L>][i][0] = from[first_row(tile, i)];
          of_row[kAt<L>][i][1] = from[first_row(tile, i) + 8];
        }
      }
    });
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < kTileN / kChunkCols; ++chunk) {
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        Acc acc[kOctets][2][2];  // octet, row, column
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4 * kOctets; ++i) {
          acc[i / 4][i / 2 % 2][i % 2] = accumulators(chunk * 4 * kOctets + i, block, 0);
        }
        uint32_t words[kOctets][2][sizeof(Out) / 2];
        CUTLASS_PRAGMA_UNROLL
        for (int octet = 0; octet < kOctets; octet += 2) {
          compute<kDType>(tile, of_row, block, chunk, octet, acc, words);
        }
        store_chunk(tile, block, chunk, words);
      }
    }
  }

  // The epilogue of two octets, as words of D.
  template <DType kDType>
  CUTLASS_DEVICE void compute(const Tile& tile,
                              const uint32_t (&of_row)[Operands::count + 1][kBlocks][2], int block,
                              int chunk, int first, const Acc (&acc)[kOctets][2][2],
                              uint32_t (&words)[kOctets][2][sizeof(Out) / 2]) {
    float full[2][2][2];  // octet, row, column
    if constexpr (List::has_full) {
      load_full(tile, first_row(tile, block), chunk * kChunkCols + 8 * first, full);
    }
    alignas(16) uint32_t of_col[Operands::count + 1][2][2];
    Operands::each([&](auto leaf) {
      using L = decltype(leaf);
      if constexpr (L::axis == epilogue::Axis::Row) {
        const auto* const from = reinterpret_cast<const uint32_t*>(tile.operands.of(leaf)) +
                                 chunk * kChunkCols + 8 * first + tile.lane % 4 * 4;
        *reinterpret_cast<uint4*>(of_col[kAt<L>]) = *reinterpret_cast<const uint4*>(from);
      }
    });
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int octet = first + i / 2, r = i % 2;
      const auto value = [&](int c) {
        return Lower<E>::at(acc[octet][r][c], [&](auto leaf) {
          using L = decltype(leaf);
          uint32_t word;
          if constexpr (L::axis == epilogue::Axis::Full) {
            word = __float_as_uint(full[i / 2][r][c]);
          } else if constexpr (L::axis == epilogue::Axis::Col) {
            word = of_row[kAt<L>][block][r];
          } else {
            word = of_col[kAt<L>][i / 2][c];
          }
          return *reinterpret_cast<const typename L::value*>(&word);
        });
      };
      const auto even = value(0), odd = value(1);
      if constexpr (sizeof(Out) == 2) {
        words[octet][r][0] = Format<kDType>::narrow(even, odd);
      } else {
        words[octet][r][0] = *reinterpret_cast<const uint32_t*>(&even);
        words[octet][r][1] = *reinterpret_cast<const uint32_t*>(&odd);
      }
    }
  }

  // A matrix operand's elements for two octets, which begin at (row, col) of the tile; 0 outside of
  // D. Few at a time: accumulators leave few registers.
  CUTLASS_DEVICE void load_full(const Tile& tile, int row, int col, float (&full)[2][2][2]) {
    using L = epilogue::Residual;
    const EpilogueOperand& operand = params_.operands[static_cast<int>(L::id)];
    col += tile.lane % 4 * 2;
    asm volatile("" : "+r"(row), "+r"(col));  // addresses are computed here, not kept for all calls
    with_dtype(operand.dtype, [&](auto dtype) {
      using Of = Format<decltype(dtype)::value>;
      const auto* const from = static_cast<const typename Of::storage*>(operand.data) +
                               (tile.row + row) * operand.row_stride + tile.col + col;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int octet = i / 4, r = i / 2 % 2, c = i % 2;
        const bool inside =
            operand.data != nullptr && row + 8 * r < tile.rows && col + 8 * octet + c < tile.cols;
        full[octet][r][c] = inside ? Of::widen(from[8 * r * operand.row_stride + 8 * octet + c], 0)
                                   : epilogue::Neutral<L::id>::value;
      }
    });
  }

  // Sends one chunk to D: 16 rows of kRowBytes bytes in the warp's shared memory, the 16-byte
  // pieces of a row in the order of TMA's 64-byte swizzle (piece p of row r at p ^ r / 2), so that
  // neither these stores nor TMA's reads conflict.
  CUTLASS_DEVICE void store_chunk(const Tile& tile, int block, int chunk,
                                  const uint32_t (&words)[kOctets][2][sizeof(Out) / 2]) {
    const int buffer = (chunk * kBlocks + block) % kBuffers;
    uint8_t* const to = tile.chunks + buffer * kChunkBytes;
    if (tile.lane == 0) {  // the store that used the buffer has read it
      if (chunk == 0 && block == 0) {
        cute::tma_store_wait<0>();
      } else {
        cute::tma_store_wait<kBuffers - 1>();
      }
    }
    __syncwarp();
    if constexpr (sizeof(Out) == 2) {
      // Lane l gives the address of row l % 8 of matrix l / 8: rows 0 to 7 and 8 to 15 of an octet,
      // then of the next.
      const int row = tile.lane % 16;
      CUTLASS_PRAGMA_UNROLL
      for (int octet = 0; octet < kOctets; octet += 2) {
        const int piece = (octet + tile.lane / 16) ^ (row / 2 % 4);
        cute::SM90_U32x4_STSM_N::copy(
            words[octet][0][0], words[octet][1][0], words[octet + 1][0][0], words[octet + 1][1][0],
            *reinterpret_cast<cute::uint128_t*>(to + row * kRowBytes + piece * 16));
      }
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * kOctets; ++i) {
        const int octet = i / 2, row = tile.lane / 4 + 8 * (i % 2);
        const int piece = (2 * octet + tile.lane % 4 / 2) ^ (row / 2 % 4);
        auto* const at = to + row * kRowBytes + piece * 16 + tile.lane % 2 * 8;
        *reinterpret_cast<uint2*>(at) = {words[octet][i % 2][0], words[octet][i % 2][1]};
      }
    }
    cutlass::arch::fence_view_async_shared();  // what was written becomes visible to TMA
    __syncwarp();
    if (tile.lane == 0) {
      cute::SM90_TMA_STORE_2D::copy(&params_.d, to,
                                    (tile.col + chunk * kChunkCols) * int{sizeof(Out)},
                                    tile.row + block * kBlockRows + tile.warp * 16);
      cute::tma_store_arrive();
    }
  }

  const Params& params_;
};

}  // namespace scaled_mm::cuda::cutlass3
