// The epilogue of a CUTLASS 3.x kernel that ends in an activation, a gate or a quantiser.
//
// A visitor tree is written out for every subtile of D, and the code of all functions in each of
// eight subtiles does not stay in the instruction cache. So the sums are ended where they are, in
// their registers, by a loop that has this code once. CUTLASS's epilogue then stores what they have
// become. A gate leaves half as many columns: it is stored as what a tile of that width is.
//
// wgmma leaves a thread two neighbouring columns of every eight, of two rows (kRows):
//
//     columns    0 1 | 2 3 | 4 5 | 6 7 || 8 9 | ...     of lane 0 | 1 | 2 | 3 || 0 | ...
//
// Include after CUTLASS's collective builders.
#pragma once

#include <algorithm>

#include "cuda/cutlass3/rounding.h"

namespace scaled_mm::cuda::cutlass3 {

using cutlass::epilogue::fusion::Sm90AccFetch;
using cutlass::epilogue::fusion::Sm90Compute;
using cutlass::epilogue::fusion::Sm90EVT;

// use(constant) with index as an integral_constant, of kFirst <= index < kFirst + kCount. Registers
// have no index: this is how a loop that is not unrolled takes some of them in turn.
template <int kFirst, int kCount, class Use>
CUTLASS_DEVICE void with_index(int index, const Use& use) {
  if constexpr (kCount == 1) {
    use(cute::Int<kFirst>{});
  } else if (index < kFirst + kCount / 2) {
    with_index<kFirst, kCount / 2>(index, use);
  } else {
    with_index<kFirst + kCount / 2, kCount - kCount / 2>(index, use);
  }
}

// Of eight columns, lane l of a quad has l (`low`) and 4 + l (`high`), and gets 2 l and 2 l + 1.
CUTLASS_DEVICE void make_neighbours(float& low, float& high, int lane) {
  const bool odd = lane & 1, upper = lane & 2;
  const int from = 2 * lane % 4;
  const float one = __shfl_sync(~0u, odd ? high : low, from + upper, 4);
  const float other = __shfl_sync(~0u, odd ? low : high, from + !upper, 4);
  low = upper ? other : one;
  high = upper ? one : other;
}

// Accumulator: the type of the sums, of 32 bits. Out: the storage type of D.
template <class E, class Tile, class Cluster, class Accumulator, class Out, bool kPingpong>
struct EndedEpilogue {
  static constexpr int kTileM = cute::size<0>(Tile{}), kTileN = cute::size<1>(Tile{});
  static constexpr int kColumns = epilogue::columns_of(E::form);
  static constexpr int kThreads = kPingpong ? 128 : 256;
  static constexpr int kPerWord = 4 / sizeof(Out);
  using OutTile =
      cute::Shape<cute::Int<kTileM>, cute::Int<kTileN / kColumns>, decltype(cute::get<2>(Tile{}))>;
  // What CUTLASS would multiply by in tiles of that width.
  using OutMma = decltype(cute::make_tiled_mma(
      cute::SM90::GMMA::ss_op_selector<
          int8_t, int8_t, int32_t,
          cute::Shape<cute::_64, cute::Int<kTileN / kColumns>, cute::_32>>(),
      cute::Layout<cute::Shape<cute::Int<kThreads / 128>, cute::_1, cute::_1>>{}));
  using Schedule = std::conditional_t<kPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                      cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using Store = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, OutTile, Cluster,
      cute::Shape<cute::Int<kThreads / 2>, cute::_32>, int32_t, int32_t, void,
      cutlass::layout::RowMajor, 8, Out, cutlass::layout::RowMajor, 16 / sizeof(Out), Schedule,
      Sm90EVT<Sm90Compute<Unpack<Out>::template Function, Out, int32_t,
                          cutlass::FloatRoundStyle::round_to_nearest>,
              Sm90AccFetch>>::CollectiveOp;
  using Operands = StagedOperands<typename Lower<E>::List, kTileM, kTileN>;
  static constexpr bool kHasMatrix = Lower<E>::List::has_full;

  struct type : Store {
    struct TensorStorage : Store::TensorStorage {
      Operands operands;
    };
    struct SharedStorage {
      TensorStorage tensors;
      typename Store::PipelineStorage pipeline;
    };
    struct Ending {
#ifdef SCALED_MM_COMPILED
      CompiledOperands<E::program::kOperands> operands;
#else
      EpilogueOperand operands[kNumOperands];
#endif
      Destination to;
    };
    struct Arguments : Store::Arguments {
      Ending ending;
    };
    struct Params : Store::Params {
      Ending ending;
    };

    template <class Shape>
    static Params to_underlying_arguments(const Shape& problem, const Arguments& args,
                                          void* workspace) {
      return {Store::to_underlying_arguments(stored(problem), args, workspace), args.ending};
    }
    template <class TileShape>
    CUTLASS_HOST_DEVICE static constexpr int get_load_pipe_increment(TileShape) {
      return Store::get_load_pipe_increment(OutTile{});
    }
    template <class TileShape>
    CUTLASS_HOST_DEVICE static constexpr int get_store_pipe_increment(TileShape) {
      return Store::get_store_pipe_increment(OutTile{});
    }

