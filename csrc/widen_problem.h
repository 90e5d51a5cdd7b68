// The watershed of _widen, the window onto the converters of small integers (cuda/convert.cuh).
// It multiplies nothing and has no public name: it is there so that tests see every value in every
// lane, and for the weight-only formats to come, whose kernels are built on the same converters.
#pragma once

#include "problem.h"

namespace scaled_mm {

// D [count, 32 / bits] from words [count]. Element i of a word is its bits [bits i, bits (i + 1)):
// unsigned; or signed, 8 bits in two's complement, 4 bits with 8 added. Exact in both dtypes.
struct WidenProblem {
  const uint32_t* words = nullptr;
  int64_t count = 0;
  int64_t bits = 0;  // 4 or 8
  bool is_signed = false;
  ScalarType dtype = ScalarType::Undefined;  // Half or BFloat16
  uint16_t* d = nullptr;                     // without gaps
};

// outputs[0] is D, of words' shape and one dimension more.
Checked<WidenProblem> check_widen(const Tensor& words, int64_t bits, bool is_signed,
                                  ScalarType dtype);

}  // namespace scaled_mm
