// awq_dequantize and awq_gemm on the CPU: the arithmetic is in lowbit_rows.h, here are tasks and
// threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "cpu/isa.h"
#include "namespace.h"
#include "refuse.h"

namespace scaled_mm::cpu {
namespace {

// A tile of the weight is dequantised once for a block of rows, whose sums and values stay in L2
// beside it. With fewer rows dequantising outweighs multiplying.
constexpr int64_t kMostRows = 256, kLeastRows = 32;

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  const Checked<LowbitProblem> checked = check_awq_dequantize(qweight, scales, qzeros);
  const LowbitProblem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(p.w.n, 1));
  torch::stable::parallel_for(
      0, p.w.k, rows, [&](int64_t begin, int64_t end) { isa.lowbit_dequantize(p, begin, end); });
  return checked.outputs[0];
}

void run(Checked<LowbitProblem>& checked, const Tensor&) {
  const LowbitProblem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  if (p.w.packing != Packing::awq) refuse("packed", "be of layout 0 on the CPU", "layout 1");
  if (p.m == 0 || p.w.n == 0) return;
  const Tiling tiling = cut_rows(p.m, ceil_div(p.w.n, kLowbitCols), kLeastRows, kMostRows);
  run_tasks(tiling, tiling.block_rows * kLowbitCols * p.w.k,
            [&](int64_t begin, int64_t end) { isa.lowbit_gemm(p, tiling, begin, end); });
}

using Ops = LowbitOps<run>;

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("awq_dequantize", TORCH_BOX(&scaled_mm::cpu::awq_dequantize));
  ops.impl("awq_gemm", TORCH_BOX(&scaled_mm::cpu::Ops::awq_gemm));
  ops.impl("awq_gemm.out", TORCH_BOX(&scaled_mm::cpu::Ops::awq_gemm_out));
  ops.impl("awq_gemm_packed", TORCH_BOX(&scaled_mm::cpu::Ops::awq_gemm_packed));
  ops.impl("awq_gemm_packed.out", TORCH_BOX(&scaled_mm::cpu::Ops::awq_gemm_packed_out));
}
