// A line of grouped.table whose blocks go from tile to tile. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/grouped.h"
#include "cuda/sm90/grouped_persistent.cuh"
#include "cuda/sm90/tensor_map.h"
#include "epilogue/registry.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::grouped {
namespace {

template <const Persistent& kTile, class E>
void launch(const GroupedInt8Problem& p, const Scope& scope) {
  using Block = PersistentBlock<kTile.tile_m, E>;
  constexpr auto kKernel = persistent_gemm<Block, E>;
  const Int8Problem& product = p.product;
  const int64_t m = p.size.m, n = p.size.n, k = p.size.k;
  PersistentParams params = {};
  if (k > 0 && p.size.experts > 0) {  // else nothing is loaded
    if (Block::kGathers && p.rows != nullptr) {
      params.a = product.a.data;
      params.a_stride = product.a.row_stride;
    } else {
      const Matrix<const int8_t> rows = sorted_rows(p, scope);
      params.tokens = tensor_map(rows.data, m, k, rows.row_stride, Block::kTokens / 2);
    }
    params.weight = tensor_map(product.b.plain.data, p.size.experts * n, k,
                               product.b.plain.col_stride, kChannels);
  }
  params.k = static_cast<int>(k);
  params.n = static_cast<int>(n);
  params.chunks = static_cast<int>(ceil_div(k, kChunk));
  params.pairs = static_cast<int>(ceil_div(n, 2 * kChannels));
  params.stages = Block::stages(scope.device.shared_memory);
  std::copy(std::begin(product.operands), std::end(product.operands), params.operands);
  params.to = destination<E>(product);
  params.groups = expert_rows(p);

  allow_all_shared_memory<kKernel>(scope.device);
  const int64_t tiles = p.size.most_tiles(kTile.tile_m) * params.pairs;
  const int64_t clusters = std::min<int64_t>(tiles, scope.device.sms / 2);
  launch_early(kKernel,
               {.grid = dim3(static_cast<unsigned>(2 * clusters)),
                .block = dim3(kThreads),
                .shared_bytes = Block::shared_bytes(params.stages),
                .cluster = 2},
               scope, params);
}

}  // namespace

template <const Persistent& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    if constexpr (!epilogue::is_raw<E>) launch<kTile, E>(p, scope);
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const GroupedInt8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::grouped
