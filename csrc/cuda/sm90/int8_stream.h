// A line of int8.table that streams the weight. setup.py compiles this once for every such line,
// with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/sm90/int8_stream_launch.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

template <const Stream& kTile, class E>
void launch(const Int8Problem& p, const Scope& scope) {
  using Block = StreamBlock<kTile.tile_m, kTile.tile_n / 64, E>;
  const auto [m, n, k, epilogue, out_dtype, function] = p.size;
  StreamParams params;
  std::copy(std::begin(p.operands), std::end(p.operands), params.operands);
  params.to = destination<E>(p);
  const StreamFactors of{p.a.data, p.a.row_stride, p.b.plain.data, p.b.plain.col_stride, m, n, k};
  const StreamPlan plan = plan_stream(kTile, p.size, scope.device, p.b.settled);
  launch_stream<Block, E>(of, plan, scope.device, scope, params);
}

}  // namespace

template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue,
                          [&](auto e) { launch<kTile, typename decltype(e)::type>(p, scope); });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm90::int8
