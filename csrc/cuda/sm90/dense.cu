// The dense arm's product: 16-bit floats, float32 sums, by CUTLASS 3.x.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // wait for the kernel before, where its results are read

#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cuda/awq.h"

namespace scaled_mm::cuda::sm90 {
namespace {

template <class T>
struct Dense {
  static constexpr Config kConfig{
      Kernel::persistent, kDenseTokens, kDenseChannels, 128, 1, 1, Schedule::cooperative, 8};
  using Tile = cute::Shape<cute::Int<kConfig.tile_m>, cute::Int<kConfig.tile_n>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<kConfig.cluster_m>, cute::Int<kConfig.cluster_n>, cute::_1>;
  // acc + bias, a missing bias being -0, which adds nothing to any float
  using Visitor = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<cutlass::plus, T, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, float>,
      cutlass::epilogue::fusion::Sm90AccFetch>;
  using End = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float,  // accumulator, compute
      void, cutlass::layout::RowMajor, 8,                             // no C
      T, cutlass::layout::RowMajor, 8, cutlass::epilogue::TmaWarpSpecializedCooperative,
      Visitor>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, cutlass::layout::RowMajor, 8, T,
      cutlass::layout::RowMajor, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename End::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Operation = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, End,
                                                         cutlass::gemm::PersistentScheduler>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Operation>;

  static void run(const AwqProblem& p, const uint16_t* w, const float* bias, const Device& device,
                  cudaStream_t stream) {
    typename Operation::Arguments args{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(p.m), static_cast<int>(p.w.n), static_cast<int>(p.w.k), 1},
        {reinterpret_cast<const T*>(p.x.data),
         {p.x.row_stride, cute::_1{}, 0},
         reinterpret_cast<const T*>(w),
         {cute::_1{}, p.w.n, 0}},
        {{{bias, -0.0f, {}}, {}, {}},
         nullptr,
         {p.w.n, cute::_1{}, 0},
         reinterpret_cast<T*>(p.d),
         {p.w.n, cute::_1{}, 0}}};
    args.hw_info.device_id = device.index;
    args.hw_info.sm_count = device.sms;
    args.scheduler.max_swizzle_size = choose_swizzle(kConfig, p.m, p.w.n);
    static OncePerDevice once;
    once(device.index, [] {
      check(cudaFuncSetAttribute(cutlass::device_kernel<Operation>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 Operation::SharedStorageSize),
            "cudaFuncSetAttribute");
    });
    auto params = Operation::to_underlying_arguments(args, nullptr);  // no workspace
    const cutlass::Status status = Adapter::run(params, stream, nullptr, true);
    if (status == cutlass::Status::kSuccess) return;
    check(cudaGetLastError(), "dense_gemm");
    throw std::runtime_error(std::string("CUTLASS, dense_gemm: ") + cutlassGetStatusString(status));
  }
};

}  // namespace

void dense_gemm(const AwqProblem& p, const uint16_t* w, const float* bias, const Device& device,
                cudaStream_t stream) {
  if (p.w.dtype == ScalarType::Half) {
    Dense<cutlass::half_t>::run(p, w, bias, device, stream);
  } else {
    Dense<cutlass::bfloat16_t>::run(p, w, bias, device, stream);
  }
}

}  // namespace scaled_mm::cuda::sm90
