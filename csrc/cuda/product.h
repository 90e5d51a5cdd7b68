// What a row of a tuning table is given to compute: plain pointers as TMA can read them.
#pragma once

#include <cstdint>

#include "problem.h"

namespace scaled_mm::cuda {

// Which epilogue a kernel holds. Operands that are absent read as neutral values, so that two
// instances serve the four epilogues (instances.def) and a third int8_mm.
enum class Instance : int {
#define INSTANCE(name, epilogue) name,
#include "cuda/instances.def"
#undef INSTANCE
};

// The epilogue's operands, by Operand.
struct Operands {
  Vector of[kNumOperands];
};

struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const int8_t* a = nullptr;  // A [M, K] row-major; 16-byte aligned, as are its rows
  int64_t lda = 0;
  const int8_t* b = nullptr;  // B^T [N, K] row-major, likewise
  int64_t ldb = 0;
  void* d = nullptr;  // D [M, N] row-major; a persistent kernel needs its rows 16-byte aligned
  int64_t ldd = 0;    // in elements
  ScalarType out_dtype = ScalarType::Undefined;
  Instance instance = Instance::raw;
  Operands operands;
};

}  // namespace scaled_mm::cuda
