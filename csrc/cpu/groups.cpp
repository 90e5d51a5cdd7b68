// grouped_mm and moe_combine on the CPU: every expert's rows are a product of their own, and the
// tasks of all of them are run together.
#include <torch/csrc/stable/library.h>

#include <cstring>
#include <vector>

#include "cpu/experts_work.h"
#include "cpu/isa.h"
#include "ops/grouped.h"
#include "ops/namespace.h"
#include "problems/groups.h"
#include "refuse.h"

namespace scaled_mm::cpu {

Tiling choose_tiling(const Int8Problem::Size& size, const InstructionSet& isa);  // int8.cpp

namespace {

// What each row of A has, for each row of D; both scales and zero points have 4 bytes.
void sort_operand(const GroupedInt8Problem& p, Operand id, Int8Problem& product,
                  std::vector<int32_t>& to) {
  EpilogueOperand& operand = product.operands[static_cast<int>(id)];
  if (!p.rows || !operand.data || operand.row_stride == 0) return;
  to.resize(static_cast<size_t>(p.size.m));
  const auto* from = static_cast<const int32_t*>(operand.data);
  for (int64_t row = 0; row < p.size.m; ++row) to[row] = from[p.rows[row] * operand.row_stride];
  operand.data = to.data();
  operand.row_stride = 1;
}

const void* beyond(const void* data, int64_t elements, int bytes) {
  return static_cast<const char*>(data) + elements * bytes;
}

// The product of an expert's rows [begin, end); `all` is that of all, its operands sorted.
Int8Problem product_of(const GroupedInt8Problem& p, const Int8Problem& all, int64_t expert,
                       int64_t begin, int64_t end) {
  Int8Problem one = all;
  one.size.m = end - begin;
  if (p.rows) {
    one.gather = p.rows + begin;
  } else {
    one.a.data += begin * one.a.row_stride;
  }
  if (one.b.packed) {
    one.b.packed += expert * p.expert_stride;
  } else {
    one.b.plain.data += expert * p.expert_stride;
  }
  for (const Operand id : {Operand::scale_b, Operand::bias, Operand::azp_adj}) {
    EpilogueOperand& operand = one.operands[static_cast<int>(id)];
    if (!operand.data) continue;
    operand.data = beyond(operand.data, expert * operand.row_stride, size_of(operand.dtype));
    operand.row_stride = 0;
  }
  for (const Operand id :
       {Operand::scale_a, Operand::azp, Operand::residual, Operand::out_scale, Operand::out_azp}) {
    EpilogueOperand& operand = one.operands[static_cast<int>(id)];
    if (!operand.data) continue;
    operand.data = beyond(operand.data, begin * operand.row_stride, size_of(operand.dtype));
  }
  one.d = static_cast<char*>(one.d) + begin * one.size.out_columns() * one.size.out_bytes();
  return one;
}

void run(Checked<GroupedInt8Problem>& checked) {
  const GroupedInt8Problem& p = checked.problem;
  check_offsets(p.offsets, p.size.experts, p.size.m);
  check_rows(p.rows, p.size.m, p.a_rows, "a");
  const int64_t used = p.size.experts ? p.offsets[p.size.experts - 1] : 0;
  const int64_t row_bytes = p.size.out_columns() * p.size.out_bytes();
  if (p.size.m == 0 || row_bytes == 0) return;
  std::memset(static_cast<char*>(p.product.d) + used * row_bytes, 0,
              static_cast<size_t>((p.size.m - used) * row_bytes));
  Int8Problem all = p.product;
  std::vector<int32_t> scales, zero_points;
  sort_operand(p, Operand::scale_a, all, scales);
  sort_operand(p, Operand::azp, all, zero_points);
  const InstructionSet& isa = instruction_set();
  ExpertsWork<Int8Problem> work;
  for (int64_t e = 0, begin = 0; e < p.size.experts; begin = p.offsets[e++]) {
    if (p.offsets[e] == begin) continue;
    const Int8Problem one = product_of(p, all, e, begin, p.offsets[e]);
    work.add(one, choose_tiling(one.size, isa));
  }
  work.run(kColBlock * p.size.k, isa.gemm);
}

using Maybe = std::optional<Tensor>;

Tensor moe_combine(const Tensor& y, const Tensor& weights, const Tensor& places,
                   const Maybe& residual, const std::optional<ScalarType>& out_dtype) {
  const auto checked = check_moe_combine(y, weights, places, residual, out_dtype);
  const CombinedTokens& p = checked.problem;
  for (int64_t i = 0; i < p.tokens * p.top_k; ++i) {
    if (p.places[i] < 0 || p.places[i] >= p.rows) {
      refuse("places", cat("name rows 0..", p.rows - 1, " of y"), cat(p.places[i]));
    }
  }
  const InstructionSet& isa = instruction_set();
  const int64_t elements = std::max<int64_t>(p.columns * (p.top_k + 1), 1);  // of a token
  torch::stable::parallel_for(0, p.tokens, std::max<int64_t>(1, (int64_t{1} << 15) / elements),
                              [&](int64_t begin, int64_t end) { isa.combine(p, begin, end); });
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("grouped_mm", TORCH_BOX(&scaled_mm::grouped_mm<scaled_mm::cpu::run>));
  ops.impl("moe_combine", TORCH_BOX(&scaled_mm::cpu::moe_combine));
}
