// Mixtures of experts on CUDA: problem -> kernel -> launch. Nothing waits for the device, so values
// of offsets, rows and places are not refused: what names nothing stands for the nearest.
#include "cuda/grouped.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>

#include "cuda/common/alignment.h"
#include "cuda/int8.h"
#include "dispatch/choose.h"
#include "ops/grouped.h"
#include "ops/namespace.h"
#include "refuse.h"

namespace scaled_mm::cuda {
namespace {

// The weights of all experts as the kernels read them, one below the other: rows e * N + n of K
// bytes, aligned to 16. A stack that lies so is read where it is; any other is copied, expert by
// expert.
Matrix<const int8_t> stack_columns(const GroupedInt8Problem& p, const Scope& scope) {
  const Weight& b = p.product.b;
  const int64_t experts = p.size.experts, n = p.size.n, k = p.size.k;
  const int64_t expert_stride = p.expert_stride;
  const Matrix<const int8_t> columns = transposed(b);
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

void multiply(GroupedInt8Problem& p, const Scope& scope) {
  const Kernel<GroupedInt8Problem>* const kernel = choose<GroupedInt8Problem>(p.size, scope.device);
  if (!kernel) refuse_size<GroupedInt8Problem>(p.size, scope.device);
  p.product.a = aligned_rows(p.product.a, p.a_rows, p.size.k, scope);
  const Matrix<const int8_t> stack = stack_columns(p, scope);
  p.product.b = {.k = p.size.k, .n = p.size.n, .plain = {stack.data, 1, stack.row_stride}};
  kernel->run(p, scope);
}

void run(Checked<GroupedInt8Problem>& checked) {
  GroupedInt8Problem& p = checked.problem;
  if (p.size.m == 0 || p.size.n == 0) return;
  must_fit("a", "rows", std::max(p.size.m, p.a_rows));
  must_fit("b", "columns of all experts", p.size.experts * p.size.n);
  if (p.a_rows == 0) refuse("rows", "be empty, as a has no rows", std::to_string(p.size.m));
  const Scope scope(checked.outputs[0]);
  multiply(p, scope);
}

using Maybe = std::optional<Tensor>;

Tensor moe_combine(const Tensor& y, const Tensor& weights, const Tensor& places,
                   const Maybe& residual, const std::optional<ScalarType>& out_dtype) {
  const auto checked = check_moe_combine(y, weights, places, residual, out_dtype);
  const CombinedTokens& p = checked.problem;
  must_fit("y", "rows", p.rows);
  if (p.rows == 0 && weights.numel() > 0) {
    refuse("places", "be empty, as y has no rows", cat(p.tokens * p.top_k, " places"));
  }
  combine_by_token(p, Scope(y));
  return checked.outputs[0];
}

std::tuple<Tensor, Tensor, Tensor> moe_sort(const Tensor& top_k_index, int64_t num_experts) {
  const Checked<TopK> checked = check_moe_sort(top_k_index, num_experts);
  must_fit("top_k_index", "elements", top_k_index.numel());
  must_fit("num_experts", "experts", num_experts + 1);
  sort_by_expert(checked.problem, Scope(top_k_index));
  return {checked.outputs[0], checked.outputs[1], checked.outputs[2]};
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("grouped_mm", TORCH_BOX(&scaled_mm::grouped_mm<scaled_mm::cuda::run>));
  ops.impl("moe_combine", TORCH_BOX(&scaled_mm::cuda::moe_combine));
  ops.impl("_moe_sort", TORCH_BOX(&scaled_mm::cuda::moe_sort));
}
