// Sorting of tokens by their experts, and the sum of what these make of a token (moe_sort,
// moe_combine): launches.
#include "cuda/common/experts.cuh"

#include <algorithm>
#include <type_traits>

#include "cuda/common/launch.cuh"
#include "cuda/grouped.h"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSortThreads)
    sort(const T* const expert_of, const int count, const int experts, const int top_k,
         const SortedTokens to) {
  launch_dependents();
  wait_for_dependencies();
  sort_experts(expert_of, count, experts, top_k, to);
}

// row_of[order[row]] = row.
__global__ void __launch_bounds__(kThreads)
    invert(const int32_t* const order, const int count, int32_t* const row_of) {
  launch_dependents();
  wait_for_dependencies();
  const int row = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (row < count) row_of[min(max(order[row], 0), count - 1)] = row;
}

__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ CombinedTokens p) {
  launch_dependents();
  wait_for_dependencies();
  combine_experts(p);
}

}  // namespace

void sort_by_expert(const TopK& p, const Scope& scope) {
  const auto count = static_cast<int>(p.tokens * p.top_k), experts = static_cast<int>(p.experts);
  const auto launch = [&](const auto* expert_of) {
    using T = std::remove_cvref_t<decltype(*expert_of)>;
    launch_early(sort<T>, {static_cast<unsigned>(experts + 1), kSortThreads}, scope, expert_of,
                 count, experts, static_cast<int>(p.top_k), p.to);
  };
  if (p.is_wide) {
    launch(static_cast<const int64_t*>(p.expert_of));
  } else {
    launch(static_cast<const int32_t*>(p.expert_of));
  }
}

void combine_by_token(CombinedTokens p, const int32_t* order, const Scope& scope) {
  if (p.tokens == 0 || p.columns == 0) return;
  const auto count = static_cast<int>(p.tokens * p.top_k);
  if (count > 0) {
    auto* const row_of = scope.allocate<int32_t>(count);
    launch_early(invert, {static_cast<unsigned>(ceil_div(count, kThreads)), kThreads}, scope, order,
                 count, row_of);
    p.row_of = row_of;
  }
  const int64_t blocks = ceil_div(p.tokens * ceil_div(p.columns, int64_t{4}), kThreads);
  launch_early(combine, {static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20)), kThreads},
               scope, p);
}

}  // namespace scaled_mm::cuda
