// Lines of a grouped_lowbit.table for packed weights. setup.py compiles this for a few lines at a
// time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name) of each.
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "cuda/mma_sync/lowbit_units.cuh"
#include "cuda/mma_sync/model.h"

namespace scaled_mm::cuda::mma_sync {

template <const auto& kTile, const Gpus& kGpus>
void run_grouped_units(const GroupedLowbitProblem& p, const Scope& scope) {
  const LowbitProblem& product = p.product;
  GroupedUnitsParams params;
  params.units = product.w.units;
  params.sets = unit_sets(product.w.k, product.w.group);
  params.x = product.x;
  params.m = static_cast<int>(product.m);
  params.n = static_cast<int>(product.w.n);
  params.k = static_cast<int>(product.w.k);
  params.panels = static_cast<int>(ceil_div(product.w.n, int64_t{kUnitChannels}));
  params.token_tiles = static_cast<int>(p.size().most_tiles(kTile.tile_m));
  params.slice = static_cast<int>(ceil_div(product.w.k, int64_t{kUnitRows}));
  params.partials = nullptr;
  params.end = end_of(product);
  params.groups = groups_of(p);
  params.expert_bytes = p.expert_bytes;
  const int64_t tiles = params.token_tiles * ceil_div(product.w.n, int64_t{kTile.tile_n});
  with_dtype16(product.w.dtype, [&](auto dtype) {
    if constexpr (kGpus.multistage || dtype == DType::float16) {  // else it was refused
      using T = typename Half16<decltype(dtype)::value>::type;
      with_unit_format(product.w.bits, product.w.zero_point, [&](auto format) {
        using Block = UnitsBlock<kTile, T, decltype(format)>;
        constexpr auto kKernel = units_gemm<Block, GroupedUnitsParams>;
        allow_all_shared_memory<kKernel>(scope.device);
        kKernel<<<static_cast<unsigned>(tiles), Block::kThreads, Block::kSharedBytes,
                  scope.stream>>>(params);
        check(cudaGetLastError(), "units_gemm, launch");
      });
    }
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped_lowbit {

template <const Units& kTile>
void run(const GroupedLowbitProblem& p, const Scope& scope) {
  mma_sync::run_grouped_units<kTile.of, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const GroupedLowbitProblem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::grouped_lowbit
