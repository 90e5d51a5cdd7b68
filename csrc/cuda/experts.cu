// Sorting of tokens by their experts, and the sum of what these make of a token (moe_sort,
// moe_combine): launches.
#include "cuda/experts.cuh"

#include <algorithm>
#include <type_traits>

#include "cuda/common/expert_rows.cuh"
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

// Row i of `to` is row rows[i] of A [.., k], and zeros up to whole words of 16 bytes.
__global__ void __launch_bounds__(kThreads)
    gather(const Matrix<const int8_t> a, const int k, const ExpertRows groups, uint4* const to) {
  launch_dependents();
  wait_for_dependencies();
  const int words = (k + 15) / 16;
  const int64_t all = int64_t{groups.count} * words;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kThreads) {
    const int row = static_cast<int>(i / words), at = static_cast<int>(i - int64_t{row} * words);
    const int8_t* const from = a.data + groups.source(row) * a.row_stride + 16 * at;
    if (16 * at + 16 <= k) {
      to[i] = *reinterpret_cast<const uint4*>(from);
    } else {
      to[i] = {};
      for (int byte = 0; byte < k % 16; ++byte)
        reinterpret_cast<int8_t*>(to + i)[byte] = from[byte];
    }
  }
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

Matrix<const int8_t> sorted_rows(const GroupedInt8Problem& p, const Scope& scope) {
  const Matrix<const int8_t>& a = p.product.a;
  if (p.rows == nullptr || p.size.k == 0) return a;
  const int64_t words = ceil_div(p.size.k, int64_t{16});
  auto* const copy = scope.allocate<uint4>(p.size.m * words);
  const int64_t blocks = std::min<int64_t>(ceil_div(p.size.m * words, kThreads), 1 << 16);
  launch_early(gather, {static_cast<unsigned>(blocks), kThreads}, scope, a,
               static_cast<int>(p.size.k), expert_rows(p), copy);
  return {reinterpret_cast<const int8_t*>(copy), 16 * words, 1};
}

void combine_by_token(const CombinedTokens& p, const Scope& scope) {
  if (p.tokens == 0 || p.columns == 0) return;
  const int64_t blocks = ceil_div(p.tokens * ceil_div(p.columns, int64_t{8}), kThreads);
  launch_early(combine, {static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20)), kThreads},
               scope, p);
}

}  // namespace scaled_mm::cuda
