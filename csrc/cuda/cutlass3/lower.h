// An epilogue's type lowered to an epilogue visitor tree (EVT) of CUTLASS 3.x. Acc is Sm90AccFetch,
// and
//
//     Apply<Fma, ScaleA, X, Bias>
//
// is the tree
//
//     Sm90EVT<Sm90Compute<fma>, ColVector<ScaleA>, tree of X, RowVector<Bias>>
//
// so that it composes with CUTLASS's own nodes. The operations are ours: functors that round as the
// bit contract says. The leaves are ours too, in the place of Sm90RowBroadcast, Sm90ColBroadcast
// and Sm90AuxLoad: those know an operand's dtype and stride when they are compiled, and these read
// both from the operand, so that a bias of any dtype and a vector of any stride need no copy and no
// kernel of their own. They load when CUTLASS's do, at the same cost (docs/tuning.md).
//
// Include after CUTLASS's collective builders.
#pragma once

#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>
#include <cutlass/epilogue/fusion/sm90_visitor_load_tma_warpspecialized.hpp>

#ifdef SCALED_MM_COMPILED
#include "cuda/epilogue/compiled.cuh"
#endif
#include "cuda/cutlass3/end.h"
#include "cuda/epilogue/lower.cuh"

namespace scaled_mm::cuda::cutlass3 {

using cutlass::epilogue::fusion::Sm90Compute;
using cutlass::epilogue::fusion::Sm90EVT;
using cutlass::epilogue::fusion::Sm90SrcFetch;
using cutlass::epilogue::fusion::detail::ConsumerStoreArgs;
using cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks;
using cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks;
using cutlass::epilogue::fusion::detail::ProducerLoadArgs;

// --- leaves --------------------------------------------------------------------------------------

// A leaf's callbacks load its operand when they are made, and begin() stores what goes to shared
// memory. All callbacks of a tree are made before the first begins, so the loads of all operands
// are under way together.

// What the leaves have in common as nodes of a tree: an operand is their argument, and nothing is
// loaded by the producer warps.
template <class L, class Shared>
struct OperandNode {
  using T = typename L::value;
  using SharedStorage = Shared;
  using Arguments = EpilogueOperand;
  using Params = EpilogueOperand;

  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& args, void*) {
    return args;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE OperandNode() {}
  CUTLASS_HOST_DEVICE OperandNode(const Params& params, const SharedStorage& shared)
      : operand(&params), shared(const_cast<SharedStorage*>(&shared)) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }
  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const ProducerLoadArgs<Args...>&) {
    return EmptyProducerLoadCallbacks{};
  }

  const EpilogueOperand* operand = nullptr;
  SharedStorage* shared = nullptr;
};

struct NothingShared {};

// Elements of a register tensor as the fragment that a visit returns.
template <int kSize, class Registers>
CUTLASS_DEVICE auto fragment_of(const Registers& registers, int epi_v) {
  cutlass::Array<typename Registers::value_type, kSize> fragment;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kSize; ++i) fragment[i] = registers(epi_v * kSize + i);
  return fragment;
}

// Whether a thread's sums of a tile leave few registers. Then begin() sends for an operand, when
// the one before it has come; else the constructor does, and all are under way together.
template <class Tile, int kThreads>
constexpr bool leaves_few_registers =
    cute::size<0>(Tile{}) * cute::size<1>(Tile{}) > 128 * kThreads;

// One element for each column: staged in shared memory, for the columns of a subtile in registers.
template <class L, int kCols>
struct RowStorage {
  alignas(16) typename L::value values[kCols];
};
template <class L, class Tile>
struct RowVector : OperandNode<L, RowStorage<L, static_cast<int>(cute::size<1>(Tile{}))>> {
  static constexpr int kRows = cute::size<0>(Tile{}), kCols = cute::size<1>(Tile{});
  using Base = OperandNode<L, RowStorage<L, kCols>>;
  using T = typename L::value;
  using Base::Base;

  template <int kThreads, class Shared, class Registers>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    static constexpr int kLoads = (kCols + kThreads - 1) / kThreads;
    // Where registers are few, elements stay in shared memory until they are wanted.
    static constexpr bool kStays = leaves_few_registers<Tile, kThreads>;
    const EpilogueOperand& operand;
    Arriving<L> arriving[kLoads];
    T* values;
    int first, n, thread;
    Shared shared;        // (CPY, CPY_M, CPY_N, EPI_M, EPI_N)
    Registers registers;  // (CPY, CPY_M, CPY_N)

    CUTLASS_DEVICE Callbacks(const EpilogueOperand& operand, T* values, int first, int n,
                             int thread, Shared shared, Registers registers)
        : operand(operand),
          values(values),
          first(first),
          n(n),
          thread(thread),
          shared(shared),
          registers(registers) {
      if constexpr (!kStays) send_for();
    }

