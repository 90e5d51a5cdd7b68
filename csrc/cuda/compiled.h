// Epilogues that were compiled for one kernel (scaled_mm/compiled): each is a shared library with
// one function, a CompiledLaunch. Between it and this library go plain numbers and pointers alone,
// and no host code depends on how torch or the C++ library were built.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "dispatch/plan.h"
#include "epilogue/expr.h"

namespace scaled_mm {
struct ProgramProblem;
}

namespace scaled_mm::cuda {

class Scope;

struct CompiledCall {
  int64_t m;
  int64_t n;
  int64_t k;
  const int8_t* a;  // rows, and columns of B: each begins at a multiple of 16 bytes
  int64_t lda;
  const int8_t* b;
  int64_t ldb;
  const EpilogueOperand* operands;
  void* const* outputs;
  int64_t ldd;  // elements between rows of an output
  int64_t out_columns;
  int32_t out_dtype;  // a DType: of a single output of 16 bits
  LinePlan plan;
  // The device, which is current.
  int32_t device;
  int32_t sms;
  int32_t shared_memory;
  int32_t launches_early;
  cudaStream_t stream;
  void* encode_tensor_map;  // cuTensorMapEncodeTiled
  char* error;              // for a text, of at most error_size bytes
  int64_t error_size;
};

// Launches the kernel; 0, or the text is filled.
using CompiledLaunch = int32_t (*)(const CompiledCall&);

// Runs a problem that is not empty by the kernel of its size, if there is a library for that and
// the program; compiles one where that is wanted. False: nothing was run.
bool run_compiled(const ProgramProblem& problem, const std::vector<int64_t>& program,
                  const Scope& scope);

}  // namespace scaled_mm::cuda