    CUTLASS_HOST_DEVICE type(const Params& params, TensorStorage& shared)
        : Store(params, shared), ending_(params.ending) {}

    template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState,
              class Problem, class TileShape, class Coord, class Engine, class Layout, class Mma>
    CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state,
                              StorePipeline store_pipeline, StoreState store_state, Problem problem,
                              TileShape, Coord coord, cute::Tensor<Engine, Layout> sums, Mma mma,
                              int thread, TensorStorage& shared, int subtile = -1) {
      cutlass::arch::wait_on_dependent_grids();  // the kernel before may have written operands
      // All have read the tile before's: they have met while storing it.
      shared.operands.load(ending_.operands, cute::get<0>(coord) * kTileM,
                           cute::get<1>(coord) * kTileN, cute::get<0>(problem),
                           cute::get<1>(problem), thread, kThreads);
      cutlass::arch::NamedBarrier::sync(kThreads,
                                        cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
      auto words = cute::recast<int32_t>(sums);
      end(words, mma, thread, shared.operands, problem, coord);
      return Store::store(load_pipeline, load_state, store_pipeline, store_state, stored(problem),
                          OutTile{}, coord, ended(words), OutMma{}, thread, shared, subtile);
    }

   private:
    template <class Shape>
    CUTLASS_HOST_DEVICE static constexpr auto stored(const Shape& problem) {
      return cute::make_shape(cute::get<0>(problem), cute::get<1>(problem) / kColumns,
                              cute::get<2>(problem), cute::get<3>(problem));
    }

    // A thread's sums are (((column of two, row of two, eight columns), 64 rows, 1)).
    template <class Engine, class Layout, class Mma, class Problem, class Coord>
    CUTLASS_DEVICE void end(cute::Tensor<Engine, Layout>& sums, const Mma& mma, int thread,
                            const Operands& operands, const Problem& problem,
                            const Coord& coord) const {
      using namespace cute;
      static_assert(size<0, 0>(Layout{}) == 2 && size<0, 1>(Layout{}) == 2);
      constexpr int kEights = size<0, 2>(Layout{}), kBlocks = size<1>(Layout{});
      constexpr int kTogether = kEights * kBlocks > 32 ? 2 : 4;  // registers are left for so many
      constexpr int kTurns = kEights / kTogether, kSums = 4 * kTogether;
      static_assert(kEights % kTogether == 0 && size<2>(Layout{}) == 1);
      const auto places =
          mma.get_thread_slice(thread).partition_C(make_identity_tensor(take<0, 2>(Tile{})));
      CUTLASS_PRAGMA_NO_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const int first_row = get<0>(places(make_coord(make_coord(0, 0, 0), block, 0)));
#ifdef SCALED_MM_COMPILED
        const CompiledRounding<typename E::program> rounding(ending_.to, operands, first_row);
#else
        const Rounding<Out> rounding(ending_.to, operands, first_row);
#endif
        CUTLASS_PRAGMA_NO_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
          const int first = get<1>(places(make_coord(make_coord(0, 0, turn * kTogether), 0, 0)));
          // In the order of the registers: two columns, two rows, eights.
          const auto with_sums = [&](const auto& use) {
            with_index<0, kBlocks * kTurns>(block * kTurns + turn, [&](auto index) {
              constexpr int kIndex = decltype(index)::value;
              CUTLASS_PRAGMA_UNROLL
              for (int i = 0; i < kSums; ++i) {
                use(i, sums(make_coord(
                           make_coord(i % 2, i / 2 % 2, kIndex % kTurns * kTogether + i / 4),
                           kIndex / kTurns, 0)));
              }
            });
          };
#ifdef SCALED_MM_COMPILED
          int32_t word[kSums];
          with_sums([&](int i, int32_t& sum) { word[i] = sum; });
          float made[kSums / kColumns];
          compute(word, made, first_row, first, operands, problem, coord);
#else
          float value[kSums];
          int32_t word[kSums];
          with_sums([&](int i, int32_t& sum) { word[i] = sum; });
          float matrix[kSums];
          if constexpr (kHasMatrix) {
            load_matrix(matrix, get<0>(coord) * kTileM + first_row, get<1>(coord) * kTileN + first,
                        get<0>(problem), get<1>(problem));
          }
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kSums; ++i) {
            value[i] = Lower<E>::at(sum_of(word[i]), [&](auto leaf) {
              if constexpr (decltype(leaf)::axis == epilogue::Axis::Full) {
                return matrix[i];
              } else {
                return operands.at(leaf, first_row + i / 2 % 2 * 8, first + i / 4 * 8 + i % 2);
              }
            });
          }
          float made[kSums / kColumns];
          activate<E>(ending_.to.function, value, made);
#endif
          if constexpr (kColumns == 2) {
            float pairs[kSums / 2];  // in the order of registers, of half as many eights
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kSums / 2; i += 2) {
              const int at = i / 4 * 4 + i / 2 % 2;
              pairs[i] = made[at], pairs[i + 1] = made[at + 2];
              make_neighbours(pairs[i], pairs[i + 1], thread % 4);
            }
            rounding(pairs, word);
            // Into the registers of every other eight.
            CUTLASS_PRAGMA_UNROLL
            for (int i = kSums / 2 - 1; i >= 0; --i) word[i / 4 * 8 + i % 4] = word[i];
          } else {
            rounding(made, word);
          }
          with_sums([&](int i, int32_t& sum) {
            if (i % kPerWord == 0 && i / 4 % kColumns == 0) sum = word[i];
          });
        }
      }
    }

