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

void sort_by_expert(const TopK& p, const Scope& scope);
void combine_by_token(CombinedTokens p, const Scope& scope);

}  // namespace scaled_mm::cuda
