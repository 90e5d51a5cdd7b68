// quantize_int8 on the GPU: how x is read and q written; the arithmetic is in quantizer.cuh.
//
// Rotated rows: quantize_rotated (rotate.cuh), or quantize_ring (rotate_ring.cuh) where they are
// many; or rotate_rows first, and then as any other x. Smoothed rows: the producer of x itself
// (produce.cu), or rotate_rows.
//
// Scales of rows: quantize_rows, in which a team of threads holds a row in registers, so that x is
// read once. Few rows are the producer's, which registers hold, many are quantize_ring's.
// Scales given: quantize_tiles. One scale of all: range_of_tiles, each block its part; then
// quantize_tiles, each block of which joins those parts first.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>

#include "cuda/common/device.h"
#include "cuda/common/launch.cuh"
#include "cuda/int8.h"
#include "cuda/quantize/quantize_row.cuh"
#include "cuda/quantize/rotate.cuh"
#include "cuda/quantize/rotate_ring.cuh"
#include "integers.h"
#include "ops/namespace.h"
#include "ops/linear.h"

namespace scaled_mm::cuda {

// produce.cu
void produce(const ProduceProblem& p, const Scope& scope);
bool holds_few(const ProduceProblem& p, const Device& device);
namespace {

// Blocks are teams (threadIdx.y) of threads (threadIdx.x), whole warps. A team has a row, or a tile
// of one, and each of its threads some chunks of that in registers.
constexpr int kRowChunks = 8;      // that a thread holds of a row
constexpr int kTileChunks = 4;     // that a thread holds of a tile
constexpr int kTileThreads = 256;  // of a block with tiles, at most
constexpr int kTileBlocks = 4;     // of such blocks an SM holds

// Scales of rows: a team for each row, one team in a block unless it is a warp. What a row has
// beyond the chunks that its team holds is read twice.
template <class Format, int kElements>
__global__ void __launch_bounds__(kMaxTeam) quantize_rows(const QuantizeProblem p) {
  wait_for_dependencies();
  launch_dependents();
  const int64_t index = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (index >= p.rows) return;
  const RowPart<Format, kElements> row(p, index, 0, p.cols + 1);
  const int team = blockDim.x, thread = threadIdx.x, rest = thread + kRowChunks * team;

  Chunk<Format, kElements> held[kRowChunks], more[2];
  row.load(thread, team, held);
  Range range;
  row.extend_by_odd(range, thread);
  row.extend(range, thread, team, held);
#pragma unroll 1
  for (int chunk = rest; chunk < row.chunks(); chunk += 2 * team) {
    row.load(chunk, team, more);
    row.extend(range, chunk, team, more);
  }
  range = team == 32 ? range_of_warp(range) : range_of_block(range);

  Quantizer by;
  if (thread < 32) by = quantizer_of(range, p.symmetric);
  if (thread == 0) {
    p.scale[index * p.scale_stride] = by.scale;
    if (p.azp) p.azp[index * p.azp_stride] = by.azp;
  }
  if (team > 32) by = share(by);
  if (!by.is_quick) return row.store_exact(thread, team, by);

  const auto quick = [&](float x) { return by.quick(x); };
  row.store(thread, team, held, quick);
  row.store_odd(thread, quick);
#pragma unroll 1
  for (int chunk = rest; chunk < row.chunks(); chunk += 2 * team) {
    row.load(chunk, team, more);
    row.store(chunk, team, more, quick);
  }
}

// Rows cut into tiles of `span` chunks, numbered row by row.
struct Tiles {
  int64_t per_row = 0;
  int64_t count = 0;
  int span = 0;  // at most kTileChunks for each thread of a team