    CUTLASS_DEVICE void send_for() {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int at = first + thread + i * kThreads;
        arriving[i].send_for(operand, at < n, 0, at);
      }
    }
    CUTLASS_DEVICE void begin() {
      if constexpr (kStays) send_for();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const T value = arriving[i].value(operand.dtype);
        if (thread + i * kThreads < kCols) values[thread + i * kThreads] = value;
      }
    }
    CUTLASS_DEVICE bool begin_sync_needed() const { return true; }

    CUTLASS_DEVICE void begin_loop(int epi_m, int epi_n) {
      if (kStays || epi_m != 0) return;  // subtiles come column by column
      const auto from = cute::filter_zeros(shared(cute::_, cute::_, cute::_, epi_m, epi_n));
      auto to = cute::filter_zeros(registers);
      cute::copy_aligned(from, to);
    }
    template <class Acc, int kSize>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Acc, kSize>&, int epi_v, int epi_m, int epi_n) {
      if constexpr (kStays) {
        return fragment_of<kSize>(shared(cute::_, cute::_, cute::_, epi_m, epi_n), epi_v);
      } else {
        return fragment_of<kSize>(registers, epi_v);
      }
    }
  };

  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const ConsumerStoreArgs<Args...>& args) {
    using namespace cute;
    auto tile =
        make_tensor(make_smem_ptr(this->shared->values),
                    make_layout(make_shape(Int<kRows>{}, Int<kCols>{}), make_stride(_0{}, _1{})));
    auto shared = cutlass::epilogue::fusion::sm90_partition_for_epilogue<kReferenceSrc>(
        tile, args.epi_tile, args.tiled_copy, args.thread_idx);
    auto registers = make_tensor_like<T>(take<0, 3>(shared));
    const int first = static_cast<int>(get<1>(args.tile_coord_mnkl)) * kCols;
    const int n = static_cast<int>(get<1>(args.problem_shape_mnkl));
    constexpr int kThreads = decltype(size(args.tiled_copy))::value;
    return Callbacks<kThreads, decltype(shared), decltype(registers)>(
        *this->operand, this->shared->values, first, n, args.thread_idx, shared, registers);
  }
};

// One element for each row: a thread has few rows, all of whose elements it holds in registers.
template <class L, class Tile>
struct ColVector : OperandNode<L, NothingShared> {
  using Base = OperandNode<L, NothingShared>;
  using T = typename L::value;
  using Base::Base;

  template <int kThreads, class Places, class Registers>
  struct Callbacks : EmptyConsumerStoreCallbacks {
    static constexpr int kLoads =
        decltype(cute::size(cute::filter_zeros(std::declval<Registers&>())))::value;
    const EpilogueOperand& operand;
    Arriving<L> arriving[kLoads];
    int first, m;
    Places places;        // rows of the tile: (CPY, CPY_M, CPY_N, EPI_M, EPI_N)
    Registers registers;  // likewise

    CUTLASS_DEVICE Callbacks(const EpilogueOperand& operand, int first, int m, Places places,
                             Registers registers)
        : operand(operand), first(first), m(m), places(places), registers(registers) {
      if constexpr (!leaves_few_registers<Tile, kThreads>) send_for();
    }

    CUTLASS_DEVICE void send_for() {
      const auto rows = cute::filter_zeros(places, registers.stride());
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        const int row = first + cute::get<0>(rows(i));
        arriving[i].send_for(operand, row < m, row, 0);
      }
    }
    CUTLASS_DEVICE void begin() {
      if constexpr (leaves_few_registers<Tile, kThreads>) send_for();
      auto to = cute::filter_zeros(registers);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kLoads; ++i) to(i) = arriving[i].value(operand.dtype);
    }

    template <class Acc, int kSize>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Acc, kSize>&, int epi_v, int epi_m, int epi_n) {
      return fragment_of<kSize>(registers(cute::_, cute::_, cute::_, epi_m, epi_n), epi_v);
    }
  };

  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const ConsumerStoreArgs<Args...>& args) {
    using namespace cute;
    const auto partition = [&](auto&& tile) {
      return cutlass::epilogue::fusion::sm90_partition_for_epilogue<kReferenceSrc>(
          tile, args.epi_tile, args.tiled_copy, args.thread_idx);
    };
    const auto shape = make_shape(size<0>(Tile{}), size<1>(Tile{}));
    auto places = partition(make_identity_tensor(shape));
    const T* const none = nullptr;  // for the layout: no element is read through it
    auto registers = make_tensor_like<T>(
        partition(make_tensor(make_gmem_ptr(none), make_layout(shape, make_stride(_1{}, _0{})))));
    const int first = static_cast<int>(get<0>(args.tile_coord_mnkl)) * size<0>(Tile{});
    const int m = static_cast<int>(get<0>(args.problem_shape_mnkl));
    constexpr int kThreads = decltype(size(args.tiled_copy))::value;
    return Callbacks<kThreads, decltype(places), decltype(registers)>(*this->operand, first, m,
                                                                      places, registers);
  }
};

// --- the tree ------------------------------------------------------------------------------------

// Tree<E, Tile, C>::type is the tree, value the type of its elements, and arguments() its
// arguments. C: the storage type of a matrix operand.
template <class E, class Tile, class C>
struct Tree;

