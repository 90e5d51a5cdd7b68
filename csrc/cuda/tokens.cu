// What products with weights of few bits need of their tokens before they begin: the order of the
// weight's rows, pre_scale, and of int8 the columns as units have them.
#include "cuda/common/alignment.h"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/k_scales.h"
#include "cuda/k_scales/units_int8.cuh"
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

struct UnitTokens {
  Matrix<const int8_t> x;
  int m;
  int k;
  const int32_t* order;  // or null
  int8_t* to;
  int64_t stride;  // of a row of `to`, in bytes
};

// A thread has 16 columns of a token.
__global__ void __launch_bounds__(kThreads)
    arrange_for_units(const __grid_constant__ UnitTokens p) {
  const int64_t pieces = p.stride / 16, i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  launch_dependents();
  if (i >= p.m * pieces) return;
  wait_for_dependencies();
  const int64_t token = i / pieces;
  const int column = static_cast<int>(i % pieces) * 16;
  const int8_t* const from = p.x.data + token * p.x.row_stride;
  uint4 made;
  const int8_t* const here = from + column;
  if (p.order == nullptr && p.x.col_stride == 1 && column + 16 <= p.k &&
      reinterpret_cast<uintptr_t>(here) % 16 == 0) {
    made = arrange_columns(*reinterpret_cast<const uint4*>(here));
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int place = 0; place < 16; ++place) {
      const int at = column + arranged_column(place);
      if (at >= p.k) continue;
      // An order that names no column stands for the nearest: to refuse it takes a wait.
      const int64_t source = p.order ? min(max(p.order[at], 0), p.k - 1) : at;
      const auto byte = static_cast<uint8_t>(from[source * p.x.col_stride]);
      words[place / 4] |= uint32_t{byte} << place % 4 * 8;
    }
    made = {words[0], words[1], words[2], words[3]};
  }
  *reinterpret_cast<uint4*>(p.to + token * p.stride + column) = made;
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

Matrix<const int8_t> arrange_columns(const KScalesProblem& p, const Scope& scope) {
  const auto& [m, n, k, epilogue, out_dtype, function] = p.product.size;
  const int64_t stride = round_up(k, kUnitRows);
  auto* const to = scope.allocate<int8_t>(m * stride);
  const UnitTokens params = {p.product.a, static_cast<int>(m), static_cast<int>(k), p.order, to,
                             stride};
  launch_early(arrange_for_units,
               {static_cast<unsigned>(ceil_div(m * stride / 16, int64_t{kThreads})), kThreads},
               scope, params);
  return {to, stride, 1};
}

}  // namespace scaled_mm::cuda
