#include "problems/mixed_groups.h"

#include "rules.h"

namespace scaled_mm {
namespace {

// int32 [E, K], each expert's elements side by side and behind those of the one before.
const int32_t* check_orders(const Tensor& order, const Tensor& x, int64_t experts, int64_t k,
                            std::vector<Tensor>& copies) {
  must_be("order", order, ScalarType::Int);
  must_share_device("order", order, "x", x);
  const std::vector<int64_t> sizes{experts, k};
  if (!order.sizes().equals(sizes))
    refuse("order", "have shape " + shape_text(sizes), shape(order));
  const Tensor& dense = order.is_contiguous() ? order : copies.emplace_back(row_major_copy(order));
  return static_cast<const int32_t*>(dense.const_data_ptr());
}

}  // namespace

Checked<GroupedLowbitProblem> check_grouped_mixed_mm(const GroupedMixedArguments& given) {
  const auto& [x, packed, sizes, offsets, order, row_of, settled, ending] = given;
  Checked<LowbitProblem> one;
  GroupedLowbitProblem p;
  must_be_tokens(x, "packed", packed);
  if (x.dim() != 2) refuse("x", "be a matrix [T, K]", shape(x));
  if (packed.dim() != 2) refuse("packed", "be a stack of buffers [E, elements]", shape(packed));
  one.problem.w = check_packed_stack(packed, sizes);
  one.problem.w.settled = settled;
  p.experts = packed.size(0);
  p.expert_bytes = 2 * packed.size(1);
  check_tokens(one, x, "packed", "packed");
  const int64_t k = one.problem.w.k, n = one.problem.w.n;
  p.x_rows = one.problem.m;
  p.offsets = check_index("offsets", offsets, p.experts, "x", x, one.inputs);
  if (row_of) {
    p.rows = check_index("rows", *row_of, -1, "x", x, one.inputs);
    one.problem.m = row_of->numel();
  }
  if (order) one.problem.order = check_orders(*order, x, p.experts, k, one.inputs);
  if (ending.bias) {
    const Tensor& bias = *ending.bias;
    must_be_float32_or("bias", bias, "x's", x.scalar_type());
    must_share_device("bias", bias, "x", x);
    const std::vector<int64_t> wanted{p.experts, n};
    if (!bias.sizes().equals(wanted))
      refuse("bias", "have shape " + shape_text(wanted), shape(bias));
    one.problem.bias = operand_along(epilogue::Axis::Full, bias, one.inputs);
  }
  check_lowbit_ending(one, x, "packed", {one.problem.m}, ending);
  p.product = one.problem;
  return {p, std::move(one.outputs), std::move(one.inputs)};
}

}  // namespace scaled_mm
