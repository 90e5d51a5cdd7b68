// Products of several experts on CUDA: problem -> kernel -> launch.
#include "cuda/grouped.h"

#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/common/alignment.h"
#include "dispatch/choose.h"
#include "ops/grouped.h"
#include "ops/namespace.h"

namespace scaled_mm::cuda {

Matrix<const int8_t> stack_columns(const Matrix<const int8_t>& columns, int64_t expert_stride,
                                   const GroupedInt8Problem::Size& size, const Scope& scope) {
  const auto [experts, n, k] = std::tuple(size.experts, size.n, size.k);
  if (experts == 1 || expert_stride == n * columns.row_stride) {
    return aligned_rows(columns, experts * n, k, scope);
  }
  const int64_t stride = packed_stride(k);
  auto* const copy = scope.allocate<int8_t>(experts * n * stride);
  for (int64_t e = 0; e < experts; ++e) {
    const Matrix<const int8_t> one{columns.data + e * expert_stride, columns.row_stride,
                                   columns.col_stride};
    relayout(one, n, k, copy + e * n * stride, stride, scope.stream);
  }
  return {copy, stride, 1};
}

namespace {

void run(Checked<GroupedInt8Problem>& checked) {
  GroupedInt8Problem& p = checked.problem;
  if (p.size.m == 0 || p.size.n == 0) return;
  must_fit("a", "rows", std::max(p.size.m, p.a_rows));
  must_fit("b", "columns of all experts", p.size.experts * p.size.n);
  const Scope scope(checked.outputs[0]);
  const Kernel<GroupedInt8Problem>* const kernel = choose<GroupedInt8Problem>(p.size, scope.device);
  if (!kernel) refuse_size<GroupedInt8Problem>(p.size, scope.device);
  p.product.a = aligned_rows(p.product.a, p.a_rows, p.size.k, scope);
  const Weight& b = p.product.b;
  const Matrix<const int8_t> columns =
      b.packed ? Matrix<const int8_t>{reinterpret_cast<const int8_t*>(b.packed),
                                      packed_stride(p.size.k), 1}
               : Matrix<const int8_t>{b.plain.data, b.plain.col_stride, b.plain.row_stride};
  const auto stack = stack_columns(columns, p.expert_stride, p.size, scope);
  p.product.b = {.k = p.size.k, .n = p.size.n, .plain = {stack.data, 1, stack.row_stride}};
  kernel->run(p, scope);
}

std::tuple<Tensor, Tensor, Tensor> moe_sort(const Tensor& top_k_index, int64_t num_experts) {
  const Checked<TopK> checked = check_moe_sort(top_k_index, num_experts);
  const TopK& p = checked.problem;
  must_fit("top_k_index", "elements", p.tokens * p.top_k);
  must_fit("num_experts", "experts", p.experts + 1);
  sort_by_expert(p, Scope(top_k_index));
  return {checked.outputs[0], checked.outputs[1], checked.outputs[2]};
}

Tensor moe_combine(const Tensor& y, const Tensor& weights, const Tensor& order) {
  const Checked<CombinedTokens> checked = check_moe_combine(y, weights, order);
  const CombinedTokens& p = checked.problem;
  must_fit("y", "rows", p.tokens * p.top_k);
  if (p.tokens > 0 && p.columns > 0) combine_by_token(p, Scope(y));
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("_grouped_mm", TORCH_BOX(&scaled_mm::grouped_mm<scaled_mm::cuda::run>));
  ops.impl("_moe_sort", TORCH_BOX(&scaled_mm::cuda::moe_sort));
  ops.impl("_moe_combine", TORCH_BOX(&scaled_mm::cuda::moe_combine));
}
