// scaled_mm and int8_mm on the CPU: problem -> instruction set -> epilogue -> tiling -> tasks.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "epilogue/registry.h"
#include "namespace.h"

namespace scaled_mm::cpu {
namespace {

// A block of A's rows stays in a core's L2 while columns of the weight pass by: the more rows, the
// fewer times the weight is read. Small problems are cut finer, so that every thread has work.
Tiling choose_tiling(const Problem& p, const Kernels& isa) {
  constexpr int64_t kBlockBytes = 512 * 1024;  // half of the L2 of current server cores
  const int64_t threads = torch::stable::get_num_threads();
  const int64_t fitting = kBlockBytes / std::max<int64_t>(p.k * isa.a_value_bytes, 1);
  Tiling t;
  t.col_blocks = ceil_div(p.n, kColBlock);
  t.row_blocks = ceil_div(p.m, std::max<int64_t>(fitting, isa.tile_rows));
  const int64_t wanted = ceil_div(4 * threads, t.col_blocks);
  t.row_blocks = std::max(t.row_blocks, std::min(wanted, ceil_div(p.m, isa.tile_rows)));
  t.block_rows = ceil_div(p.m, t.row_blocks);
  t.row_blocks = ceil_div(p.m, t.block_rows);
  return t;
}

// Tasks that one thread should take at least: starting a thread costs as much as ~2^18 products.
int64_t grain(const Problem& p, const Tiling& t) {
  const int64_t products = t.block_rows * kColBlock * std::max<int64_t>(p.k, 1);
  return std::max<int64_t>(1, (int64_t{1} << 18) / products);
}

Tensor run(Checked<Problem> checked, int epilogue) {
  Problem& p = checked.problem;
  const Kernels& isa = kernels();
  if (p.m > 0 && p.n > 0) {
    const Tiling tiling = choose_tiling(p, isa);
    torch::stable::parallel_for(
        0, tiling.tasks(), grain(p, tiling),
        [&](int64_t begin, int64_t end) { isa.gemm(p, tiling, epilogue, begin, end); });
  }
  return checked.outputs[0];
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, const std::optional<Tensor>& azp,
                 const std::optional<Tensor>& azp_adj, const std::optional<Tensor>& azp_with_adj,
                 ScalarType out_dtype, const Shape& b_shape) {
  Checked<Problem> checked =
      check_scaled_mm(a, b, scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, out_dtype, b_shape);
  const int epilogue = epilogue::choose(checked.problem.given);
  return run(std::move(checked), epilogue);
}

Tensor int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape) {
  return run(check_int8_mm(a, b, b_shape), kRaw);
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cpu::scaled_mm));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cpu::int8_mm));
}
