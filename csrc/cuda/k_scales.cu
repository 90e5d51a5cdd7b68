// Products with scales along K, by the kernel that all GPUs have (k_scales/tile.cuh):
// launches.
#include "cuda/k_scales.h"

#include "cuda/k_scales/tile.cuh"
#include "cuda/mma_sync/k_scales.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;

template <class Block>
__global__ void __launch_bounds__(Block::kThreads)
    multiply_tile(const __grid_constant__ GroupsParams p) {
  __shared__ typename Block::Shared shared;
  GroupsTile<Block>(p, shared, blockIdx.x, blockIdx.y).run();
}

// Adds up the slices in their order, and ends: four channels of a token a thread. No slices: K is
// 0. The second bound: as in partials.cu.
__global__ void __launch_bounds__(kThreads, 4)
    reduce_slices(const __grid_constant__ GroupsParams p) {
  const int64_t quads = (p.n + 3) / 4, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.m * quads) return;
  const int64_t token = i / quads, channel = i % quads * 4;
  const int inside = static_cast<int>(p.n - channel);
  const float* from = p.partials + token * p.n + channel;
  const float first = p.slices == 0 ? 0.0f : -0.0f;
  float sum[4] = {first, first, first, first};
#pragma unroll 2
  for (int s = 0; s < p.slices; ++s, from += int64_t{p.m} * p.n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e < inside) sum[e] = __fadd_rn(sum[e], from[e]);
    }
  }
  finish_groups(p.end, sum, token, channel);
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(ceil_div(threads, int64_t{kThreads}));
}

void launch_join(const GroupsParams& params, const Scope& scope) {
  const int64_t quads = ceil_div(int64_t{params.n}, int64_t{4});
  reduce_slices<<<blocks_for(params.m * quads), kThreads, 0, scope.stream>>>(params);
  check(cudaGetLastError(), "reduce_slices");
}

template <class WeightChunk, int kTokens, bool kAzp>
void launch_tiles(const GroupsParams& params, int64_t tiles, const Scope& scope) {
  using Block = GroupsBlock<WeightChunk, kTokens, kAzp>;
  const dim3 grid(static_cast<unsigned>(tiles), params.slices);
  multiply_tile<Block><<<grid, Block::kThreads, 0, scope.stream>>>(params);
  check(cudaGetLastError(), "multiply_tile");
}

GroupsParams params_of(const KScalesProblem& p) {
  const auto& [m, n, k, epilogue, out_dtype, function] = p.product.size;
  const EpilogueOperand& azp = p.product.operands[static_cast<int>(Operand::azp)];
  const Matrix<const int8_t>& b = p.product.b.plain;
  return {
      .tokens = p.product.a.data,
      .tokens_stride = p.product.a.row_stride,
      .columns = static_cast<int>(k),
      .m = static_cast<int>(m),
      .n = static_cast<int>(n),
      .k = static_cast<int>(k),
      .group = static_cast<int>(p.group),
      .slice = static_cast<int>(slice_columns(k)),
      .token_tiles = 0,
      .azp = static_cast<const int32_t*>(azp.data),
      .azp_stride = azp.row_stride,
      .units = p.w.units,
      .panels = static_cast<int>(ceil_div(n, int64_t{kUnitChannels})),
      .sets = unit_sets(k, p.group),
      .dtype = p.w.dtype,
      .weight = b.data,
      .weight_stride = b.col_stride,
      .row_scales = p.row_scales,
      .scales = p.scales,
      .slices = 1,
      .partials = nullptr,
      .end = groups_end(p.product),
  };
}

}  // namespace

void end_nothing(const KScalesProblem& p, const Scope& scope) {
  GroupsParams params = params_of(p);
  params.slices = 0;
  launch_join(params, scope);
}

template <const GroupTiles& kTile>
void run(const KScalesProblem& p, const Scope& scope) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;  // of partial sums
  constexpr int kTokens = kTile.tokens;
  GroupsParams params = params_of(p);
  if (!p.in_blocks()) {
    const Matrix<const int8_t> arranged = arrange_columns(p, scope);
    params.tokens = arranged.data, params.tokens_stride = arranged.row_stride;
    params.columns = static_cast<int>(arranged.row_stride);
  }
  params.token_tiles = static_cast<int>(ceil_div(int64_t{params.m}, int64_t{kTokens}));
  const int64_t tiles = int64_t{params.panels} * params.token_tiles;
  const int64_t slices = ceil_div(params.k, params.slice);
  const int64_t sums = slices * params.m * params.n;
  if (slices > 1 && params.group < params.k && tiles < 4 * scope.device.sms &&
      sums * 4 <= kMostBytes) {
    params.slices = static_cast<int>(slices);
    params.partials = scope.allocate<float>(sums);
  }
  if (p.in_blocks()) {
    launch_tiles<Bytes128, kTokens, false>(params, tiles, scope);
  } else if (params.azp) {
    launch_tiles<Nibbles128, kTokens, true>(params, tiles, scope);
  } else {
    launch_tiles<Nibbles128, kTokens, false>(params, tiles, scope);
  }
  if (params.slices > 1) launch_join(params, scope);
}

template void run<groups_16>(const KScalesProblem&, const Scope&);
template void run<groups_64>(const KScalesProblem&, const Scope&);

}  // namespace scaled_mm::cuda