template <class T, class Tile, class C>
struct Tree<epilogue::Accumulator<T>, Tile, C> {
  using value = T;
  using type = Sm90AccFetch;
  static typename type::Arguments arguments(const EpilogueOperand*) { return {}; }
};

template <epilogue::Axis, class L, class Tile>
struct LeafNode;
template <class L, class Tile>
struct LeafNode<epilogue::Axis::Row, L, Tile> : RowVector<L, Tile> {
  using RowVector<L, Tile>::RowVector;
};
template <class L, class Tile>
struct LeafNode<epilogue::Axis::Col, L, Tile> : ColVector<L, Tile> {
  using ColVector<L, Tile>::ColVector;
};
template <Operand Id, class T, epilogue::Axis A, bool ScalarOk, class Tile, class C>
struct Tree<epilogue::Leaf<Id, T, A, ScalarOk>, Tile, C> {
  using value = T;
  using type = LeafNode<A, epilogue::Leaf<Id, T, A, ScalarOk>, Tile>;
  static typename type::Arguments arguments(const EpilogueOperand* operands) {
    return operands[static_cast<int>(Id)];
  }
};

// A matrix: C, which CUTLASS loads by TMA.
template <Operand Id, class T, bool ScalarOk, class Tile>
struct Tree<epilogue::Leaf<Id, T, epilogue::Axis::Full, ScalarOk>, Tile, float> {
  using value = T;
  using type = Sm90SrcFetch<float>;
  static typename type::Arguments arguments(const EpilogueOperand*) { return {}; }
};
template <Operand Id, class T, bool ScalarOk, class Tile>
struct Tree<epilogue::Leaf<Id, T, epilogue::Axis::Full, ScalarOk>, Tile, uint16_t> {
  using value = T;
  using type =
      Sm90EVT<Sm90Compute<Widen, float, uint16_t, cutlass::FloatRoundStyle::round_to_nearest>,
              Sm90SrcFetch<uint16_t>>;
  static typename type::Arguments arguments(const EpilogueOperand* operands) {
    return {{}, {operands[static_cast<int>(Id)].dtype}};
  }
};

// An operation of the vocabulary on fragments, in the form that CUTLASS's compute nodes take.
template <class Op>
struct Elementwise {
  template <class>
  struct Function {
    template <class T, int kSize, class... Ts>
    CUTLASS_DEVICE auto operator()(const cutlass::Array<T, kSize>& first,
                                   const cutlass::Array<Ts, kSize>&... rest) const {
      cutlass::Array<decltype(apply(Op{}, first[0], rest[0]...)), kSize> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) result[i] = apply(Op{}, first[i], rest[i]...);
      return result;
    }
  };
};

template <class Op, class First, class... Rest, class Tile, class C>
struct Tree<epilogue::Apply<Op, First, Rest...>, Tile, C> {
  using computes_in = typename Tree<First, Tile, C>::value;
  using value = decltype(apply(Op{}, computes_in{}, typename Tree<Rest, Tile, C>::value{}...));
  using type = Sm90EVT<Sm90Compute<Elementwise<Op>::template Function, value, computes_in,
                                   cutlass::FloatRoundStyle::round_to_nearest>,
                       typename Tree<First, Tile, C>::type, typename Tree<Rest, Tile, C>::type...>;
  static typename type::Arguments arguments(const EpilogueOperand* operands) {
    return {
        Tree<First, Tile, C>::arguments(operands), Tree<Rest, Tile, C>::arguments(operands)..., {}};
  }
};

#ifdef SCALED_MM_COMPILED
// A program: one node, whose children are the sums and all operands.
template <class P>
struct ProgramNode : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
  using Base = cutlass::epilogue::fusion::Sm90VisitorImpl<>;
  using Base::Base;

  struct Callbacks : EmptyConsumerStoreCallbacks {
    template <class Acc, int kSize, class... Operands>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Acc, kSize>&, int, int, int,
                              const cutlass::Array<int32_t, kSize>& sums,
                              const Operands&... operands) {
      const auto all = cute::make_tuple(operands...);
      cutlass::Array<float, kSize> made;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) {
        const int32_t sum = sums[i];
        uint32_t bits;
        P::at(
            &sum, [&](auto leaf, int) { return cute::get<decltype(leaf)::order>(all)[i]; }, &bits);
        made[i] = __uint_as_float(bits);
      }
      return made;
    }
  };
  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const ConsumerStoreArgs<Args...>&) {
    return Callbacks{};
  }
};

template <class P, class List, class Tile>
struct ProgramTree;
template <class P, class... Ls, class Tile>
struct ProgramTree<P, Leaves<Ls...>, Tile> {
  using value = float;
  using type = Sm90EVT<ProgramNode<P>, Sm90AccFetch, LeafNode<Ls::axis, Ls, Tile>...>;
  static typename type::Arguments arguments(const EpilogueOperand* operands) {
    return {{}, operands[Ls::place]..., {}};
  }
};
template <class P, class Tile, class C>
struct Tree<CompiledEpilogue<P>, Tile, C> : ProgramTree<P, typename P::Staged, Tile> {};
#endif

}  // namespace scaled_mm::cuda::cutlass3
