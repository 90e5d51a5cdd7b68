// What mixtures of experts need on CUDA beside their products (experts.cu).
#pragma once

#include "cuda/common/device.h"

namespace scaled_mm::cuda {

void sort_by_expert(const TopK& p, const Scope& scope);
// The rows of A that those of D are of, beginning at multiples of 16 bytes: A itself, or a copy.
Matrix<const int8_t> sorted_rows(const GroupedInt8Problem& p, const Scope& scope);
void combine_by_token(const CombinedTokens& p, const Scope& scope);

}  // namespace scaled_mm::cuda
