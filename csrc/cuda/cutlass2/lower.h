// An epilogue's type lowered to an epilogue visitor tree (EVT) of CUTLASS 2.x, as cutlass3/lower.h
// does it for 3.x. The accumulators come from CUTLASS's own node. Operations, leaves and the store
// are ours.
//
// VisitorCompute wants results of the type that it computes in, and here int32 becomes float32.
//
// VisitorRowBroadcast and VisitorAuxLoad guard a vector at its first element only, and know dtypes
// and strides when they are compiled.
//
// VisitorAuxStore wants rows of D that are aligned to its vectors.
#pragma once

#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>

#include "cuda/common/elementwise.cuh"
#include "cuda/common/store.cuh"

namespace scaled_mm::cuda::cutlass2 {

using cutlass::epilogue::threadblock::Sm80EVT;
using cutlass::epilogue::threadblock::VisitorAccFetch;
using cutlass::epilogue::threadblock::detail::EmptyCallbacks;
using cutlass::epilogue::threadblock::detail::VisitorImpl2x;

// Where the elements of a thread's fragments lie in D. A fragment is a few neighbours of a row.
template <class ThreadMap>
struct Places {
  // (vector, column of fragments, row of fragments, step): their coordinates in D
  template <class ProblemShape>
  CUTLASS_DEVICE static auto of(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    const auto all = cute::make_identity_tensor(shape);  // (M, N, L)
    return cute::group_modes<3, 6>(ThreadMap::partition(all, thread, tile));
  }
};

// --- nodes ---------------------------------------------------------------------------------------

// A node with one struct as its argument and nothing in shared memory.
template <class Args>
struct Node {
  using Arguments = Args;
  using Params = Args;
  struct SharedStorage {};

  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& args, void*) {
    return args;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }

  CUTLASS_HOST_DEVICE Node() {}
  CUTLASS_HOST_DEVICE Node(const Params& params, const SharedStorage&) : params(&params) {}

  const Params* params = nullptr;
};

// An operand. A vector's elements are read once for a tile, before its first step: a step waits for
// all threads twice, so a load in it would be waited for by all. A matrix's are read in their step:
// there are no registers left to read them ahead.
template <class L, class ThreadMap>
struct OperandNode : Node<EpilogueOperand> {
  using Node<EpilogueOperand>::Node;
  using Value = typename L::value;
  static constexpr int kSize = ThreadMap::kElementsPerAccess;
  static constexpr bool kRow = L::axis == epilogue::Axis::Row;
  static constexpr bool kFull = L::axis == epilogue::Axis::Full;
  static constexpr int kAllSteps =
      ThreadMap::Count::kRow * ThreadMap::Count::kGroup * ThreadMap::Count::kCluster;
  // What is kept: so many steps; of each so many fragments down and along D; so many elements of
  // each.
  static constexpr int kSteps = kRow || kFull ? 1 : kAllSteps;
  static constexpr int kDown = kRow ? 1 : ThreadMap::Iterations::kRow;
  static constexpr int kAlong = kRow || kFull ? ThreadMap::Iterations::kColumn : 1;
  static constexpr int kKept = kRow || kFull ? kSize : 1;

  template <class Coordinates, class ProblemShape>
  struct Callbacks : EmptyCallbacks {
    const EpilogueOperand& operand;
    Coordinates places;
    ProblemShape shape;
    Value values[kSteps][kDown][kAlong][kKept];

    CUTLASS_DEVICE Callbacks(const EpilogueOperand& operand, Coordinates places, ProblemShape shape)
        : operand(operand), places(places), shape(shape) {}

    CUTLASS_DEVICE void load(int step) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < kDown; ++row) {
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < kAlong; ++column) {
          auto& kept = values[step % kSteps][row][column];
          const auto at = places(0, column, row, step);
          const int m = cute::get<0>(at), n = cute::get<1>(at);
          // A row vector is the same for all rows, a column vector for all columns.
          const bool in_m = kRow || m < cute::get<0>(shape);
          const int count = kRow || kFull ? cute::get<1>(shape) - n : 1;
          if constexpr (kFull) {
            load_elements<L>(operand, m, n, in_m ? count : 0, kept);
          } else {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kKept; ++i) {
              kept[i] = in_m && i < count ? load_operand<L>(operand, m, n + i) : Value(0);
            }
          }
        }
      }
    }
    CUTLASS_DEVICE void begin_epilogue() {
      if constexpr (!kFull) {
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < kSteps; ++step) load(step);
      }
    }
    CUTLASS_DEVICE void begin_step(int step) {
      if constexpr (kFull) load(step);
    }

    template <class Acc, int kAccs>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int,
                              const cutlass::Array<Acc, kAccs>&) {
      static_assert(kAccs == kSize);
      const auto& kept = values[step % kSteps][kRow ? 0 : row][kRow || kFull ? column : 0];
      cutlass::Array<Value, kSize> fragment;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) fragment[i] = kept[kKept > 1 ? i : 0];
      return fragment;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    const auto places = Places<ThreadMap>::of(tile, thread, shape);
    return Callbacks<decltype(places), ProblemShape>(*this->params, places, shape);
  }
};

