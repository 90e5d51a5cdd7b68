// The real header, but for what is written in PTX.
#pragma once

#define FunctionOps FunctionOpsByAssembly
#include_next "cuda/epilogue/functions.cuh"
#undef FunctionOps

namespace scaled_mm::cuda {

struct FunctionOps : FunctionOpsByAssembly {
  static float reciprocal(float x) { return 1.0f / x; }
  static float with_sign(float x, float of) { return std::copysign(x, of); }
  static float choose(bool first, float x, float y) { return first ? x : y; }
};

}  // namespace scaled_mm::cuda