#ifdef SCALED_MM_COMPILED
    // What a program makes of sums in the order of the registers.
    template <int kSums, class Problem, class Coord>
    CUTLASS_DEVICE void compute(const int32_t (&sums)[kSums], float (&made)[kSums / kColumns],
                                int row, int col, const Operands& operands, const Problem& problem,
                                const Coord& coord) const {
      using Program = typename E::program;
      // Those of two columns at a time; of few operands all are on their way together.
      constexpr int kAhead = Program::Direct::count <= 2 ? kSums / 2 : 1;
      DirectElements<typename Program::Direct, 2> direct[kAhead];
      const auto load = [&](int pair) {
        const int m = static_cast<int>(cute::get<0>(coord)) * kTileM + row + pair % 2 * 8,
                  n = static_cast<int>(cute::get<1>(coord)) * kTileN + col + pair / 2 * 8;
        direct[pair % kAhead].load(ending_.operands, m, n,
                                   m < cute::get<0>(problem) ? cute::get<1>(problem) - n : 0);
      };
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; kAhead > 1 && pair < kSums / 2; ++pair) load(pair);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; i += kColumns) {
        if (kAhead == 1 && i % 2 == 0) load(i / 2);
        const int m = row + i / 2 % 2 * 8, n = col + i / 4 * 8 + i % 2;
        const auto get = [&](auto leaf, int c) {
          if constexpr (is_direct<decltype(leaf)>) {
            return direct[i / 2 % kAhead].at(leaf, i % 2 + c);
          } else {
            return operands.at(leaf, m, n + c);
          }
        };
        uint32_t bits;
        Program::at(sums + i, get, &bits);
        made[i / kColumns] = __uint_as_float(bits);
      }
    }

#else
    // A residual's elements for those sums; `row` and `column` are the first's.
    template <int kSums>
    CUTLASS_DEVICE void load_matrix(float (&value)[kSums], int64_t row, int64_t column, int64_t m,
                                    int64_t n) const {
      const EpilogueOperand& operand = ending_.operands[static_cast<int>(Operand::residual)];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; i += 2) {
        const int64_t at_row = row + i / 2 % 2 * 8, at = column + i / 4 * 8;
        float pair[2];
        load_elements<epilogue::Residual>(operand, at_row, at,
                                          at_row < m ? static_cast<int>(n - at) : 0, pair);
        value[i] = pair[0], value[i + 1] = pair[1];
      }
    }

#endif

    CUTLASS_DEVICE static Accumulator sum_of(int32_t word) {
      if constexpr (std::is_same_v<Accumulator, float>) {
        return __int_as_float(word);
      } else {
        return word;
      }
    }

    // What CUTLASS stores: all of them, or every other eight.
    template <class Engine, class Layout>
    CUTLASS_DEVICE static auto ended(const cute::Tensor<Engine, Layout>& sums) {
      using namespace cute;
      if constexpr (kColumns == 1) {
        return sums;
      } else {
        constexpr int kEights = size<0, 2>(Layout{}), kBlocks = size<1>(Layout{});
        auto half = make_tensor<int32_t>(
            cute::Shape<cute::Shape<_2, _2, Int<kEights / 2>>, Int<kBlocks>, _1>{});
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < size(half); ++i) {
          half(i) = sums(make_coord(make_coord(i % 2, i / 2 % 2, i / 4 % (kEights / 2) * 2),
                                    i / (2 * kEights), 0));
        }
        return half;
      }
    }

    const Ending& ending_;
  };

  static typename type::Arguments arguments(const GemmArguments& args) {
    typename type::Arguments all{{{},
                                  nullptr,
                                  stride<typename type::StrideC>(args.to.ldd),
                                  static_cast<Out*>(args.to.out.d),
                                  stride<typename type::StrideD>(args.to.ldd)},
                                 {{}, args.to}};
#ifdef SCALED_MM_COMPILED
    std::copy_n(args.operands, E::program::kOperands, all.ending.operands.all);
#else
    std::copy_n(args.operands, kNumOperands, all.ending.operands);
#endif
    return all;
  }
};

}  // namespace scaled_mm::cuda::cutlass3