template <class Op>
struct OperationNode : VisitorImpl2x<> {
  using VisitorImpl2x<>::VisitorImpl2x;

  struct Callbacks : EmptyCallbacks {
    template <class Acc, int kSize, class... Ts>
    CUTLASS_DEVICE auto visit(int, int, int, int, const cutlass::Array<Acc, kSize>&,
                              const cutlass::Array<Ts, kSize>&... inputs) {
      return typename Elementwise<Op>::template Function<void>{}(inputs...);
    }
  };
  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks{};
  }
};

// The root: rounds to D's dtype and stores; of pairs of columns, what they make.
struct StoreArguments {
  Output out;
  int64_t ldd;    // columns of D
  int64_t slice;  // elements from D of one slice of K to that of the next; 0: K is not cut
};
template <class E, class ThreadMap>
struct StoreNode : Node<StoreArguments> {
  using Node<StoreArguments>::Node;

  template <class Coordinates, class ProblemShape>
  struct Callbacks : EmptyCallbacks {
    const StoreArguments& to;
    Coordinates places;
    ProblemShape shape;

    CUTLASS_DEVICE Callbacks(const StoreArguments& to, Coordinates places, ProblemShape shape)
        : to(to), places(places), shape(shape) {}

    template <class Acc, class T, int kSize>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int, const cutlass::Array<Acc, kSize>&,
                              const cutlass::Array<T, kSize>& value) {
      constexpr int kColumns = epilogue::columns_of<E>;
      const auto at = places(0, column, row, step);
      const int64_t m = cute::get<0>(at), n = cute::get<1>(at);
      T made[kSize / kColumns];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize / kColumns; ++i) {
        if constexpr (kColumns == 2) {
          made[i] = Lower<E>::join_columns(value[2 * i], value[2 * i + 1]);
        } else {
          made[i] = value[i];
        }
      }
      if (m < cute::get<0>(shape)) {
        const int inside = static_cast<int>(cute::get<1>(shape) - n) / kColumns;
        const int64_t slice = cute::get<2>(at) * to.slice;
        store_row(to.out, slice + m * to.ldd + n / kColumns, inside, made);
      }
      return value;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    const auto places = Places<ThreadMap>::of(tile, thread, shape);
    return Callbacks<decltype(places), ProblemShape>(*this->params, places, shape);
  }
};

// --- the tree ------------------------------------------------------------------------------------

template <class E, class ThreadMap>
struct Tree;

template <class T, class ThreadMap>
struct Tree<epilogue::Accumulator<T>, ThreadMap> {
  using type = VisitorAccFetch;
  static typename type::Arguments arguments(const EpilogueOperand (&)[kNumOperands]) { return {}; }
};

template <Operand Id, class T, epilogue::Axis A, bool ScalarOk, class ThreadMap>
struct Tree<epilogue::Leaf<Id, T, A, ScalarOk>, ThreadMap> {
  using type = OperandNode<epilogue::Leaf<Id, T, A, ScalarOk>, ThreadMap>;
  static typename type::Arguments arguments(const EpilogueOperand (&operands)[kNumOperands]) {
    return operands[static_cast<int>(Id)];
  }
};

template <class L, class ThreadMap>
struct Tree<epilogue::Optional<L>, ThreadMap> : Tree<L, ThreadMap> {};

template <class Op, class... Args, class ThreadMap>
struct Tree<epilogue::Apply<Op, Args...>, ThreadMap> {
  using type = Sm80EVT<OperationNode<Op>, typename Tree<Args, ThreadMap>::type...>;
  static typename type::Arguments arguments(const EpilogueOperand (&operands)[kNumOperands]) {
    return {Tree<Args, ThreadMap>::arguments(operands)..., {}};
  }
};

// The pairs are joined by the store.
template <class Op, class E, class ThreadMap>
struct Tree<epilogue::PairOfColumns<Op, E>, ThreadMap> : Tree<E, ThreadMap> {};

template <class E, class ThreadMap>
struct StoredTree {
  using type = Sm80EVT<StoreNode<E, ThreadMap>, typename Tree<E, ThreadMap>::type>;
  static typename type::Arguments arguments(const EpilogueOperand (&operands)[kNumOperands],
                                            const StoreArguments& to) {
    return {Tree<E, ThreadMap>::arguments(operands), to};
  }
};

}  // namespace scaled_mm::cuda::cutlass2
