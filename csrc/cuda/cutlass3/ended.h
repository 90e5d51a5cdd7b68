// The epilogue of a CUTLASS 3.x kernel that ends in an activation, a gate or a quantiser.
//
// A visitor tree is written out for every subtile of D, and the code of all functions in each of
// eight subtiles does not stay in the instruction cache. So a loop ends some sums at a time, has
// the functions' code once, and puts what they have become into shared memory, from where TMA
// stores it. A gate leaves half as many columns.
//
// In a ping-pong kernel one warpgroup ends its tile while the other multiplies. An ending that
// takes longer than a tile's products holds the tensor cores up, and each of its instructions takes
// registers' ports from them: so loads are under way early, and ptxas must find registers to
// interleave elements (a division anywhere in the loop keeps it from that).
//
// wgmma leaves a thread two neighbouring columns of every eight, of two rows:
//
//     columns    0 1 | 2 3 | 4 5 | 6 7 || 8 9 | ...     of lane 0 | 1 | 2 | 3 || 0 | ...
//
// Include after CUTLASS's collective builders.
#pragma once

#include <algorithm>
#include <numeric>

#include "cuda/cutlass3/rounding.h"

namespace scaled_mm::cuda::cutlass3 {

using cutlass::epilogue::fusion::Sm90AccFetch;

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
  static constexpr int kOutN = kTileN / kColumns;
  using OutTile = cute::Shape<cute::Int<kTileM>, cute::Int<kOutN>, decltype(cute::get<2>(Tile{}))>;
  // What is stored at a time: so many rows, of 32 elements or more and as many bytes as have room.
  static constexpr int kStoredRows = kThreads / 2;
  static constexpr int kStored =
      std::gcd(std::max<int>((kPingpong ? 128 : 64) / sizeof(Out), 32), kOutN);
  using Schedule = std::conditional_t<kPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                      cutlass::epilogue::TmaWarpSpecializedCooperative>;
  // Of CUTLASS's epilogue its shared memory, and its tensor map of D.
  using Store = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, OutTile, Cluster,
      cute::Shape<cute::Int<kStoredRows>, cute::Int<kStored>>, int32_t, int32_t, void,
      cutlass::layout::RowMajor, 8, Out, cutlass::layout::RowMajor, 16 / sizeof(Out), Schedule,
      Sm90AccFetch>::CollectiveOp;
  static constexpr int kSubtile = kStoredRows * kStored;
  static constexpr int kStages = Store::DispatchPolicy::StagesD;
  using Operands = StagedOperands<typename Lower<E>::List, kTileM, kTileN>;
  static_assert(!Lower<E>::List::has_full);

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

    CUTLASS_HOST_DEVICE type(const Params& params, TensorStorage& shared)
        : Store(params, shared), params_(params) {}

