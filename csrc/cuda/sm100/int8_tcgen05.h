// A line of int8.table on tcgen05. setup.py compiles this once for every such line, with
// SCALED_MM_KERNEL_NAME defined as its name, for sm_100a: int8 (kind::i8) is not of the family's
// instructions, 10.3 has none.
#define CUTLASS_ENABLE_GDC_FOR_SM100 1  // the kernel waits for the one before where it reads

#include "cuda/cutlass3/gemm.h"
#include "cuda/common/partials.h"
#include "cuda/sm100/arch.h"

namespace scaled_mm::cuda::sm100::int8 {
namespace {

template <const Tcgen05& kTile>
struct Gemm {
  static constexpr bool kTwo = kTile.sms == 2;
  using Tile =
      cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>, cute::Int<kTile.tile_k>>;
  using Cluster = cute::Shape<cute::Int<kTile.sms>, cute::_1, cute::_1>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, int32_t, int32_t, void,
      cutlass::layout::RowMajor, 4, int32_t, cutlass::layout::RowMajor, 4,
      std::conditional_t<kTwo, cutlass::epilogue::TmaWarpSpecialized2Sm,
                         cutlass::epilogue::TmaWarpSpecialized1Sm>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, int8_t, cutlass::layout::RowMajor, 16,
      int8_t, cutlass::layout::ColumnMajor, 16, int32_t, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      std::conditional_t<kTwo, cutlass::gemm::KernelTmaWarpSpecialized2SmSm100,
                         cutlass::gemm::KernelTmaWarpSpecialized1SmSm100>>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, void>;

  // The stride of a matrix whose rows, or columns, lie `ld` elements apart.
  template <class Stride>
  static Stride stride(int64_t ld) {
    Stride stride{};
    cute::get<0>(stride) = ld;
    return stride;
  }

  // D int32 [M, N] = A B
  static void run(const Int8Problem& p, void* d, const Scope& scope) {
    const auto [m, n, k, epilogue, out_dtype] = p.size;
    typename Kernel::Arguments args{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1},
        {p.a.data, stride<typename Kernel::StrideA>(p.a.row_stride), p.b.plain.data,
         stride<typename Kernel::StrideB>(p.b.plain.col_stride)},
        {{},
         nullptr,
         stride<typename Kernel::StrideC>(n),
         static_cast<int32_t*>(d),
         stride<typename Kernel::StrideD>(n)}};
    args.epilogue.thread.alpha = 1;
    args.epilogue.thread.beta = 0;
    args.hw_info.device_id = scope.device.index;
    args.hw_info.sm_count = scope.device.sms;
    allow_all_shared_memory<cutlass::device_kernel<Kernel>>(scope.device);
    const auto params = Kernel::to_underlying_arguments(args, nullptr);
    launch_early(cutlass::device_kernel<Kernel>,
                 {.grid = Kernel::get_grid_shape(params),
                  .block = Kernel::get_block_shape(),
                  .shared_bytes = Kernel::SharedStorageSize,
                  .cluster = dim3(kTile.sms)},
                 scope, params);
  }
};

}  // namespace

template <const Tcgen05& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  const bool raw = p.size.epilogue == epilogue::Id::RawAccumulator;
  int32_t* const sums =
      raw ? static_cast<int32_t*>(p.d) : scope.allocate<int32_t>(p.size.m * p.size.n);
  Gemm<kTile>::run(p, sums, scope);
  if (!raw) finish_partials(sums, 1, p, scope);
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm100::int8