  __device__ int64_t row(int64_t tile) const { return tile / per_row; }
  template <class Format, int kElements>
  __device__ RowPart<Format, kElements> part(const QuantizeProblem& p, int64_t tile) const {
    const int64_t row = tile / per_row;
    return {p, row, (tile - row * per_row) * span, span};
  }
};

// ranges[block] = the range of all tiles of the block's teams.
template <class Format, int kElements>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    range_of_tiles(const QuantizeProblem p,  //
                   const Tiles tiles,        //
                   Range* ranges) {          // [gridDim.x]
  wait_for_dependencies();
  launch_dependents();
  const int64_t teams = int64_t{gridDim.x} * blockDim.y;
  int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  Range range;
  for (; number < tiles.count; number += teams) {
    const auto part = tiles.part<Format, kElements>(p, number);
    Chunk<Format, kElements> held[kTileChunks];
    part.load(threadIdx.x, blockDim.x, held);
    part.extend_by_odd(range, threadIdx.x);
    part.extend(range, threadIdx.x, blockDim.x, held);
  }
  range = range_of_block(range);
  if (threadIdx.x == 0 && threadIdx.y == 0) ranges[blockIdx.x] = range;
}

// The quantiser of all blocks' ranges, which the first block also writes down.
__device__ Quantizer quantizer_of_all(const QuantizeProblem& p, const Range* ranges, int count) {
  Range whole;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread; i < count; i += blockDim.x * blockDim.y) whole.extend(ranges[i]);
  whole = range_of_block(whole);
  Quantizer by;
  if (thread < 32) by = quantizer_of(whole, p.symmetric);
  if (blockIdx.x == 0 && thread == 0) {
    *p.scale = by.scale;
    if (p.azp) *p.azp = by.azp;
  }
  return share(by);
}

template <class Format, int kElements>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    quantize_tiles(const QuantizeProblem p,  //
                   const Tiles tiles,        //
                   const Range* ranges,      // what range_of_tiles found; absent: scales are given
                   const int num_ranges) {
  wait_for_dependencies();
  launch_dependents();
  Quantizer by;
  if (ranges) by = quantizer_of_all(p, ranges, num_ranges);
  const int64_t teams = int64_t{gridDim.x} * blockDim.y;
  int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  for (; number < tiles.count; number += teams) {
    // From the end: that is what range_of_tiles read last, and may still be in L2.
    const int64_t tile = tiles.count - 1 - number;
    const auto part = tiles.part<Format, kElements>(p, tile);
    Chunk<Format, kElements> held[kTileChunks];
    part.load(threadIdx.x, blockDim.x, held);
    if (!ranges) {
      const int64_t row = tiles.row(tile);
      const int32_t azp = p.azp ? p.azp[row * p.azp_stride] : 0;
      by = quantizer_given(p.scale[row * p.scale_stride], azp, p.symmetric);
    }
    if (by.is_quick) {
      const auto quick = [&](float x) { return by.quick_limited(x); };
      part.store(threadIdx.x, blockDim.x, held, quick);
      part.store_odd(threadIdx.x, quick);
    } else {
      part.store_exact(threadIdx.x, blockDim.x, by);
    }
  }
}

// --- launches ----------------------------------------------------------------------------------

constexpr int64_t kLongRow = 1 << 17;  // elements, from which on few rows are shared out
constexpr int64_t kLongestRow = int64_t{1} << 30;  // elements, that a team takes (RowPart)
constexpr int64_t kFewRows = 4;
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

// Strides that lead nowhere as those of a matrix without gaps, and rows that need no telling apart
// as one.
void simplify(QuantizeProblem& p) {
  if (p.cols == 1) p.x.col_stride = 1;
  if (p.rows == 1) p.x.row_stride = p.cols;
  const bool one_scale = p.given ? p.scale_stride == 0 && p.azp_stride == 0 : !p.per_token;
  if (one_scale && p.x.col_stride == 1 && p.x.row_stride == p.cols) {
    p.cols *= p.rows;
    p.rows = 1;
    p.x.row_stride = p.cols;
  }
}

// Whether x can be read 16 bytes at a time and q written in as many elements (RowPart).
bool is_aligned(const QuantizeProblem& p) {
  const int64_t elements = 16 / size_of(p.x_dtype);
  return p.x.col_stride == 1 && (p.x.row_stride - p.cols) % elements == 0 &&
         reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
}

// How many chunks a row touches at most.
int64_t count_chunks(int64_t cols, int elements) {
  const int64_t shift = cols % elements ? elements - 1 : 0;
  return ceil_div(cols + shift, elements);
}

// Threads for a row (or tile) of `chunks`, about `each` of them to a thread: whole warps.
int team_size(int64_t chunks, int each, int most) {
  return static_cast<int>(std::clamp<int64_t>(32 * ceil_div(chunks, 32 * each), 32, most));
}

// Few rows get all the threads that they can use, many rows fewer with more loads each.
template <class Format, int kElements>
void launch_rows(const QuantizeProblem& p, const Scope& scope) {
  const int each = p.rows > 2 * scope.device.sms ? kRowChunks : 1;
  const int team = team_size(count_chunks(p.cols, kElements), each, kMaxTeam);
  LaunchShape shape;
  shape.block = dim3(team, team == 32 ? 4 : 1);
  shape.grid = dim3(static_cast<unsigned>(ceil_div(p.rows, shape.block.y)));
  launch_early(quantize_rows<Format, kElements>, shape, scope, p);
}

template <class Format, int kElements>
void launch_tiles(const QuantizeProblem& p, const Scope& scope) {
  const int64_t chunks = count_chunks(p.cols, kElements), sms = scope.device.sms;
  const int each = p.rows * chunks > sms * kTileThreads * kTileChunks ? kTileChunks : 1;
  const int team = team_size(chunks, each, kTileThreads);
  const dim3 block(team, team == 32 ? 8 : 1);
  Tiles tiles;
  tiles.span = team * each;
  tiles.per_row = std::max<int64_t>(1, ceil_div(chunks, tiles.span));
  tiles.count = p.rows * tiles.per_row;
  // Blocks that have to join the ranges first should be few: those that run at the same time.
  const int64_t most = p.given ? kMaxBlocks : sms * kTileBlocks * kTileThreads / (team * block.y);
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(ceil_div(tiles.count, block.y), 1, most));
  const LaunchShape shape{dim3(blocks), block};
  Range* ranges = nullptr;
  if (!p.given) {
    ranges = scope.allocate<Range>(blocks);
    launch_early(range_of_tiles<Format, kElements>, shape, scope, p, tiles, ranges);
  }
  launch_early(quantize_tiles<Format, kElements>, shape, scope, p, tiles, ranges,
               static_cast<int>(blocks));
}

