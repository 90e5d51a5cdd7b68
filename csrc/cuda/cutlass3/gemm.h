// A CUTLASS 3.x GEMM with one of the library's epilogues: A [M, K] times B [K, N], D [M, N]
// row-major; TMA loads and stores, wgmma. Element types, layouts, tile, cluster and schedule are
// parameters.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/cuda_host_adapter.hpp>

#include "cuda/common/device.h"

// CUTLASS looks the driver's function up by its name for every tensor map that it makes, at every
// call: 0.6 us each. Here it is found once.
#undef CUTLASS_CUDA_DRIVER_WRAPPER_CALL
#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(function) ::scaled_mm::cuda::call_##function
namespace scaled_mm::cuda {
template <class... Args>
CUresult call_cuTensorMapEncodeTiled(Args... args) {
  return tensor_map_encoder()(args...);
}
}  // namespace scaled_mm::cuda

#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/device_kernel.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/common/launch.cuh"
#include "cuda/epilogue/finish.cuh"

namespace scaled_mm::cuda::cutlass3 {

struct GemmArguments {
  int64_t m;
  int64_t n;
  int64_t k;
  const void* a;
  int64_t lda;  // elements between rows of a RowMajor A
  const void* b;
  int64_t ldb;  // elements between columns of a ColumnMajor B, rows of a RowMajor one
  const EpilogueOperand* operands;  // by Operand; of a program, by their places
  Destination to;
  int swizzle = 1;  // width of the bands in which tiles are visited
};

// CUTLASS's stride of a matrix whose rows, or columns, lie `ld` elements apart.
template <class Stride>
Stride stride(int64_t ld) {
  Stride stride{};
  if constexpr (cute::is_static<decltype(cute::get<0>(stride))>::value) {
    cute::get<1>(stride) = ld;
  } else {
    cute::get<0>(stride) = ld;
  }
  return stride;
}

}  // namespace scaled_mm::cuda::cutlass3

#include "cuda/cutlass3/ended.h"
#include "cuda/cutlass3/visitor.h"

namespace scaled_mm::cuda::cutlass3 {

// CUTLASS's epilogue, which stores by TMA: E as a visitor tree.
template <class E, class Tile, class Cluster, class Accumulator, class Out, bool kPingpong, class C>
struct TmaEpilogue {
  using Schedule = std::conditional_t<kPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                      cutlass::epilogue::TmaWarpSpecializedCooperative>;
  static constexpr int kThreads = kPingpong ? 128 : 256;
  static constexpr bool has_c = Lower<E>::List::has_full;
  using Source = std::conditional_t<has_c, C, void>;
  static constexpr int kSums = cute::size<0>(Tile{}) * cute::size<1>(Tile{}) / kThreads;
  // A smaller subtile at a time where more than 128 accumulators to a thread leave few registers,
  // or four stages of C, of which none becomes D's, little of the shared memory.
  static constexpr bool is_small =
      kSums > 128 || (has_c && sizeof(C) == 4 && sizeof(Out) < 4 && !kPingpong);
  using EpilogueTile = cute::Shape<cute::Int<kThreads / 2>, cute::Int<is_small ? 16 : 32>>;
  using Fusion = Visitor<E, Tile, Out, C>;
  using type = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, EpilogueTile, Accumulator,
      float,  // float: computes
      Source, cutlass::layout::RowMajor, 16 / sizeof(C), Out, cutlass::layout::RowMajor,
      16 / sizeof(Out), Schedule, Fusion>::CollectiveOp;
  static typename type::Arguments arguments(const GemmArguments& args) {
    const EpilogueOperand none, *const operands = args.operands;
    const EpilogueOperand& c = has_c ? operands[static_cast<int>(Operand::residual)] : none;
    const int64_t ldd = args.to.ldd;
    return {Fusion::arguments(operands, args.to), static_cast<const Source*>(c.data),
            stride<typename type::StrideC>(has_c ? c.row_stride : ldd),
            static_cast<Out*>(args.to.out.d), stride<typename type::StrideD>(ldd)};
  }
};

// Out, C: the storage types of D and of a matrix operand. E: the epilogue. Pointers and strides of
// A, B, a matrix operand and D are multiples of 16 bytes.
template <class A, class LayoutA, class B, class LayoutB, class Accumulator, class Out, class E,
          class Tile, class Cluster, bool kPingpong, class C = uint16_t>
struct Gemm {
  using MainloopSchedule =
      std::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using Epilogue = typename std::conditional_t<
      epilogue::has_ending<E>,
      std::type_identity<EndedEpilogue<E, Tile, Cluster, Accumulator, Out, kPingpong>>,
      std::type_identity<TmaEpilogue<E, Tile, Cluster, Accumulator, Out, kPingpong, C>>>::type;
  using CollectiveEpilogue = typename Epilogue::type;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, A, LayoutA, 16 / sizeof(A), B, LayoutB,
      16 / sizeof(B), Accumulator, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using GemmKernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                           CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;

  static typename GemmKernel::Arguments arguments(const GemmArguments& args, const Device& device) {
    typename GemmKernel::Arguments all{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(args.m), static_cast<int>(args.n), static_cast<int>(args.k), 1},
        {static_cast<const A*>(args.a), stride<typename GemmKernel::StrideA>(args.lda),
         static_cast<const B*>(args.b), stride<typename GemmKernel::StrideB>(args.ldb)},
        Epilogue::arguments(args)};
    all.hw_info.device_id = device.index;
    all.hw_info.sm_count = device.sms;
    all.scheduler.max_swizzle_size = args.swizzle;
    return all;
  }

  static void run(const GemmArguments& args, const Device& device, const LaunchOn& on) {
    // can_implement is not asked: it wants K and N themselves to be multiples of 16 bytes. TMA
    // wants that of pointers and strides, which the caller has seen to, and fills what lies outside
    // with 0.
    static OncePerDevice once;
    once(device.index, [] {
      check(cudaFuncSetAttribute(cutlass::device_kernel<GemmKernel>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 GemmKernel::SharedStorageSize),
            "cudaFuncSetAttribute");
    });
    // Not through GemmUniversalAdapter, which sets an attribute of the kernel at every launch.
    const auto params = GemmKernel::to_underlying_arguments(arguments(args, device), nullptr);
    constexpr Cluster cluster{};
    launch_early(cutlass::device_kernel<GemmKernel>,
                 {.grid = GemmKernel::get_grid_shape(params),
                  .block = GemmKernel::get_block_shape(),
                  .shared_bytes = GemmKernel::SharedStorageSize,
                  .cluster = dim3(cute::size<0>(cluster), cute::size<1>(cluster))},
                 on, params);
  }
};

}  // namespace scaled_mm::cuda::cutlass3
