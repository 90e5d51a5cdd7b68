// A line of k_scales.table for int8 in blocks. setup.py compiles this once for every such line,
// with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/blocks.cuh"
#include "cuda/sm90/tensor_map.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::k_scales {
namespace {

__global__ __launch_bounds__(BlocksTile::kThreads,
                             1) void multiply(const __grid_constant__ BlocksParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  multiply_blocks(p, shared);
}

}  // namespace

template <const Blocks&>
void run(const KScalesProblem& p, const Scope& scope) {
  using Tile = BlocksTile;
  const auto& [m, n, k, epilogue, out_dtype, function] = p.product.size;
  const Matrix<const int8_t>&a = p.product.a, &b = p.product.b.plain;
  const Device& device = scope.device;
  BlocksParams params;
  params.tokens = tensor_map(a.data, m, k, a.row_stride, Tile::kSide);
  params.cluster = cluster_of(m);
  params.weight = tensor_map(b.data, n, k, b.col_stride, Tile::kSide / params.cluster);
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.chunks = static_cast<int>(ceil_div(k, Tile::kSide));
  params.slice = static_cast<int>(slice_columns(k) / kBlock);
  params.token_tiles = static_cast<int>(ceil_div(m, params.cluster * Tile::kSide));
  params.tiles = static_cast<int>(params.token_tiles * ceil_div(n, Tile::kSide));
  params.stages = Tile::stages(device.shared_memory);
  params.row_scales = p.row_scales;
  params.scales = p.scales;
  params.end = groups_end(p.product);
  allow_all_shared_memory<multiply>(device);
  launch_early(multiply,
               {.grid = dim3(params.cluster * std::min(params.tiles, device.sms / params.cluster)),
                .block = dim3(Tile::kThreads),
                .shared_bytes = Tile::shared_bytes(params.stages),
                .cluster = dim3(params.cluster)},
               scope, params);
}

template void run<SCALED_MM_KERNEL_NAME>(const KScalesProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::k_scales
