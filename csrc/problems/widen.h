// _widen: small integers as floats. It multiplies nothing and has no public name; with it the tests
// put every value through every lane of the converters (cuda/common/convert.cuh).
#pragma once

#include "problems/tensors.h"

namespace scaled_mm {

// D [count, 32 / bits] from words [count]. Element i of a word is its bits [bits i, bits (i + 1)):
// unsigned; or signed, 8 bits in two's complement, 4 bits with 8 added. Exact in both dtypes.
struct WidenProblem {
  const uint32_t* words = nullptr;
  int64_t count = 0;
  int64_t bits = 0;  // 4 or 8
  bool is_signed = false;
  DType dtype = DType::float16;  // a 16-bit one
  uint16_t* d = nullptr;         // without gaps
};

// outputs[0] is D, of words' shape and one dimension more.
Checked<WidenProblem> check_widen(const Tensor& words, int64_t bits, bool is_signed,
                                  ScalarType dtype);

}  // namespace scaled_mm
