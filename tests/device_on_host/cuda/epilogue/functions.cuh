// The real header, but for what is written in PTX.
#pragma once

#define FunctionOps FunctionOpsByAssembly
#include_next "cuda/epilogue/functions.cuh"
#undef FunctionOps

namespace scaled_mm::cuda {

struct FunctionOps : FunctionOpsByAssembly {
  static float reciprocal(float x) { return 1.0f / x; }
};

}  // namespace scaled_mm::cuda
