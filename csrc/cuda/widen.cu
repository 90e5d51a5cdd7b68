// _widen on the GPU: the converters of convert.cuh, and nothing around them.
#include <torch/csrc/stable/library.h>

#include "cuda/common/convert.cuh"
#include "cuda/common/device.h"
#include "cuda/common/formats.cuh"
#include "integers.h"
#include "ops/namespace.h"
#include "problems/widen.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;

// The elements of a word in order.
template <class T, int kBits, bool kSigned>
__device__ auto widen(uint32_t word) {
  if constexpr (kBits == 8) {
    Pair pair[2];
    widen8<T, kSigned>(word, pair);
    return uint2{pair[0], pair[1]};
  } else {
    Pair pair[4];  // of elements i and i + 4: all low halves, then all high ones
    widen4<T, kSigned>(word, pair);
    return uint4{__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[2], pair[3], 0x5410),
                 __byte_perm(pair[0], pair[1], 0x7632), __byte_perm(pair[2], pair[3], 0x7632)};
  }
}

template <class T, int kBits, bool kSigned>
__global__ void __launch_bounds__(kThreads) widen_words(const WidenProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const auto elements = widen<T, kBits, kSigned>(p.words[i]);
  reinterpret_cast<decltype(widen<T, kBits, kSigned>(0))*>(p.d)[i] = elements;
}

template <class T, int kBits>
auto kernel(bool is_signed) {
  return is_signed ? widen_words<T, kBits, true> : widen_words<T, kBits, false>;
}

template <class T>
auto kernel(int64_t bits, bool is_signed) {
  return bits == 8 ? kernel<T, 8>(is_signed) : kernel<T, 4>(is_signed);
}

Tensor widen_tensor(const Tensor& words, int64_t bits, bool is_signed, ScalarType dtype) {
  const Checked<WidenProblem> checked = check_widen(words, bits, is_signed, dtype);
  const WidenProblem& p = checked.problem;
  const Tensor& d = checked.outputs[0];
  if (p.count == 0) return d;
  const Scope scope(d);
  const auto run = with_dtype16(p.dtype, [&](auto to) {
    using Of = typename Half16<decltype(to)::value>::type;
    return kernel<Of>(bits, is_signed);
  });
  const auto blocks = static_cast<unsigned>(ceil_div(p.count, kThreads));
  run<<<blocks, kThreads, 0, scope.stream>>>(p);
  check(cudaGetLastError(), "widen");
  return d;
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("_widen", TORCH_BOX(&scaled_mm::cuda::widen_tensor));
}
