// scaled_mm and int8_mm on the CPU: problem -> instruction set -> tiling -> tasks.
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "namespace.h"

namespace scaled_mm::cpu {
namespace {

// A block of A's rows stays in a core's L2 while columns of the weight pass by: the more rows, the
// fewer times the weight is read.
Tiling choose_tiling(const Int8Problem::Size& size, const InstructionSet& isa) {
  constexpr int64_t kBlockBytes = 512 * 1024;  // half of the L2 of current server cores
  const int64_t fitting = kBlockBytes / std::max<int64_t>(size.k * isa.a_value_bytes, 1);
  return cut_rows(size.m, ceil_div(size.n, kColBlock), isa.tile_rows,
                  std::max<int64_t>(fitting, isa.tile_rows));
}

Tensor run(const Checked<Int8Problem>& checked) {
  const Int8Problem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  if (p.size.m > 0 && p.size.n > 0) {
    const Tiling tiling = choose_tiling(p.size, isa);
    run_tasks(tiling, tiling.block_rows * kColBlock * p.size.k,
              [&](int64_t begin, int64_t end) { isa.gemm(p, tiling, begin, end); });
  }
  return checked.outputs[0];
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 const std::optional<Tensor>& bias, const std::optional<Tensor>& azp,
                 const std::optional<Tensor>& azp_adj, const std::optional<Tensor>& azp_with_adj,
                 const std::optional<Tensor>& residual,
                 const std::optional<std::string>& activation, ScalarType out_dtype,
                 const Shape& b_shape) {
  return run(check_scaled_mm(a, b, scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, residual,
                             activation, out_dtype, b_shape));
}

Tensor int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape) {
  return run(check_int8_mm(a, b, b_shape));
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cpu::scaled_mm));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cpu::int8_mm));
}
