// What mixtures of experts need on CUDA beside their products (experts.cu).
#pragma once

#include "cuda/common/device.h"
#include "refuse.h"

namespace scaled_mm::cuda {

// Kernels over experts have run on compute capability 9.0 alone.
inline void must_have_run(const char* argument, const Device& device) {
  if (device.capability == 90) return;
  refuse(
      argument,
      "be on the CPU or on a GPU of compute capability 9.0 (kernels over experts have not run on "
      "others)",
      cat(device.capability / 10, ".", device.capability % 10));
}

void sort_by_expert(const TopK& p, const Scope& scope);
// The rows of A that those of D are of, beginning at multiples of 16 bytes: A itself, or a copy.
Matrix<const int8_t> sorted_rows(const GroupedInt8Problem& p, const Scope& scope);
// order: as moe_sort gives it, which p.row_of is made of.
void combine_by_token(CombinedTokens p, const int32_t* order, const Scope& scope);

}  // namespace scaled_mm::cuda
