// A line of int8.table on tcgen05. setup.py compiles this once for every such line, with
// SCALED_MM_KERNEL_NAME defined as its name, for sm_100a: int8 (kind::i8) is not of the family's
// instructions, 10.3 has none.
#define CUTLASS_ENABLE_GDC_FOR_SM100 1  // the kernel waits for the one before where it reads

#include "cuda/cutlass3/gemm.h"
#include "cuda/int8.h"
#include "cuda/sm100/arch.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm100::int8 {
namespace {

// D = E of A B, stored as Out, with a residual that is stored as C. A multiprocessor's part of a
// tile is what the leaves of E's visitor tree see.
template <const Tcgen05& kTile, class E, class Out, class C>
struct Gemm {
  static constexpr bool kTwo = kTile.sms == 2, kHasC = Lower<E>::List::has_full;
  using Tile =
      cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>, cute::Int<kTile.tile_k>>;
  using Part = cute::Shape<cute::Int<kTile.tile_m / kTile.sms>, cute::Int<kTile.tile_n>,
                           cute::Int<kTile.tile_k>>;
  using Cluster = cute::Shape<cute::Int<kTile.sms>, cute::_1, cute::_1>;
  using Visitor = cutlass3::Visitor<E, Part, Out, C>;
  using Source = std::conditional_t<kHasC, C, void>;
  using Stored = typename cutlass3::StoredAs<E, Out>::type;
  // Beside elements of C there are registers for fewer sums at a time.
  using Subtile = std::conditional_t<kHasC, cute::Shape<cute::_128, cute::_32>,
                                     cutlass::epilogue::collective::EpilogueTileAuto>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Tile, Cluster, Subtile, int32_t, float,
      Source, cutlass::layout::RowMajor, 16 / sizeof(C), Stored, cutlass::layout::RowMajor,
      128 / cutlass::sizeof_bits<Stored>::value,
      std::conditional_t<kTwo, cutlass::epilogue::TmaWarpSpecialized2Sm,
                         cutlass::epilogue::TmaWarpSpecialized1Sm>,
      Visitor>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, int8_t, cutlass::layout::RowMajor, 16,
      int8_t, cutlass::layout::ColumnMajor, 16, int32_t, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      std::conditional_t<kTwo, cutlass::gemm::KernelTmaWarpSpecialized2SmSm100,
                         cutlass::gemm::KernelTmaWarpSpecialized1SmSm100>>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, void>;

  static void run(const Int8Problem& p, const Destination& to, const Scope& scope) {
    const auto [m, n, k, epilogue, out_dtype, function] = p.size;
    const auto& residual = p.operands[static_cast<int>(Operand::residual)];
    Matrix<const C> c = {nullptr, to.ldd, 1};
    if constexpr (kHasC) {
      c = aligned_rows<C>(
          {static_cast<const C*>(residual.data), residual.row_stride, residual.col_stride}, m, n,
          scope);
    }
    typename Kernel::Arguments args{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1},
        {p.a.data, cutlass3::stride<typename Kernel::StrideA>(p.a.row_stride), p.b.plain.data,
         cutlass3::stride<typename Kernel::StrideB>(p.b.plain.col_stride)},
        {Visitor::arguments(p.operands, to), static_cast<const Source*>(c.data),
         cutlass3::stride<typename Kernel::StrideC>(c.row_stride), static_cast<Stored*>(to.out.d),
         cutlass3::stride<typename Kernel::StrideD>(to.ldd * epilogue::columns_of(E::form))}};
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

template <const Tcgen05& kTile, class E, class Out, class C = uint16_t>
void launch(const Int8Problem& p, const Scope& scope) {
  Destination to = destination<E>(p);
  with_aligned_output(p, scope, [&](void* d, int64_t ldd) {
    to.out.d = d, to.ldd = ldd;
    Gemm<kTile, E, Out, C>::run(p, to, scope);
  });
}

}  // namespace

template <const Tcgen05& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (epilogue::is_raw<E>) {
      launch<kTile, E, int32_t>(p, scope);
    } else if constexpr (epilogue::has_residual<E>) {  // float32, or as D
      if (size_of(p.size.out_dtype) == 4) {
        launch<kTile, E, float, float>(p, scope);
      } else if (p.operands[static_cast<int>(Operand::residual)].dtype == DType::float32) {
        launch<kTile, E, uint16_t, float>(p, scope);
      } else {
        launch<kTile, E, uint16_t>(p, scope);
      }
    } else if (size_of(p.size.out_dtype) == 4) {
      launch<kTile, E, float>(p, scope);
    } else if (size_of(p.size.out_dtype) == 1) {
      if constexpr (epilogue::is_quantised<E>) launch<kTile, E, uint8_t>(p, scope);
    } else {
      launch<kTile, E, uint16_t>(p, scope);
    }
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm100::int8
