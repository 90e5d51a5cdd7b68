// awq_gemm, mixed_mm and what dequantises, on the CPU: the arithmetic is in lowbit_rows.h, here are
// tasks and threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "cpu/isa.h"
#include "ops/lowbit.h"
#include "ops/namespace.h"
#include "refuse.h"

namespace scaled_mm::cpu {

// A tile of the weight is dequantised once for a block of rows, whose sums and values stay in L2
// beside it. With fewer rows dequantising outweighs multiplying.
Tiling choose_tiling(const LowbitProblem& p) {
  constexpr int64_t kMostRows = 256, kLeastRows = 32;
  return cut_rows(p.m, ceil_div(p.w.n, kLowbitCols), kLeastRows, kMostRows);
}

void must_be_words(const LowbitWeight& w) {
  if (w.packing == Packing::units) refuse("packed", "be of layout 0 or 2 on the CPU", "layout 1");
}

namespace {

Tensor dequantize(const Checked<LowbitProblem>& checked) {
  const LowbitProblem& p = checked.problem;
  must_be_words(p.w);
  const InstructionSet& isa = instruction_set();
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(p.w.n, 1));
  torch::stable::parallel_for(
      0, p.w.k, rows, [&](int64_t begin, int64_t end) { isa.lowbit_dequantize(p, begin, end); });
  return checked.outputs[0];
}

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  return dequantize(check_awq_dequantize(qweight, scales, qzeros));
}
Tensor mixed_dequantize(const Tensor& packed, const std::vector<int64_t>& sizes) {
  return dequantize(check_mixed_dequantize(packed, sizes));
}

}  // namespace

void check_order(const int32_t* order, int64_t k) {
  for (int64_t i = 0; order && i < k; ++i) {
    if (order[i] < 0 || order[i] >= k) {
      refuse("order", cat("name columns 0..", k - 1, " of x"), cat(order[i]));
    }
  }
}

namespace {

// X' in place of x: once, before it is read for each block of columns.
void prepare(Checked<LowbitProblem>& checked, const Tensor& x, const InstructionSet& isa) {
  LowbitProblem& p = checked.problem;
  check_order(p.order, p.w.k);
  const Tensor& made = checked.inputs.emplace_back(new_empty(x, {p.m, p.w.k}, x.scalar_type()));
  auto* const to = static_cast<uint16_t*>(made.mutable_data_ptr());
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(p.w.k, 1));
  torch::stable::parallel_for(
      0, p.m, rows, [&](int64_t begin, int64_t end) { isa.lowbit_prepare(p, to, begin, end); });
  p.x = {to, p.w.k, 1};
  p.order = nullptr;
  p.pre_scale = {};
}

void run(Checked<LowbitProblem>& checked, const Tensor& x) {
  const LowbitProblem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  must_be_words(p.w);
  if (p.m == 0 || p.w.n == 0) return;
  if (p.order || p.pre_scale.data) prepare(checked, x, isa);
  const Tiling tiling = choose_tiling(p);
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
  ops.impl("mixed_dequantize", TORCH_BOX(&scaled_mm::cpu::mixed_dequantize));
  ops.impl("mixed_mm", TORCH_BOX(&scaled_mm::cpu::Ops::mixed_mm));
  ops.impl("mixed_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::mixed_mm_out));
}