template <class Format, int kElements>
void launch(const QuantizeProblem& p, const Scope& scope) {
  if (p.given || !p.per_token) {
    launch_tiles<Format, kElements>(p, scope);
  } else {
    launch_rows<Format, kElements>(p, scope);
  }
}

void dispatch(QuantizeProblem p, const Scope& scope) {
  simplify(p);
  const bool aligned = is_aligned(p);
  with_dtype(p.x_dtype, [&](auto dtype) {
    using Of = Format<decltype(dtype)::value>;
    constexpr int kVector = 16 / sizeof(typename Of::storage);
    return aligned ? launch<Of, kVector>(p, scope) : launch<Of, 1>(p, scope);
  });
}

// Row `row` alone. A scale for it is then one for all.
QuantizeProblem row_of(const QuantizeProblem& p, int64_t row) {
  QuantizeProblem one = p;
  one.rows = 1;
  one.per_token = false;
  one.x.data = static_cast<const char*>(p.x.data) + row * p.x.row_stride * size_of(p.x_dtype);
  one.q += row * p.cols;
  one.scale += row * p.scale_stride;
  if (one.azp) one.azp += row * p.azp_stride;
  return one;
}

// Rotated rows that registers hold, each with a scale of its own or a given one.
constexpr int64_t kMostRotated = 2 * kMaxTeam / 32 * kUnitColumns;
bool is_held(const QuantizeProblem& p) {
  return (p.given || p.per_token) && p.cols <= kMostRotated && p.x.col_stride == 1 &&
         reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 &&
         p.x.row_stride * size_of(p.x_dtype) % 16 == 0;
}

void launch_rotated(const QuantizeProblem& p, const Scope& scope) {
  const bool one = p.cols <= kMostRotated / 2;  // unit of a warp
  const int warps = static_cast<int>(ceil_div(p.cols, (one ? 1 : 2) * int64_t{kUnitColumns}));
  LaunchShape shape;
  shape.block = dim3(32 * warps, warps == 1 ? 4 : 1);
  shape.grid = dim3(static_cast<unsigned>(ceil_div(p.rows, shape.block.y)));
  with_dtype(p.x_dtype, [&](auto dtype) {
    one ? launch_early(quantize_rotated<dtype, 1>, shape, scope, p)
        : launch_early(quantize_rotated<dtype, 2>, shape, scope, p);
  });
}

