// An epilogue's type as a visitor of CUTLASS 3.x's TMA epilogue. The whole expression is one leaf
// of the visitor tree: it stages the operands of a tile of D in shared memory, keeps those of an
// epilogue subtile in registers, and evaluates cuda/lower.cuh at every element.
//
// Include after CUTLASS's collective builders.
#pragma once

#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>

#include <algorithm>

#include "cuda/lower.cuh"

namespace scaled_mm::cuda::cutlass3 {

// A fragment of values rounded to the storage type of D.
template <class Out, int kSize, class Value>
__device__ inline cutlass::Array<Out, kSize> narrow(const Value (&value)[kSize], bool bfloat16) {
  cutlass::Array<Out, kSize> out;
  if constexpr (std::is_same_v<Out, uint16_t>) {
    static_assert(kSize % 2 == 0);
    uint32_t* pairs = reinterpret_cast<uint32_t*>(out.data());
    if (bfloat16) {
      for (int i = 0; i < kSize / 2; ++i) {
        pairs[i] = narrow_pair(value[2 * i], value[2 * i + 1], true);
      }
    } else {
      for (int i = 0; i < kSize / 2; ++i) {
        pairs[i] = narrow_pair(value[2 * i], value[2 * i + 1], false);
      }
    }
  } else {
    for (int i = 0; i < kSize; ++i) out[i] = value[i];
  }
  return out;
}

// E: the epilogue. Tile: the block's tile of D. Out: uint16_t (bfloat16 or float16, by `bfloat16`),
// float, or int32_t (for the accumulator itself).
template <class E, class Tile, class Out>
struct Visitor {
  static constexpr int kRows = cute::size<0>(Tile{}), kCols = cute::size<1>(Tile{});
  using List = typename Lower<E>::List;
  using Operands = Staged<List, kRows, kCols>;

  struct Arguments {
    cuda::Operands operands;
    bool bfloat16 = false;
  };
  using Params = Arguments;
  struct SharedStorage {
    Operands operands;
  };

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

  const Params* params = nullptr;
  Operands* operands = nullptr;

  CUTLASS_HOST_DEVICE Visitor() {}
  CUTLASS_HOST_DEVICE Visitor(const Params& p, const SharedStorage& shared)
      : params(&p), operands(const_cast<Operands*>(&shared.operands)) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      const cutlass::epilogue::fusion::detail::ProducerLoadArgs<Args...>&) {
    return cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks{};
  }

  // One operand: where a thread's elements of it lie in shared memory, and in registers for the
  // subtile at work. An operand has stride 0 along the axis that it does not depend on.
  template <class L, class Shared, class Registers>
  struct Held {
    Shared shared;        // (CPY, CPY_M, CPY_N, EPI_M, EPI_N)
    Registers registers;  // (CPY, CPY_M, CPY_N)

    CUTLASS_DEVICE void load(int epi_m, int epi_n) {
      const auto from = cute::filter_zeros(shared(cute::_, cute::_, cute::_, epi_m, epi_n));
      auto to = cute::filter_zeros(registers);
      cute::copy(from, to);
    }
  };

  template <bool kReferenceSrc, class L, class Args>
  CUTLASS_DEVICE auto hold(const Args& args) const {
    using namespace cute;
    const auto strides = [] {
      if constexpr (L::axis == epilogue::Axis::Col)
        return make_stride(_1{}, _0{});
      else
        return make_stride(_0{}, _1{});
    }();
    auto tile = make_tensor(make_smem_ptr(operands->of(L{})),
                            make_layout(make_shape(Int<kRows>{}, Int<kCols>{}), strides));
    auto shared = cutlass::epilogue::fusion::sm90_partition_for_epilogue<kReferenceSrc>(
        tile, args.epi_tile, args.tiled_copy, args.thread_idx);
    auto registers = make_tensor_like<typename L::value>(take<0, 3>(shared));
    return Held<L, decltype(shared), decltype(registers)>{shared, registers};
  }

  template <class... Hs>
  struct Callbacks : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    const Params& params;
    Operands& operands;
    int64_t row, col, m, n;
    int thread, threads;
    cute::tuple<Hs...> held;

    CUTLASS_DEVICE Callbacks(const Params& params, Operands& operands, int64_t row, int64_t col,
                             int64_t m, int64_t n, int thread, int threads, Hs... held)
        : params(params),
          operands(operands),
          row(row),
          col(col),
          m(m),
          n(n),
          thread(thread),
          threads(threads),
          held(held...) {}

    CUTLASS_DEVICE void begin() {
      cutlass::arch::wait_on_dependent_grids();  // the operands may be the kernel's before
      operands.load(params.operands, row, col, m, n, thread, threads);
    }
    CUTLASS_DEVICE bool begin_sync_needed() const { return sizeof...(Hs) > 0; }

    CUTLASS_DEVICE void begin_loop(int epi_m, int epi_n) {
      cute::for_each(held, [&](auto& operand) { operand.load(epi_m, epi_n); });
    }

    template <class Acc, int kSize>
    CUTLASS_DEVICE cutlass::Array<Out, kSize> visit(const cutlass::Array<Acc, kSize>& acc,
                                                    int epi_v, int, int) {
      const auto at = [&](int i) {
        return Lower<E>::at(acc[i], [&](auto leaf) {
          return find(leaf, List{}, std::index_sequence_for<Hs...>{})(epi_v * kSize + i);
        });
      };
      decltype(at(0)) value[kSize];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) value[i] = at(i);
      return narrow<Out>(value, params.bfloat16);
    }

   private:
    template <class L, class... Ls, size_t... I>
    CUTLASS_DEVICE const auto& find(L, Leaves<Ls...>, std::index_sequence<I...>) const {
      constexpr size_t index = std::min({std::is_same_v<L, Ls> ? I : sizeof...(Ls)...});
      return cute::get<index>(held).registers;
    }
  };

  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...>& args) {
    return callbacks<kReferenceSrc>(args, List{});
  }

 private:
  template <bool kReferenceSrc, class Args, class... Ls>
  CUTLASS_DEVICE auto callbacks(const Args& args, Leaves<Ls...>) {
    const auto [m, n, k, l] = args.problem_shape_mnkl;
    const auto [tile_m, tile_n, tile_k, tile_l] = args.tile_coord_mnkl;
    const int threads = cute::size(args.tiled_copy);
    return Callbacks<decltype(hold<kReferenceSrc, Ls>(args))...>(
        *params, *operands, int64_t{tile_m} * kRows, int64_t{tile_n} * kCols, m, n, args.thread_idx,
        threads, hold<kReferenceSrc, Ls>(args)...);
  }
};

}  // namespace scaled_mm::cuda::cutlass3
