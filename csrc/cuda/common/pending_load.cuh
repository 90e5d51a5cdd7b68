// Loads of a vector operand's elements of which many are under way at a time.
#pragma once

#include <type_traits>

#include "cuda/common/formats.cuh"

namespace scaled_mm::cuda {

// Load of one element of an operand, under way: start() issues it, word() waits for it. Without a
// branch in start(), so that all loads of a thread are issued before the first is waited for.
template <class L>
struct PendingLoad {
  static constexpr bool may_be_narrow = std::is_same_v<typename L::value, float> &&
                                        L::id != Operand::scale_a && L::id != Operand::scale_b;
  static constexpr bool may_be_absent = L::id != Operand::scale_a && L::id != Operand::scale_b;
  uint32_t wide = 0;
  uint16_t narrow = 0;

  __device__ void start(const EpilogueOperand& operand, int64_t at, bool inside) {
    if constexpr (may_be_absent) inside = inside && operand.data != nullptr;
    const int64_t element =
        at * (L::axis == epilogue::Axis::Row ? operand.col_stride : operand.row_stride);
    if constexpr (may_be_narrow) {
      const bool is_wide = operand.dtype == DType::float32;
      if (inside && is_wide) wide = static_cast<const uint32_t*>(operand.data)[element];
      if (inside && !is_wide) narrow = static_cast<const uint16_t*>(operand.data)[element];
    } else {
      if (inside) wide = static_cast<const uint32_t*>(operand.data)[element];
    }
  }
  // The element's word, widened; an absent operand's neutral value.
  __device__ uint32_t word(const EpilogueOperand& operand) const {
    if constexpr (may_be_absent) {
      using T = typename L::value;
      const T neutral = T(epilogue::Neutral<L::id>::value);
      if (operand.data == nullptr) return *reinterpret_cast<const uint32_t*>(&neutral);
    }
    if constexpr (may_be_narrow) {
      const float half = Format<DType::float16>::widen(narrow, 0);
      const float brain = Format<DType::bfloat16>::widen(narrow, 0);
      if (operand.dtype != DType::float32) {
        return __float_as_uint(operand.dtype == DType::float16 ? half : brain);
      }
    }
    return wide;
  }
};

}  // namespace scaled_mm::cuda