    template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState,
              class Problem, class TileShape, class Coord, class Engine, class Layout, class Mma>
    CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state,
                              StorePipeline store_pipeline, StoreState store_state, Problem problem,
                              TileShape, Coord coord, cute::Tensor<Engine, Layout> sums, Mma mma,
                              int thread, TensorStorage& shared, int subtile = -1) {
      cutlass::arch::wait_on_dependent_grids();  // the kernel before may have written operands
      // All have read the tile before's: they have met while storing it.
      shared.operands.load(params_.ending.operands, cute::get<0>(coord) * kTileM,
                           cute::get<1>(coord) * kTileN, cute::get<0>(problem),
                           cute::get<1>(problem), thread, kThreads);
      if (thread == 0) cute::tma_store_wait<0>();
      meet();
      auto words = cute::recast<int32_t>(sums);
      end(words, mma, thread, shared, problem, coord);
      return cute::make_tuple(load_state, store_state);
    }

   private:
    template <class Shape>
    CUTLASS_HOST_DEVICE static constexpr auto stored(const Shape& problem) {
      return cute::make_shape(cute::get<0>(problem), cute::get<1>(problem) / kColumns,
                              cute::get<2>(problem), cute::get<3>(problem));
    }

    CUTLASS_DEVICE static void meet() {
      cutlass::arch::NamedBarrier::sync(kThreads,
                                        cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    }

    // A thread's sums are (((column of two, row of two, eight columns), 64 rows, 1)).
    template <class Engine, class Layout, class Mma, class Problem, class Coord>
    CUTLASS_DEVICE void end(const cute::Tensor<Engine, Layout>& sums, const Mma& mma, int thread,
                            TensorStorage& shared, const Problem& problem,
                            const Coord& coord) const {
      using namespace cute;
      static_assert(size<0, 0>(Layout{}) == 2 && size<0, 1>(Layout{}) == 2);
      constexpr int kEights = size<0, 2>(Layout{}), kBlocks = size<1>(Layout{});
      constexpr int kTogether = 4;  // so many have registers
      constexpr int kTurns = kEights / kTogether, kSums = 4 * kTogether;
      constexpr int kMade = kSums / kColumns, kWidth = 8 * kTogether / kColumns;  // columns of D
      static_assert(kEights % kTogether == 0 && size<2>(Layout{}) == 1 && kStored % kWidth == 0);
      const Operands& operands = shared.operands;
      const auto places =
          mma.get_thread_slice(thread).partition_C(make_identity_tensor(take<0, 2>(Tile{})));
      HeldOperands<typename Lower<E>::List, 2, 2 * kTogether> held;
      const auto first_column = [&](int turn) -> int {
        return get<1>(places(make_coord(make_coord(0, 0, turn * kTogether), 0, 0)));
      };
      const auto hold_columns = [&](int turn) {
        held.template load<epilogue::Axis::Row>(
            operands, [&](int i) { return first_column(turn) + i / 2 * 8 + i % 2; });
      };
      hold_columns(0);
      int stage = 0;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const int first_row = get<0>(places(make_coord(make_coord(0, 0, 0), block, 0)));
        held.template load<epilogue::Axis::Col>(operands, [&](int i) { return first_row + 8 * i; });
#ifdef SCALED_MM_COMPILED
        const CompiledRounding<typename E::program> rounding(params_.ending.to, operands,
                                                             first_row);
#else
        const Rounding<Out> rounding(params_.ending.to, operands, first_row);
#endif
        CUTLASS_PRAGMA_NO_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
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
          const auto operand_at = [&](auto leaf, int i) {
            return held.at(leaf, i / 2 % 2, i / 4 * 2 + i % 2);
          };
          float made[kMade];
#ifdef SCALED_MM_COMPILED
          int32_t word[kSums];
          with_sums([&](int i, int32_t sum) { word[i] = sum; });
          compute(word, made, first_row, first_column(turn), operand_at, problem, coord);
#else
          float value[kSums];
          const auto evaluate = [&](auto has_azp) {
            with_sums([&](int i, int32_t sum) {
              value[i] = Lower<E>::at(sum_of(sum), [&](auto leaf) {
                using L = decltype(leaf);
                if constexpr (L::id == Operand::azp_adj && !has_azp) {
                  return typename L::value(0);
                } else {
                  return operand_at(leaf, i);
                }
              });
            });
          };
          // Without one, a third of the operations in front of the function is left out.
          constexpr bool kReadsAzp = (E::reads & bit(Operand::azp_adj)) != 0;
          const auto& azp_adj = params_.ending.operands[static_cast<int>(Operand::azp_adj)];
          if (!kReadsAzp || azp_adj.data == nullptr) {
            evaluate(std::false_type{});
          } else {
            evaluate(std::bool_constant<kReadsAzp>{});
          }
          activate<E>(params_.ending.to.function, value, made);
#endif
          hold_columns(turn + 1 < kTurns ? turn + 1 : 0);  // of the next: they come meanwhile
          if constexpr (kColumns == 2) {
            float pairs[kMade];  // in the order of registers, of half as many eights
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kMade; i += 2) {
              const int at = i / 4 * 4 + i / 2 % 2;
              pairs[i] = made[at], pairs[i + 1] = made[at + 2];
              make_neighbours(pairs[i], pairs[i + 1], thread % 4);
            }
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kMade; ++i) made[i] = pairs[i];
          }
          int32_t rounded[kMade];
          rounding(made, rounded);
          constexpr int kTurnsStored = kStored / kWidth;
          put(rounded, shared, first_row % kStoredRows, turn % kTurnsStored * kWidth, stage,
              thread);
          if ((turn + 1) % kTurnsStored == 0) {
            store_subtile(shared, stage, problem, coord, block, turn / kTurnsStored, thread);
            stage = (stage + 1) % kStages;
          }
        }
      }
    }

    using SubtileLayout = decltype(cute::tile_to_shape(
        typename Store::SmemLayoutAtomD{},
        cute::Shape<cute::Int<kStoredRows>, cute::Int<kStored>, cute::Int<kStages>>{}));

    // The byte at which a stage has an element: chunks of 16 bytes are swizzled within a row.
    CUTLASS_HOST_DEVICE static constexpr int place(int row, int column) {
      constexpr int kRowBytes = kStored * sizeof(Out);
      const int turned = row * kRowBytes / 128 % (kRowBytes / 16) * 16;
      return row * kRowBytes + (column * static_cast<int>(sizeof(Out)) ^ turned);
    }
    static_assert(place(13, kStored - 8) / sizeof(Out) ==
                  decltype(cute::as_position_independent_swizzle_layout(SubtileLayout{})(
                      cute::Int<13>{}, cute::Int<kStored - 8>{}, cute::_0{}))::value);

    // Elements of `row` and row + 8, the thread's first being in that row, in the order of the
    // registers, from a turn's first column on.
    template <int kMade>
    CUTLASS_DEVICE static void put(const int32_t (&rounded)[kMade], TensorStorage& shared, int row,
                                   int column, int stage, int thread) {
      auto* const to =
          reinterpret_cast<uint8_t*>(shared.collective.smem_D.begin() + stage * kSubtile);
      const int lane = thread % 32;
      if constexpr (sizeof(Out) == 2) {
        // Words are 8 x 8 matrices, a row of which each lane says the place of.
        static_assert(kMade % 8 == 0);
        const int own_row = row - lane / 4 + lane / 8 % 2 * 8 + lane % 8;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMade; i += 8) {
          auto* const at = to + place(own_row, column + (i / 4 + lane / 16) * 8);
          cute::SM90_U32x4_STSM_N::copy(rounded[i], rounded[i + 2], rounded[i + 4], rounded[i + 6],
                                        *reinterpret_cast<cute::uint128_t*>(at));
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMade; i += 2) {
          auto* const at = to + place(row, column + lane % 4 * 2 + i / 4 * 8) +
                           i / 2 % 2 * 8 * kStored * sizeof(Out);
          if constexpr (sizeof(Out) == 4) {
            *reinterpret_cast<int2*>(at) = {rounded[i], rounded[i + 1]};
          } else {
            *reinterpret_cast<uint16_t*>(at) =
                static_cast<uint16_t>(rounded[i / 4 * 4] >> i / 2 % 2 * 16);
          }
        }
      }
    }

    // Meanwhile the threads fill the next one, which has been stored by then.
    template <class Problem, class Coord>
    CUTLASS_DEVICE void store_subtile(TensorStorage& shared, int stage, const Problem& problem,
                                      const Coord& coord, int block, int part, int thread) const {
      using namespace cute;
      static_assert(kStages > 1 || (kStoredRows == kTileM && kStored == kOutN));
      cutlass::arch::fence_view_async_shared();
      if (thread == 0) tma_store_wait<0>();
      meet();
      if (thread == 0) {
        const auto& map = params_.tma_store_d;
        const auto [m, n, k, l] = coord;
        const auto d = map.get_tma_tensor(select<0, 1, 3>(stored(problem)));
        const auto tile = local_tile(d, take<0, 2>(OutTile{}), make_coord(m, n, l));
        const auto parts = flat_divide(tile, cute::Shape<Int<kStoredRows>, Int<kStored>>{});
        const auto all = map.get_slice(Int<0>{});
        const auto from =
            make_tensor(make_smem_ptr(shared.collective.smem_D.begin()), SubtileLayout{});
        copy(map, all.partition_S(from)(_, _, _, stage),
             all.partition_D(parts)(_, _, _, block, part));
        tma_store_arrive();
      }
    }

