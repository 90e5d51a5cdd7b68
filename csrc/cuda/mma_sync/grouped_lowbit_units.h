// Lines of a grouped_lowbit.table for packed weights. setup.py compiles this for a few lines at a
// time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name) of each.
#include "cuda/common/expert_rows.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "cuda/mma_sync/lowbit_units.cuh"
#include "cuda/mma_sync/model.h"

namespace scaled_mm::cuda::mma_sync {

// units and end.bias are the first expert's; token_tiles are as many as there can be.
struct GroupedUnitsParams : UnitsParams {
  int64_t expert_bytes;  // of the units, to the next expert's
  int bias_bytes;        // of its elements
  ExpertRows groups;     // rows are sorted in memory
};

// D is 0 in the tile.
template <class Block>
__device__ void clear_tile(const UnitsParams& p, const ExpertTile& tile, int panel) {
  const int columns = p.end.gated ? 2 : 1, begin = panel * kUnitChannels / columns;
  const int end = min(p.n / columns, begin + Block::kChannels / columns);
  for (int row = tile.row; row < min(tile.row + Block::kTokens, tile.end); ++row) {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += Block::kThreads) {
      p.end.d[row * p.end.ldd + i] = 0;
    }
  }
}

// units_gemm over the rows of one expert: a product of its weight, whose rows end with the
// expert's.
template <class Block>
__global__ __launch_bounds__(Block::kThreads, Block::kLive) void grouped_units_gemm(
    const __grid_constant__ GroupedUnitsParams given) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStages = Block::kStages;
  const int index = static_cast<int>(blockIdx.x);
  const int panel = index / given.token_tiles * Block::kPanels;
  const ExpertTile tile = find_tile<Block::kTokens>(given.groups, index % given.token_tiles,
                                                    static_cast<int>(threadIdx.x % 32));
  if (tile.expert < 0) return;
  if (tile.expert == given.groups.experts) return clear_tile<Block>(given, tile, panel);
  UnitsParams p = given;
  p.m = tile.end;
  p.units += tile.expert * given.expert_bytes;
  if (p.end.bias.data) {
    p.end.bias.data = static_cast<const char*>(p.end.bias.data) +
                      tile.expert * p.end.bias.row_stride * given.bias_bytes;
  }
  const int chunks = ceil_div(p.k, kUnitRows);

  UnitsLoader<Block> loader(p, shared, tile.row, panel, 0);
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < chunks) loader.load(shared + s * Block::kStageBytes);
    commit();
  }
  typename Block::Sums sums = {};
  const UnitsMultiplier<Block> multiplier(p.sets);
  int stage = 0, free = kStages - 1;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is there for all; all are through with the one before
    if (chunk + kStages - 1 < chunks) loader.load(shared + free * Block::kStageBytes);
    commit();
    multiplier.run(sums, shared + stage * Block::kStageBytes);
    free = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();
  reduce_warps<Block>(sums, shared);
  store_tile<Block>(p, sums, tile.row, panel);
}

template <const auto& kTile, const Gpus& kGpus>
void run_grouped_units(const GroupedLowbitProblem& p, const Scope& scope) {
  const LowbitProblem& product = p.product;
  GroupedUnitsParams params = {};
  params.units = product.w.units;
  params.expert_bytes = p.expert_bytes;
  params.sets = unit_sets(product.w.k, product.w.group);
  params.x = p.rows ? arrange_rows(p, scope) : product.x;
  params.m = static_cast<int>(product.m);
  params.n = static_cast<int>(product.w.n);
  params.k = static_cast<int>(product.w.k);
  params.panels = static_cast<int>(ceil_div(product.w.n, int64_t{kUnitChannels}));
  params.token_tiles = static_cast<int>(p.size().most_tiles(kTile.tile_m));
  params.slice = static_cast<int>(ceil_div(product.w.k, int64_t{kUnitRows}));
  params.end = end_of(product);
  params.bias_bytes = size_of(product.bias.dtype);
  params.groups = expert_rows(p);
  params.groups.rows = nullptr;
  const int64_t tiles = params.token_tiles * ceil_div(product.w.n, int64_t{kTile.tile_n});
  with_dtype16(product.w.dtype, [&](auto dtype) {
    if constexpr (kGpus.multistage || dtype == DType::float16) {  // else it was refused
      using T = typename Half16<decltype(dtype)::value>::type;
      with_unit_format(product.w.bits, product.w.zero_point, [&](auto format) {
        using Block = UnitsBlock<kTile, T, decltype(format)>;
        constexpr auto kKernel = grouped_units_gemm<Block>;
        allow_all_shared_memory<kKernel>(scope.device);
        kKernel<<<static_cast<unsigned>(tiles), Block::kThreads, Block::kSharedBytes,
                  scope.stream>>>(params);
        check(cudaGetLastError(), "grouped_units_gemm, launch");
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
