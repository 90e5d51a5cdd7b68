// A line of k_scales.table. setup.py compiles this once for every such line, with
// SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/k_scales.h"
#include "cuda/sm90/tensor_map.h"
#include "cuda/sm90/w4a8.cuh"
#include "integers.h"

namespace scaled_mm::cuda::sm90::k_scales {
namespace {

template <class Block>
__global__ __launch_bounds__(Block::kThreads, 1) void multiply(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  multiply_units<Block>(p, shared);
}

// Whether the kernel brings the tokens' columns into the order of units: few tokens, as TMA reads
// them. Of many it would do so for every tile.
template <class Block>
bool arranges(const KScalesProblem& p) {
  const Matrix<const int8_t>& a = p.product.a;
  const bool is_one = p.product.size.m == 1;
  return Block::kArranges && !p.order && (a.col_stride == 1 || p.product.size.k == 1) &&
         reinterpret_cast<uintptr_t>(a.data) % 16 == 0 &&
         (is_one || (a.row_stride % 16 == 0 && a.row_stride >= p.product.size.k));
}

template <const Units& kTile, Grouping kGroups>
void launch(const KScalesProblem& p, const Scope& scope) {
  using Block = Block<kTile, kGroups>;
  const auto& [m, n, k, epilogue, out_dtype, function] = p.product.size;
  const bool arranged = !arranges<Block>(p);
  const Matrix<const int8_t> a = arranged ? arrange_columns(p, scope) : p.product.a;
  const EpilogueOperand& azp = p.product.operands[static_cast<int>(Operand::azp)];
  const Device& device = scope.device;
  Params params;
  params.units = p.w.units;
  params.panels = static_cast<int>(ceil_div(n, int64_t{kUnitChannels}));
  params.sets = unit_sets(k, p.group);
  params.dtype = p.w.dtype;
  const int box = static_cast<int>(std::min<int64_t>(m, Block::kTokens));
  params.tokens = tensor_map(a.data, m, arranged ? round_up(k, kUnitRows) : k,
                             m == 1 ? round_up(k, 16) : a.row_stride, box);
  params.box_bytes = box * kUnitRows;
  params.arranged = arranged;
  params.m = static_cast<int>(m);
  params.n = static_cast<int>(n);
  params.k = static_cast<int>(k);
  params.group = static_cast<int>(p.group);
  params.slice = static_cast<int>(slice_columns(k));
  params.token_tiles = static_cast<int>(ceil_div(m, int64_t{Block::kTokens}));
  params.pieces = plan_pieces(kTile, p.size(), device.sms);
  const lowbit::PackedPlan& plan = params.pieces.plan;
  params.parts = kTile.parts(p.size(), params.pieces);
  params.stages = Block::stages(device.shared_memory, params.parts);
  params.azp = static_cast<const int32_t*>(azp.data);
  params.azp_stride = azp.row_stride;
  params.end = groups_end(p.product);
  const int64_t slots = kGroups == Grouping::one ? plan.slots()
                        : plan.has_shares()      ? plan.units()
                                                 : 0;
  params.partials = scope.allocate<uint32_t>(slots * (Block::kTokens * Block::kChannels));

  constexpr auto kKernel = multiply<Block>;
  allow_all_shared_memory<kKernel>(device);
  launch_early(kKernel,
               {.grid = dim3(plan.blocks),
                .block = dim3(Block::kThreads),
                .shared_bytes = Block::shared_bytes(params.stages, params.parts),
                .cluster = plan.slices},
               scope, params);
  if (plan.has_shares()) {
    constexpr int kThreads = 128;
    const auto quads =
        static_cast<int>(std::min<int64_t>(m, Block::kTokens)) * (Block::kChannels / 4);
    launch_early(reduce_parts<kGroups>,
                 {.grid = dim3(plan.cut(), ceil_div(quads, kThreads)), .block = dim3(kThreads)},
                 scope, params, Block::kTokens, Block::kChannels);
  }
}

}  // namespace

template <const Units& kTile>
void run(const KScalesProblem& p, const Scope& scope) {
  if (p.group == p.product.size.k) return launch<kTile, Grouping::one>(p, scope);
  if constexpr (kTile.takes_groups()) {
    if (p.group % kUnitRows == 0) return launch<kTile, Grouping::of_chunks>(p, scope);
    launch<kTile, Grouping::of_steps>(p, scope);
  }
}

template void run<SCALED_MM_KERNEL_NAME>(const KScalesProblem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::k_scales