#ifdef SCALED_MM_COMPILED
    // What a program makes of sums in the order of the registers.
    template <int kSums, class OperandAt, class Problem, class Coord>
    CUTLASS_DEVICE void compute(const int32_t (&sums)[kSums], float (&made)[kSums / kColumns],
                                int row, int col, const OperandAt& operand_at,
                                const Problem& problem, const Coord& coord) const {
      using Program = typename E::program;
      // Those of two columns at a time; of few operands all are on their way together.
      constexpr int kAhead = Program::Direct::count <= 2 ? kSums / 2 : 1;
      DirectElements<typename Program::Direct, 2> direct[kAhead];
      const auto load = [&](int pair) {
        const int m = static_cast<int>(cute::get<0>(coord)) * kTileM + row + pair % 2 * 8,
                  n = static_cast<int>(cute::get<1>(coord)) * kTileN + col + pair / 2 * 8;
        direct[pair % kAhead].load(params_.ending.operands, m, n,
                                   m < cute::get<0>(problem) ? cute::get<1>(problem) - n : 0);
      };
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; kAhead > 1 && pair < kSums / 2; ++pair) load(pair);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSums; i += kColumns) {
        if (kAhead == 1 && i % 2 == 0) load(i / 2);
        const auto get = [&](auto leaf, int c) {
          if constexpr (is_direct<decltype(leaf)>) {
            return direct[i / 2 % kAhead].at(leaf, i % 2 + c);
          } else {
            return operand_at(leaf, i + c);
          }
        };
        uint32_t bits;
        Program::at(sums + i, get, &bits);
        made[i / kColumns] = __uint_as_float(bits);
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

    const Params& params_;
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
