// The lowbit kernels that no arch has for itself: W at the speed of memory, and D where K is 0.
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "cuda/lowbit/columns.cuh"
#include "cuda/lowbit/end.cuh"
#include "cuda/lowbit/units.cuh"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of W, that a thread does: their words are in flight together

// A thread has eight columns of kRows rows: lanes read 128 bytes of a row of q or twice as many,
// and write 512 of W, side by side. Scales and zero points stay in registers to the end of their
// group. kKeep: W is read soon and should stay in L2. `eights`: of a row.
template <class T, int kBits, ZeroPoint kZero, bool kKeep>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows(const LowbitWeight w, uint16_t* const out, const int64_t eights) {
  using Words = typename Columns<T, kBits>::Words;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t block = index / eights, eight = index - block * eights, first = block * kRows;
  if (first >= w.k) return;
  launch_dependents();
  wait_for_dependencies();
  Words q[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = min(first + i, w.k - 1);
    q[i] = __ldca(reinterpret_cast<const Words*>(w.q.data + row * w.q.row_stride) + eight);
  }
  ColumnGroup<T, kBits, kZero> terms;
  int64_t group = first / w.group, left = 0;  // left: rows until the next group begins
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first + i;
    if (row >= w.k) return;
    if (i == 0 || left == 0) {
      terms.read(w, group, eight);
      left = (group + 1) * w.group - row;
      ++group;
    }
    --left;
    Pair pair[4];
    terms.weights(q[i], pair);
    auto* to = reinterpret_cast<uint4*>(out + row * 8 * eights) + eight;
    const uint4 v = {pair[0], pair[1], pair[2], pair[3]};
    if constexpr (kKeep) {
      *to = v;
    } else {
      __stcs(to, v);
    }
  }
}

// The same of units: a warp has 16 channels of a part of a unit. Its stores are whole sectors.
template <class T, class Format>
__global__ void __launch_bounds__(kThreads)
    dequantize_units(const LowbitWeight w, uint16_t* const out, const int panels, const int sets,
                     const int64_t warps) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kParts = Format::kParts, kPartSteps = Format::kPartSteps;
  const int warp = static_cast<int>(index % 4), part = static_cast<int>(index / 4 % kParts);
  const int64_t unit_index = index / (4 * kParts);
  launch_dependents();
  wait_for_dependencies();
  if (index >= warps) return;
  const uint8_t* unit = w.units + unit_index * (Format::kWordBytes + sets * Format::kSetBytes);
  const uint4 words = __ldca(unit_words(unit, part, warp, lane));
  const uint32_t of_part[4] = {words.x, words.y, words.z, words.w};
  const int64_t column = unit_index % panels * kUnitChannels + 16 * warp + lane / 4 * 2;
  const int64_t first = unit_index / panels * kUnitRows + part * (kPartSteps * 16) + lane % 4 * 2;
  const int64_t columns = (w.n + 7) / 8 * 8;
  if (column >= columns) return;
  UnitGroup<T, Format> group;
#pragma unroll
  for (int step = 0; step < kPartSteps; ++step) {
    if (step == 0 || step % (8 / sets) == 0) {
      group.read(unit, (kPartSteps * part + step) * sets / 8, warp, lane);
      group.lift();
    }
    Pair pairs[4];
    group.weights(pairs, of_part + step * Format::kStepWords);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows 8 (i / 2) + i % 2 of the lane's
      const int64_t row = first + 16 * step + i / 2 * 8 + i % 2;
      if (row >= w.k) continue;
      const uint32_t halves = i % 2 ? 0x7632 : 0x5410;
      *reinterpret_cast<uint32_t*>(out + row * columns + column) =
          __byte_perm(pairs[i / 2 * 2], pairs[i / 2 * 2 + 1], halves);
    }
  }
}

template <DType dtype>
__global__ void __launch_bounds__(kThreads) fill_pairs(const LowbitEnd end, const int64_t tokens) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, pairs = (end.channels + 1) / 2;
  if (i >= tokens * pairs) return;
  const int64_t token = i / pairs;
  const int channel = static_cast<int>(i % pairs * 2);
  float x[2];
  load_bias(end, channel, x);
#pragma unroll
  for (float& e : x) e += 0.0f;
  store_ended<dtype>(end, token, channel, x);
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

template <class T, int kBits>
void from_rows(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope) {
  const int64_t eights = ceil_div(w.n, int64_t{8}), threads = eights * ceil_div(w.k, kRows);
  if (threads == 0) return;
  with_zero_point(w.zero_point, [&](auto zero) {
    launch_early(
        keep ? dequantize_rows<T, kBits, zero(), true> : dequantize_rows<T, kBits, zero(), false>,
        {blocks_for(threads), kThreads}, scope, w, out, eights);
  });
}

template <class T>
void from_units(const LowbitWeight& w, uint16_t* out, const Scope& scope) {
  const auto panels = static_cast<int>(ceil_div(w.n, kUnitChannels));
  with_unit_format(w.bits, w.zero_point, [&](auto format) {
    using Format = decltype(format);
    const int64_t warps = ceil_div(w.k, kUnitRows) * panels * 4 * Format::kParts;
    launch_early(dequantize_units<T, Format>, {blocks_for(32 * warps), kThreads}, scope, w, out,
                 panels, unit_sets(w.k, w.group), warps);
  });
}

}  // namespace

void fill(const LowbitProblem& p, const Scope& scope) {
  with_dtype16(p.w.dtype, [&](auto dtype) {
    fill_pairs<decltype(dtype)::value>
        <<<blocks_for(p.m * ceil_div(p.columns, int64_t{2})), kThreads, 0, scope.stream>>>(
            end_of(p), p.m);
  });
  check(cudaGetLastError(), "fill");
}

void dequantize(const LowbitWeight& w, uint16_t* out, bool keep, const Scope& scope) {
  with_dtype16(w.dtype, [&](auto dtype) {
    using T = typename Half16<decltype(dtype)::value>::type;
    if (w.packing == Packing::units) return from_units<T>(w, out, scope);
    w.bits == 4 ? from_rows<T, 4>(w, out, keep, scope) : from_rows<T, 8>(w, out, keep, scope);
  });
}

}  // namespace scaled_mm::cuda
