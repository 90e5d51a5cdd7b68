// grouped_mixed_mm on the CPU: every expert's rows are a product of their own, and the tasks of all
// of them are run together.
#include <torch/csrc/stable/library.h>

#include "cpu/experts_work.h"
#include "cpu/isa.h"
#include "ops/grouped.h"
#include "ops/namespace.h"

namespace scaled_mm::cpu {

Tiling choose_tiling(const LowbitProblem& p);       // lowbit.cpp
void check_order(const int32_t* order, int64_t k);  // lowbit.cpp
void must_be_words(const LowbitWeight& w);          // lowbit.cpp

namespace {

template <class T>
Matrix<const T> beyond(Matrix<const T> part, int64_t bytes) {
  if (part.data) {
    part.data = reinterpret_cast<const T*>(reinterpret_cast<const char*>(part.data) + bytes);
  }
  return part;
}

const void* beyond(const void* data, int64_t elements, int bytes) {
  return static_cast<const char*>(data) + elements * bytes;
}

// The product of an expert's rows [begin, end).
LowbitProblem product_of(const GroupedLowbitProblem& p, int64_t expert, int64_t begin,
                         int64_t end) {
  LowbitProblem one = p.product;
  one.m = end - begin;
  if (p.rows) {
    one.gather = p.rows + begin;
  } else {
    one.x.data += begin * one.x.row_stride;
  }
  const int64_t bytes = expert * p.expert_bytes;
  one.w.q = beyond(one.w.q, bytes);
  one.w.zeros = beyond(one.w.zeros, bytes);
  one.w.scales = beyond(one.w.scales, bytes);
  one.w.real_zeros = beyond(one.w.real_zeros, bytes);
  if (one.order) one.order += expert * one.w.k;
  EpilogueOperand &bias = one.bias, &residual = one.residual;
  if (bias.data) {
    bias.data = beyond(bias.data, expert * bias.row_stride, size_of(bias.dtype));
    bias.row_stride = 0;
  }
  if (residual.data) {
    residual.data = beyond(residual.data, begin * residual.row_stride, size_of(residual.dtype));
  }
  one.d += begin * one.ldd;
  return one;
}

// X' of all experts' rows, sorted, in place of x: each row in the order of its expert's weight.
void arrange(Checked<GroupedLowbitProblem>& checked, const Tensor& x, const InstructionSet& isa) {
  GroupedLowbitProblem& p = checked.problem;
  const int64_t m = p.product.m, k = p.product.w.k;
  for (int64_t e = 0; e < p.experts; ++e) check_order(p.product.order + e * k, k);
  const Tensor& made = checked.inputs.emplace_back(new_empty(x, {m, k}, x.scalar_type()));
  auto* const to = static_cast<uint16_t*>(made.mutable_data_ptr());
  for (int64_t e = 0, begin = 0; e < p.experts; begin = p.offsets[e++]) {
    const LowbitProblem one = product_of(p, e, begin, p.offsets[e]);
    const int64_t grain = (int64_t{1} << 15) / std::max<int64_t>(k, 1);
    for_each_piece(one.m, std::max<int64_t>(1, grain), [&](int64_t first, int64_t last) {
      isa.lowbit_prepare(one, to + begin * k, first, last);
    });
  }
  p.product.x = {to, k, 1};
  p.product.order = p.rows = nullptr;
}

void multiply(Checked<GroupedLowbitProblem>& checked, const Tensor& x) {
  GroupedLowbitProblem& p = checked.problem;
  const LowbitProblem& all = p.product;
  must_be_words(all.w);
  check_offsets(p.offsets, p.experts, all.m);
  check_rows(p.rows, all.m, p.x_rows, "x");
  if (all.m == 0 || all.w.n == 0) return;
  const int64_t used = p.experts ? p.offsets[p.experts - 1] : 0;
  std::fill(all.d + used * all.ldd, all.d + all.m * all.ldd, uint16_t{0});
  const InstructionSet& isa = instruction_set();
  if (all.order) arrange(checked, x, isa);
  ExpertsWork<LowbitProblem> work;
  for (int64_t e = 0, begin = 0; e < p.experts; begin = p.offsets[e++]) {
    if (p.offsets[e] == begin) continue;
    const LowbitProblem one = product_of(p, e, begin, p.offsets[e]);
    work.add(one, choose_tiling(one));
  }
  work.run(kLowbitCols * all.w.k, isa.lowbit_gemm);
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("grouped_mixed_mm", TORCH_BOX(&scaled_mm::grouped_mixed_mm<scaled_mm::cpu::multiply>));
}