// The same problem of x smoothed and rotated.
QuantizeProblem rotated(QuantizeProblem p, const float* smooth, const Scope& scope) {
  constexpr int kWarps = 8;
  float* const to = scope.allocate<float>(p.rows * p.cols);
  const int64_t units = p.rows * ceil_div(p.cols, int64_t{kUnitColumns});
  const int64_t blocks = std::min<int64_t>(ceil_div(units, kWarps), scope.device.sms * 8);
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(32 * kWarps)};
  with_dtype(p.x_dtype,
             [&](auto dtype) { launch_early(rotate_rows<dtype>, shape, scope, p, smooth, to); });
  p.x = {to, p.cols, 1};
  p.x_dtype = DType::float32;
  p.rotate = 0;
  return p;
}

void quantize(const QuantizeProblem& p, const Scope& scope) {
  const bool dynamic_rows = !p.given && p.per_token;
  if (dynamic_rows && is_held(p)) {
    if (is_for_ring(p, scope.device)) return launch_ring(p, scope);
    ProduceProblem few;
    static_cast<QuantizeProblem&>(few) = p;
    if (holds_few(few, scope.device)) return produce(few, scope);
  }
  if (dynamic_rows && (p.cols > kLongestRow || (p.cols >= kLongRow && p.rows <= kFewRows))) {
    for (int64_t row = 0; row < p.rows; ++row) dispatch(row_of(p, row), scope);
  } else {
    dispatch(p, scope);
  }
}

void run(const QuantizeProblem& p, const Scope& scope) {
  const bool dynamic_rows = !p.given && p.per_token;
  const bool nothing = p.given ? p.rows == 0 || p.cols == 0 : dynamic_rows && p.rows == 0;
  if (nothing) return;
  if (!p.rotate || p.rows == 0 || p.cols == 0) return quantize(p, scope);
  if (is_held(p) && is_for_ring(p, scope.device)) return launch_ring(p, scope);
  if (is_held(p)) return launch_rotated(p, scope);
  quantize(rotated(p, nullptr, scope), scope);
}

void run_smoothed(const ProduceProblem& p, const Scope& scope) {
  const bool by_rows = p.given || p.per_token;
  if (!by_rows || p.x.col_stride != 1) return quantize(rotated(p, p.smooth, scope), scope);
  produce(p, scope);
}

void linear(LinearProblem& p, const Tensor& x) {
  const ProduceProblem& activation = p.activation;
  if (p.product.problem.size.m == 0 || p.product.problem.size.n == 0) return;
  const Scope scope(x);
  p.place(scope.allocate(p.scratch_bytes()));
  if (activation.producer != Producer::none) {
    if (!activation.given || activation.cols > 0) produce(activation, scope);
  } else if (activation.smooth && activation.cols > 0) {
    run_smoothed(activation, scope);
  } else {
    run(activation, scope);
  }
  multiply(p.product.problem, scope);
}

std::tuple<Tensor, Tensor, std::optional<Tensor>> quantize_int8(const Tensor& x, bool symmetric,
                                                                bool per_token, int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize(x, symmetric, per_token, rotate);
  run(checked.problem, Scope(checked.outputs[0]));
  std::optional<Tensor> azp;
  if (!symmetric) azp = checked.outputs[2];
  return {checked.outputs[0], checked.outputs[1], azp};
}

std::tuple<Tensor, Tensor> quantize_weight_int8(const Tensor& w, bool per_channel, int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize_weight(w, per_channel, rotate);
  run(checked.problem, Scope(checked.outputs[0]));
  return {checked.outputs[0], checked.outputs[1]};
}

Tensor quantize_int8_static(const Tensor& x, const Tensor& scale, std::optional<Tensor> azp,
                            int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize_static(x, scale, azp, rotate);
  run(checked.problem, Scope(checked.outputs[0]));
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("quantize_int8", TORCH_BOX(&scaled_mm::cuda::quantize_int8));
  ops.impl("quantize_weight_int8", TORCH_BOX(&scaled_mm::cuda::quantize_weight_int8));
  ops.impl("quantize_int8_static", TORCH_BOX(&scaled_mm::cuda::quantize_int8_static));
  ops.impl("scaled_linear", TORCH_BOX(&scaled_mm::scaled_linear<scaled_mm::cuda::linear>));
}
