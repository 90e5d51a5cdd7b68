#include "cuda/common/probe.h"

#include "cuda/common/device.h"

namespace scaled_mm::cuda {
namespace {

__global__ void probe() {}

}  // namespace

int common_code(int device) {
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaFuncAttributes attributes;
  const cudaError_t found = cudaFuncGetAttributes(&attributes, probe);
  cudaGetLastError();  // "no kernel image" is the answer, no error of a call
  check(cudaSetDevice(current), "cudaSetDevice");
  return found == cudaSuccess ? attributes.ptxVersion : 0;
}

}  // namespace scaled_mm::cuda
