// A CUTLASS 3.x GEMM with one of the library's epilogues: A [M, K] int8 row-major times B [K, N]
// int8 column-major, D [M, N] row-major, int32 accumulators; TMA loads and stores, wgmma.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/config.h"
#include "cuda/cutlass3/lower.h"
#include "cuda/device.h"

namespace scaled_mm::cuda::cutlass3 {

// kRow: of an arch's table, whose config() is found by its type. Out: the storage type of D.
template <auto kRow, class E, class Out>
struct Gemm {
  static constexpr Config kConfig = config(kRow);
  static constexpr bool kPingpong = kConfig.schedule == Schedule::pingpong;
  using Tile =
      cute::Shape<cute::Int<kConfig.tile_m>, cute::Int<kConfig.tile_n>, cute::Int<kConfig.tile_k>>;
  using Cluster = cute::Shape<cute::Int<kConfig.cluster_m>, cute::Int<kConfig.cluster_n>, cute::_1>;
  using MainSchedule =
      std::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using EndSchedule = std::conditional_t<kPingpong, cutlass::epilogue::TmaWarpSpecialized,
                                         cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using End = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, int32_t, float,  // accumulator, compute
      void, cutlass::layout::RowMajor, 16 / sizeof(Out),                // no C
      Out, cutlass::layout::RowMajor, 16 / sizeof(Out), EndSchedule,
      Visitor<E, Tile, Out>>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, int8_t, cutlass::layout::RowMajor, 16,
      int8_t, cutlass::layout::ColumnMajor, 16, int32_t, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename End::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Operation = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, End,
                                                         cutlass::gemm::PersistentScheduler>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Operation>;

  static typename Operation::Arguments arguments(const Product& p, const Device& device) {
    typename Operation::Arguments args{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1},
        {p.a, {p.lda, cute::_1{}, 0}, p.b, {p.ldb, cute::_1{}, 0}},
        {{p.operands, p.out_dtype == ScalarType::BFloat16},
         nullptr,
         {p.ldd, cute::_1{}, 0},
         static_cast<Out*>(p.d),
         {p.ldd, cute::_1{}, 0}}};
    args.hw_info.device_id = device.index;
    args.hw_info.sm_count = device.sms;
    args.scheduler.max_swizzle_size = choose_swizzle(kConfig, p.m, p.n);
    return args;
  }

  static void run(const Product& p, const Device& device, cudaStream_t stream) {
    // can_implement is not asked: it wants K and N themselves to be multiples of 16 bytes. TMA
    // wants that of pointers and strides, which the caller has seen to, and fills what lies outside
    // with 0.
    const auto args = arguments(p, device);
    allow_shared_memory(device);
    auto params = Operation::to_underlying_arguments(args, nullptr);  // no workspace
    constexpr bool kOverlap = true;  // the start may overlap the end of the kernel before
    must(Adapter::run(params, stream, nullptr, kOverlap), "launch");
  }

 private:
  static void must(cutlass::Status status, const char* step) {
    if (status == cutlass::Status::kSuccess) return;
    check(cudaGetLastError(), step);
    throw std::runtime_error(std::string("CUTLASS, ") + step + ": " +
                             cutlassGetStatusString(status));
  }

  static void allow_shared_memory(const Device& device) {
    static OncePerDevice once;
    once(device.index, [] {
      check(cudaFuncSetAttribute(cutlass::device_kernel<Operation>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Operation::SharedStorageSize),
            "cudaFuncSetAttribute");
    });
  }
};

// Runs the kernel whose storage type the product asks for.
template <auto kRow, class E>
void run(const Product& p, const Device& device, cudaStream_t stream) {
  if constexpr (std::is_same_v<E, epilogue::RawAccumulator>) {
    Gemm<kRow, E, int32_t>::run(p, device, stream);
  } else if (p.out_dtype == ScalarType::Float) {
    Gemm<kRow, E, float>::run(p, device, stream);
  } else {
    Gemm<kRow, E, uint16_t>::run(p, device, stream);
  }
}

}  // namespace scaled_mm::cuda::cutlass3
