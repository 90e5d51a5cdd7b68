// Products of several experts on CUDA: problem -> kernel -> launch.
#include "cuda/grouped.h"

#include "cuda/common/alignment.h"
#include "dispatch/choose.h"

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

void multiply(GroupedInt8Problem& p, const Scope& scope) {
  if (p.size.m == 0 || p.size.n == 0) return;
  must_fit("a", "rows", std::max(p.size.m, p.a_rows));
  must_fit("b", "columns of all experts", p.size.experts * p.size.n);
  const Kernel<GroupedInt8Problem>* const kernel = choose<GroupedInt8Problem>(p.size, scope.device);
  if (!kernel) refuse_size<GroupedInt8Problem>(p.size, scope.device);
  p.product.a = aligned_rows(p.product.a, p.a_rows, p.size.k, scope);
  kernel->run(p, scope);
}

}  // namespace scaled_mm::cuda
