// The lowbit kernels that no arch has for itself: W = (q - z) s at the speed of memory, and D where
// K is 0.
#include "cuda/common/convert.cuh"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/units.cuh"
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

// The same of units: a warp has 16 channels of half a unit's rows. Its stores are whole sectors.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_units(const LowbitWeight w, uint16_t* const out, const int panels, const int sets,
                     const int64_t warps) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(index % 4), half = static_cast<int>(index / 4 % 2);
  const int64_t unit_index = index / 8;
  launch_dependents();
  wait_for_dependencies();
  if (index >= warps) return;
  const uint8_t* unit = w.units + unit_index * unit_bytes(sets);
  const uint4 words = __ldg(unit_words(unit, half, warp, lane));
  const uint32_t of_step[4] = {words.x, words.y, words.z, words.w};
  const int64_t column = unit_index % panels * kUnitChannels + 16 * warp + lane / 4 * 2;
  const int64_t first = unit_index / panels * kUnitRows + half * (kUnitRows / 2) + lane % 4 * 2;
  if (column >= w.n) return;
  UnitGroup<T> group;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step % (8 / sets) == 0) {
      group.read(unit, (4 * half + step) * sets / 8, warp, lane);
      group.lift();
    }
    Pair pairs[4];
    group.weights(pairs, of_step[step]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows 8 (i / 2) + i % 2 of the lane's
      const int64_t row = first + 16 * step + i / 2 * 8 + i % 2;
      if (row >= w.k) continue;
      const uint32_t halves = i % 2 ? 0x7632 : 0x5410;
      *reinterpret_cast<uint32_t*>(out + row * w.n + column) =
          __byte_perm(pairs[i / 2 * 2], pairs[i / 2 * 2 + 1], halves);
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

void unpack(const LowbitWeight& w, uint16_t* out, const Scope& scope) {
  const auto panels = static_cast<int>(ceil_div(w.n, kUnitChannels));
  const int64_t warps = ceil_div(w.k, kUnitRows) * panels * 8;
  const auto kernel = with_dtype16(w.dtype, [&](auto dtype) {
    return dequantize_units<typename Half16<decltype(dtype)::value>::type>;
  });
  launch_early(kernel, {blocks_for(32 * warps), kThreads}, scope, w, out, panels,
               unit_sets(w.group), warps);
}

}  // namespace

void fill_with_bias(const LowbitProblem& p, const Scope& scope) {
  fill<<<blocks_for(p.m * p.w.n), kThreads, 0, scope.stream>>>(p);
  check(cudaGetLastError(), "fill_with_bias");
}

void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope) {
  if (w.packing == Packing::units) return unpack(w, out, scope);
  const int64_t words = w.n / 8, threads = words * ceil_div(w.k, kRows);
  if (threads == 0) return;
  const auto kernel = with_dtype16(w.dtype, [&](auto dtype) {
    using Of = typename Half16<decltype(dtype)::value>::type;
    return kernel_for<Of>(keep);
  });
  launch_early(kernel, {blocks_for(threads), kThreads}, scope, w, out, words);
}

}  // namespace scaled_mm::cuda
