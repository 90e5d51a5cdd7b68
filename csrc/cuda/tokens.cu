// What lowbit products need of their operands before they begin: tokens in the order of the
// weight's rows, times pre_scale, and a bias for whole vectors of channels.
#include "cuda/common/alignment.h"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 4;  // of a thread: order and scales are read once for them

// to[m, k] = RN16(x[m, order[k]] * pre_scale[order[k]]). A thread has two columns. An element of
// `order` that names no column of x stands for the nearest: to refuse it would take a wait for the
// device.
template <class T>
__global__ void __launch_bounds__(kThreads)
    arrange(const Matrix<const uint16_t> x, const int64_t m, const int64_t k,
            const int32_t* const order, const EpilogueOperand pre_scale, uint16_t* const to,
            const int64_t stride, const unsigned across) {  // blocks across the columns
  using Of = Format<DTypeOf<T>::value>;
  const int64_t column = 2 * (int64_t{blockIdx.x % across} * kThreads + threadIdx.x);
  launch_dependents();
  wait_for_dependencies();
  if (column >= k) return;
  int64_t from[2];
  float scale[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t at = min(column + i, k - 1);
    from[i] = order ? min(max(int64_t{order[at]}, int64_t{0}), k - 1) : at;
    if (pre_scale.data) scale[i] = load_float(pre_scale, 0, from[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = int64_t{blockIdx.x / across} * kRows + i;
    if (row >= m) return;
    const uint16_t* const token = x.data + row * x.row_stride;
    uint32_t word = token[from[0] * x.col_stride] | token[from[1] * x.col_stride] << 16;
    if (pre_scale.data) {
      word = Of::narrow(__fmul_rn(Of::widen(word, 0), scale[0]),
                        __fmul_rn(Of::widen(word, 1), scale[1]));
    }
    *reinterpret_cast<uint32_t*>(to + row * stride + column) = word;
  }
}

}  // namespace

Matrix<const uint16_t> arrange_tokens(const LowbitProblem& p, const Scope& scope) {
  const int64_t k = p.w.k;
  if (!p.order && !p.pre_scale.data) return aligned_rows(p.x, p.m, k, scope);
  const int64_t stride = round_up(k, 8);
  auto* const to = scope.allocate<uint16_t>(p.m * stride);
  const auto across = static_cast<unsigned>(ceil_div(k, 2 * kThreads));
  const auto grid = static_cast<unsigned>(across * ceil_div(p.m, kRows));
  with_dtype16(p.w.dtype, [&](auto dtype) {
    using T = typename Half16<decltype(dtype)::value>::type;
    launch_early(arrange<T>, {grid, kThreads}, scope, p.x, p.m, k, p.order, p.pre_scale, to, stride,
                 across);
  });
  return {to, stride, 1};
}

}  // namespace scaled_mm::cuda
