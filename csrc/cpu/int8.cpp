// scaled_mm and int8_mm on the CPU: problem -> instruction set -> tiling -> tasks. And the epilogue
// by itself, for sums that were added up across processes (scaled_mm/parallel).
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "ops/namespace.h"
#include "ops/int8.h"
#include "problems/program.h"

namespace scaled_mm::cpu {

void multiply_groups(Checked<KScalesProblem>& checked);  // k_scales.cpp

// A block of A's rows stays in a core's L2 while columns of the weight pass by: the more rows, the
// fewer times the weight is read.
Tiling choose_tiling(const Int8Problem::Size& size, const InstructionSet& isa) {
  constexpr int64_t kBlockBytes = 512 * 1024;  // half of the L2 of current server cores
  const int64_t fitting = kBlockBytes / std::max<int64_t>(size.k * isa.a_value_bytes, 1);
  return cut_rows(size.m, ceil_div(size.n, kColBlock), isa.tile_rows,
                  std::max<int64_t>(fitting, isa.tile_rows));
}

void multiply(Checked<Int8Problem>& checked) {
  const Int8Problem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  if (p.size.m == 0 || p.size.n == 0) return;
  const Tiling tiling = choose_tiling(p.size, isa);
  run_tasks(tiling, tiling.block_rows * kColBlock * p.size.k,
            [&](int64_t begin, int64_t end) { isa.gemm(p, tiling, begin, end); });
}

namespace {

using Ops = Int8Ops<multiply, multiply_groups>;

// About as much work for an element as a few products.
constexpr int64_t kProductsOfAnElement = 8;

std::vector<Tensor> epilogue_mm(const Tensor& a, const Tensor& b, std::vector<Tensor> operands,
                                std::vector<int64_t> program, const Shape& b_shape,
                                bool b_settled) {
  Checked<ProgramProblem> checked = check_epilogue_mm(a, b, operands, program, b_shape, b_settled);
  Checked<Int8Problem> product{checked.problem.product, {}, {}};
  product.problem.program = &checked.problem.program;
  multiply(product);
  return checked.outputs;
}

Tensor scaled_epilogue(const Tensor& acc, const Tensor& scale_a, const Tensor& scale_b,
                       const std::optional<Tensor>& bias, const std::optional<Tensor>& azp,
                       const std::optional<Tensor>& azp_adj,
                       const std::optional<Tensor>& azp_with_adj, ScalarType out_dtype) {
  const Checked<Int8Problem> checked =
      check_scaled_epilogue(acc, scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, out_dtype);
  const Int8Problem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  if (p.size.m > 0 && p.size.n > 0) {
    const Tiling tiling = cut_rows(p.size.m, ceil_div(p.size.n, kColBlock), 1, p.size.m);
    run_tasks(tiling, tiling.block_rows * kColBlock * kProductsOfAnElement,
              [&](int64_t begin, int64_t end) { isa.finish(p, tiling, begin, end); });
  }
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cpu::Ops::scaled_mm));
  ops.impl("scaled_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::scaled_mm_out));
  ops.impl("_scaled_mm_plain", TORCH_BOX(&scaled_mm::cpu::Ops::scaled_mm_plain));
  ops.impl("epilogue_mm", TORCH_BOX(&scaled_mm::cpu::epilogue_mm));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cpu::Ops::int8_mm));
  ops.impl("int8_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::int8_mm_out));
  ops.impl("_scaled_epilogue", TORCH_BOX(&scaled_mm::cpu::scaled_epilogue));
}
