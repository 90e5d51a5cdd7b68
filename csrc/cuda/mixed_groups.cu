// What grouped products by weights of few bits need beside an arch's kernels: rows in the order of
// their experts' weights, and a product by weights that lie in words.
#include "cuda/common/expert_rows.cuh"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/lowbit.h"
#include "cuda/lowbit/columns.cuh"
#include "cuda/lowbit/end.cuh"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 8;  // of a tile of multiply_words

// to[i, c] = x[source(i), order[e, c]], e being the expert of row i; or without an order its column
// c. A block has a row.
__global__ void __launch_bounds__(kThreads)
    arrange(const Matrix<const uint16_t> x, const ExpertRows groups, const int64_t k,
            const int32_t* const order, uint16_t* const to, const int64_t stride) {
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  launch_dependents();
  wait_for_dependencies();
  int before = 0;  // experts whose rows end before
  for (int first = 0; first < groups.experts; first += kThreads) {
    const int expert = first + thread;
    before += __syncthreads_count(expert < groups.experts && groups.end(expert) <= row);
  }
  const int expert = min(before, groups.experts - 1);
  const uint16_t* const token = x.data + groups.source(row) * x.row_stride;
  const int32_t* const columns = order ? order + expert * k : nullptr;
  for (int64_t c = thread; c < k; c += kThreads) {
    const int64_t from = columns ? min(max(int64_t{columns[c]}, int64_t{0}), k - 1) : c;
    to[row * stride + c] = token[from * x.col_stride];
  }
}

struct WordsParams {
  Matrix<const uint16_t> x;
  LowbitWeight w;  // the first expert's
  int64_t expert_bytes;
  int eights;  // columns of a row by eight
  int across;  // blocks along N
  ExpertRows groups;
  LowbitEnd end;
};

template <class T>
__device__ void move(Matrix<const T>& part, int64_t bytes) {
  part.data = reinterpret_cast<const T*>(reinterpret_cast<const char*>(part.data) + bytes);
}

// A thread has eight columns of a tile's rows: float32 fused multiply-adds in the order of K.
template <class T, int kBits, ZeroPoint kZero>
__global__ void __launch_bounds__(kThreads) words_gemm(const __grid_constant__ WordsParams p) {
  using Of = Format<DTypeOf<T>::value>;
  using Words = typename Columns<T, kBits>::Words;
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int eight = block % p.across * kThreads + thread;
  launch_dependents();
  wait_for_dependencies();
  const ExpertTile tile = find_tile<kRows>(p.groups, block / p.across, thread % 32);
  if (tile.expert < 0 || eight >= p.eights) return;
  const int rows = min(kRows, tile.end - tile.row);
  const bool is_theirs = tile.expert < p.groups.experts;
  LowbitWeight w = p.w;
  const int64_t bytes = is_theirs ? tile.expert * p.expert_bytes : 0;
  move(w.q, bytes), move(w.zeros, bytes), move(w.scales, bytes), move(w.real_zeros, bytes);
  const uint16_t* token[kRows];
  float sums[kRows][8] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    token[r] = p.x.data + p.groups.source(tile.row + min(r, rows - 1)) * p.x.row_stride;
  }
  ColumnGroup<T, kBits, kZero> terms;
  const int64_t k_end = is_theirs ? w.k : 0;
  int64_t left = 0, group = 0;  // left: rows until the next group begins
  for (int64_t k = 0; k < k_end; ++k, --left) {
    if (left == 0) terms.read(w, group++, eight), left = w.group;
    Pair pair[4];
    terms.weights(__ldca(reinterpret_cast<const Words*>(w.q.data + k * w.q.row_stride) + eight),
                  pair);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float x = Of::widen(token[r][k], 0);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        sums[r][c] = __fmaf_rn(x, Of::widen(pair[c / 2], c % 2), sums[r][c]);
      }
    }
  }
  if (!is_theirs) {
    const float none[8] = {};
    for (int r = 0; r < rows; ++r) {
      uint16_t* const d = p.end.d + (tile.row + r) * p.end.ldd;
      if (p.end.gated) {
        const float half[4] = {};
        store_narrow<DTypeOf<T>::value>(d + 4 * eight, half);
      } else {
        store_narrow<DTypeOf<T>::value>(d + 8 * eight, none);
      }
    }
    return;
  }
  float bias[8];
  load_bias(p.end, 8 * eight, bias, tile.expert);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) return;
#pragma unroll
    for (int c = 0; c < 8; ++c) sums[r][c] = __fadd_rn(sums[r][c], bias[c]);
    store_ended<DTypeOf<T>::value>(p.end, tile.row + r, 8 * eight, sums[r]);
  }
}

template <class T, int kBits>
void launch_words(const GroupedLowbitProblem& p, const Scope& scope) {
  const LowbitProblem& product = p.product;
  WordsParams params;
  params.x = product.x;
  params.w = product.w;
  params.expert_bytes = p.expert_bytes;
  params.eights = static_cast<int>(product.w.padded_n() / 8);
  params.across = ceil_div(params.eights, kThreads);
  params.groups = expert_rows(p);
  params.end = end_of(product);
  const int64_t blocks = p.size().most_tiles(kRows) * params.across;
  with_zero_point(product.w.zero_point, [&](auto zero) {
    launch_early(words_gemm<T, kBits, zero()>, {static_cast<unsigned>(blocks), kThreads}, scope,
                 params);
  });
}

}  // namespace

Matrix<const uint16_t> arrange_rows(const GroupedLowbitProblem& p, const Scope& scope) {
  const LowbitProblem& product = p.product;
  const int64_t k = product.w.k, stride = std::max<int64_t>(8, round_up(k, 8));
  auto* const to = scope.allocate<uint16_t>(product.m * stride);
  launch_early(arrange, {static_cast<unsigned>(product.m), kThreads}, scope, product.x,
               expert_rows(p), k, product.order, to, stride);
  return {to, stride, 1};
}

void multiply_words(const GroupedLowbitProblem& p, const Scope& scope) {
  with_dtype16(p.product.w.dtype, [&](auto dtype) {
    using T = typename Half16<decltype(dtype)::value>::type;
    p.product.w.bits == 4 ? launch_words<T, 4>(p, scope) : launch_words<T, 8>(p, scope);
  });
}

}  // namespace scaled_mm::cuda
