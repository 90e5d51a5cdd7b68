// Lines of a lowbit.table for packed weights. setup.py compiles this for a few lines at a time,
// behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name) of each.
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "cuda/mma_sync/lowbit_units.cuh"
#include "cuda/mma_sync/model.h"

namespace scaled_mm::cuda::mma_sync {

template <class Block>
void launch_units(UnitsParams params, unsigned tiles, int slices, const Scope& scope) {
  constexpr auto kKernel = units_gemm<Block>;
  allow_all_shared_memory<kKernel>(scope.device);
  kKernel<<<dim3(tiles, slices), Block::kThreads, Block::kSharedBytes, scope.stream>>>(params);
  check(cudaGetLastError(), "units_gemm, launch");
  if (slices == 1) return;
  const int64_t quads = int64_t{params.m} * (params.n / 4);
  reduce_slices<typename Block::T>
      <<<static_cast<unsigned>(ceil_div(quads, int64_t{256})), 256, 0, scope.stream>>>(params,
                                                                                       slices);
  check(cudaGetLastError(), "reduce_slices, launch");
}

template <const auto& kTile, const Gpus& kGpus>
void run_units(const LowbitProblem& p, const Scope& scope) {
  const auto size = p.size();
  const int64_t chunks = ceil_div(p.w.k, int64_t{kUnitRows});
  const int64_t slice = ceil_div(chunks, int64_t{slices_of(kTile, size, scope.device)});
  const int slices = static_cast<int>(ceil_div(chunks, slice));
  const UnitsParams params{
      .units = p.w.units,
      .sets = unit_sets(p.w.k, p.w.group),
      .x = p.x,
      .m = static_cast<int>(p.m),
      .n = static_cast<int>(p.w.n),
      .k = static_cast<int>(p.w.k),
      .panels = static_cast<int>(ceil_div(p.w.n, int64_t{kUnitChannels})),
      .token_tiles = static_cast<int>(ceil_div(p.m, int64_t{kTile.tile_m})),
      .slice = static_cast<int>(slice),
      .partials = slices > 1 ? scope.allocate<float>(slices * p.m * p.w.n) : nullptr,
      .end = end_of(p),
  };
  const auto tiles = static_cast<unsigned>(tiles_of(kTile, size));
  with_dtype16(p.w.dtype, [&](auto dtype) {
    if constexpr (kGpus.multistage || dtype == DType::float16) {  // else it was refused
      using T = typename Half16<decltype(dtype)::value>::type;
      with_unit_format(p.w.bits, p.w.zero_point, [&](auto format) {
        launch_units<UnitsBlock<kTile, T, decltype(format)>>(params, tiles, slices, scope);
      });
    }
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit {

template <const Units& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  mma_sync::run_units<kTile, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const LowbitProblem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit
