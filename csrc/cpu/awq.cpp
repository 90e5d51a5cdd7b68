// awq_dequantize and awq_gemm on the CPU: the arithmetic is in awq_rows.h, here are tasks and
// threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "awq_problem.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "namespace.h"

namespace scaled_mm::cpu {
namespace {

// A piece of the weight is dequantised once for a block of rows, whose sums and values stay in L2
// beside it. Small problems are cut finer, so that every thread has work, but not so fine that
// dequantising outweighs multiplying.
AwqTiling choose_tiling(const AwqProblem& p) {
  constexpr int64_t kMostRows = 256, kLeastRows = 32;
  AwqTiling t;
  t.col_blocks = ceil_div(p.w.n, kAwqCols);
  const int64_t wanted = ceil_div(4 * int64_t{torch::stable::get_num_threads()}, t.col_blocks);
  t.row_blocks = std::max(ceil_div(p.m, kMostRows), std::min(wanted, ceil_div(p.m, kLeastRows)));
  t.block_rows = ceil_div(p.m, t.row_blocks);
  t.row_blocks = ceil_div(p.m, t.block_rows);
  return t;
}

// Tasks that one thread should take at least: starting a thread costs as much as ~2^18 products.
int64_t grain(const AwqProblem& p, const AwqTiling& t) {
  const int64_t products = t.block_rows * kAwqCols * std::max<int64_t>(p.w.k, 1);
  return std::max<int64_t>(1, (int64_t{1} << 18) / products);
}

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  const Checked<AwqProblem> checked = check_awq_dequantize(qweight, scales, qzeros);
  const AwqProblem& p = checked.problem;
  const Kernels& isa = kernels();
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(p.w.n, 1));
  torch::stable::parallel_for(
      0, p.w.k, rows, [&](int64_t begin, int64_t end) { isa.awq_dequantize(p, begin, end); });
  return checked.outputs[0];
}

Tensor awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales, const Tensor& qzeros,
                const std::optional<Tensor>& bias) {
  const Checked<AwqProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias);
  const AwqProblem& p = checked.problem;
  const Kernels& isa = kernels();
  if (p.m > 0 && p.w.n > 0) {
    const AwqTiling tiling = choose_tiling(p);
    torch::stable::parallel_for(
        0, tiling.tasks(), grain(p, tiling),
        [&](int64_t begin, int64_t end) { isa.awq_gemm(p, tiling, begin, end); });
  }
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("awq_dequantize", TORCH_BOX(&scaled_mm::cpu::awq_dequantize));
  ops.impl("awq_gemm", TORCH_BOX(&scaled_mm::cpu::awq_gemm));
}
