// Products of several experts on CUDA.
#pragma once

#include "cuda/common/device.h"

namespace scaled_mm::cuda {

// The weights of all experts as the kernels read them, one below the other: rows e * N + n of K
// bytes, aligned to 16. `columns`: the first expert's transpose [N, K]; the next one's lies
// expert_stride further. A stack whose columns lie so already is read where it is; any other is
// copied, expert by expert.
Matrix<const int8_t> stack_columns(const Matrix<const int8_t>& columns, int64_t expert_stride,
                                   const GroupedInt8Problem::Size& size, const Scope& scope);

// p.product.b is plain: the stack's columns, as above. Nothing waits for the device.
void multiply(GroupedInt8Problem& p, const Scope& scope);

// T: int32_t or int64_t; numbers that name no expert are sorted behind all.
template <class T>
void sort_by_expert(const T* expert_of, int64_t tokens, int top_k, int experts,
                    const SortedTokens& to, const Scope& scope);

// order: as moe_sort gives it, which p.row_of is made of.
void combine_by_token(CombinedTokens p, const int32_t* order, const Scope& scope);

}  // namespace scaled_mm::cuda
