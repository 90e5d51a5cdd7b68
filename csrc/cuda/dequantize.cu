// The lowbit kernels that no arch has for itself: W = (q - z) s at the speed of memory, and D where
// K is 0.
#include "cuda/common/convert.cuh"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of W, that a thread does: their words are in flight together

// A thread has a word's eight columns of kRows rows: lanes read 128 bytes of a row of q and write
// 512 of W, side by side. Scales and zero points stay in registers to the end of their group.
// kKeep: W is read soon and should stay in L2.
template <class T, bool kKeep>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows(const LowbitWeight w, uint16_t* const out, const int64_t words) {  // of a row
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t block = index / words, word = index - block * words, first = block * kRows;
  if (first >= w.k) return;
  launch_dependents();
  wait_for_dependencies();
  uint32_t q[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    q[i] = first + i < w.k ? __ldg(w.q.data + (first + i) * w.q.row_stride + word) : 0;
  }
  int64_t group = first / w.group, left = 0;  // left: rows until the next group begins
  Pair base[4], scale[4];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first + i;
    if (row >= w.k) return;
    if (i == 0 || left == 0) {
      Nibbles<T>::lift(__ldg(w.zeros.data + group * w.zeros.row_stride + word), base);
#pragma unroll
      for (int j = 0; j < 4; ++j) base[j] = Nibbles<T>::base(base[j], j);
      const uint4 s = __ldg(
          reinterpret_cast<const uint4*>(w.scales.data + group * w.scales.row_stride + 8 * word));
      scale[0] = s.x, scale[1] = s.y, scale[2] = s.z, scale[3] = s.w;
      left = (group + 1) * w.group - row;
      ++group;
    }
    --left;
    Pair pair[4];
    Nibbles<T>::lift(q[i], pair);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      pair[j] = Pairs<T>::multiply(Nibbles<T>::subtract_base(pair[j], base[j], j), scale[j]);
    }
    auto* to = reinterpret_cast<uint4*>(out + row * w.n + 8 * word);
    const uint4 v = {pair[0], pair[1], pair[2], pair[3]};
    if constexpr (kKeep) {
      *to = v;
    } else {
      __stcs(to, v);
    }
  }
}

template <class T>
auto kernel_for(bool keep) {
  return keep ? dequantize_rows<T, true> : dequantize_rows<T, false>;
}

__global__ void __launch_bounds__(kThreads) fill(const LowbitProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.m * p.w.n) return;
  const float x = p.bias.data ? load_float(p.bias, 0, i % p.w.n) : 0.0f;
  p.d[i] = with_dtype16(p.w.dtype, [&](auto dtype) {
    return static_cast<uint16_t>(Format<decltype(dtype)::value>::narrow(x, 0.0f));
  });
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

}  // namespace

void fill_with_bias(const LowbitProblem& p, const Scope& scope) {
  fill<<<blocks_for(p.m * p.w.n), kThreads, 0, scope.stream>>>(p);
  check(cudaGetLastError(), "fill_with_bias");
}

void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope) {
  const int64_t words = w.n / 8, threads = words * ceil_div(w.k, kRows);
  if (threads == 0) return;
  const auto kernel = with_dtype16(w.dtype, [&](auto dtype) {
    using Of = typename Half16<decltype(dtype)::value>::type;
    return kernel_for<Of>(keep);
  });
  launch_early(kernel, {blocks_for(threads), kThreads}, scope, w, out, words);
}

}  // namespace scaled_mm::cuda
