#include "problems/widen.h"

#include "rules.h"

namespace scaled_mm {

Checked<WidenProblem> check_widen(const Tensor& words, int64_t bits, bool is_signed,
                                  ScalarType dtype) {
  must_be("words", words, ScalarType::Int);
  if (bits != 4 && bits != 8) refuse("bits", "be 4 or 8", std::to_string(bits));
  const std::optional<DType> to = dtype_of(dtype);
  if (!to || size_of(*to) != 2) refuse("dtype", "be float16 or bfloat16", name(dtype));
  Checked<WidenProblem> checked;
  const Tensor& dense =
      words.is_contiguous() ? words : checked.inputs.emplace_back(row_major_copy(words));
  std::vector<int64_t> sizes(words.sizes().begin(), words.sizes().end());
  sizes.push_back(32 / bits);
  const Tensor& d = checked.outputs.emplace_back(new_empty(words, sizes, dtype));
  checked.problem = {.words = static_cast<const uint32_t*>(dense.const_data_ptr()),
                     .count = words.numel(),
                     .bits = bits,
                     .is_signed = is_signed,
                     .dtype = *to,
                     .d = static_cast<uint16_t*>(d.mutable_data_ptr())};
  return checked;
}

}  // namespace scaled_mm
