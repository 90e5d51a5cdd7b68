#include "cuda/common/relayout.h"

#include "cuda/common/device.h"
#include "cuda/common/unaligned.cuh"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // vectors of 16 bytes that a thread moves, all in flight together

// Rows of vectors shared out: a team of threads (threadIdx.x) moves a segment of a row, that is
// kHeld vectors for each thread; segments are numbered row by row.
struct Shares {
  dim3 block;
  unsigned blocks;
  int64_t per_row;  // segments
};

Shares share_out(int64_t rows, int64_t vectors) {
  int size = 1;
  while (size < 32 && size * kHeld < vectors) size *= 2;
  Shares shared;
  shared.block = dim3(size, kThreads / size);
  shared.per_row = std::max<int64_t>(1, ceil_div(vectors, size * kHeld));
  shared.blocks = static_cast<unsigned>(ceil_div(rows * shared.per_row, shared.block.y));
  return shared;
}

// The calling team's segment: its row, and the first vector that is the calling thread's.
struct Segment {
  int64_t row;
  int64_t vector;

  __device__ explicit Segment(int64_t per_row) {
    const int64_t segment = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    row = segment / per_row;
    vector = (segment - row * per_row) * blockDim.x * kHeld + threadIdx.x;
  }
};

// --- relayout ----------------------------------------------------------------------------------

// 16 elements that lie `stride` apart, or the `available` ones and zeros.
__device__ Bytes16 gather16(const int8_t* from, int64_t stride, int available) {
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (i >= available) break;
    words[i / 4] |= uint32_t{static_cast<uint8_t>(from[i * stride])} << 8 * (i % 4);
  }
  Bytes16 bytes;
  bytes.low = {words[0], words[1], words[2], words[3]};
  return bytes;
}

// Elements of a row side by side (kSideBySide), or anywhere.
template <bool kSideBySide>
__global__ void __launch_bounds__(kThreads)
    relayout_rows(const Matrix<const int8_t> from,  // [rows, cols]
                  const int64_t rows,               //
                  const int64_t cols,               //
                  int8_t* to,                       // [rows, to_stride]
                  const int64_t to_stride,          // bytes, a multiple of 16
                  const int64_t segments) {         // of a row
  const Segment segment(segments);
  if (segment.row >= rows) return;
  const int8_t* source = from.data + segment.row * from.row_stride;
  Bytes16 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t col = 16 * (segment.vector + i * blockDim.x);
    const int available = static_cast<int>(min(cols - col, int64_t{32}));
    held[i] = kSideBySide ? Bytes16(source + col, available)
                          : gather16(source + col * from.col_stride, from.col_stride, available);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t col = 16 * (segment.vector + i * blockDim.x);
    if (col >= to_stride) return;
    *reinterpret_cast<uint4*>(to + segment.row * to_stride + col) = held[i].value();
  }
}

constexpr int kTile = 128;  // rows, and columns, of a tile of relayout_columns

// Byte j of word i becomes byte i of word j.
__device__ void transpose4x4(uint32_t (&word)[4]) {
  const uint32_t low01 = __byte_perm(word[0], word[1], 0x5140);
  const uint32_t low23 = __byte_perm(word[2], word[3], 0x5140);
  const uint32_t high01 = __byte_perm(word[0], word[1], 0x7362);
  const uint32_t high23 = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(low01, low23, 0x5410);
  word[1] = __byte_perm(low01, low23, 0x7632);
  word[2] = __byte_perm(high01, high23, 0x5410);
  word[3] = __byte_perm(high01, high23, 0x7632);
}

// Elements of a column side by side: tiles, through shared memory. Rows of a tile stand there in
// the order 0, 4, 8 ... 124, 1, 5, ... 125, 2, ..., so that neither the writes (a lane has four
// rows, a word of each) nor the reads (lanes share out four rows that stand together) meet in a
// bank.
__global__ void __launch_bounds__(kThreads)
    relayout_columns(const int8_t* from,        // [rows, cols], the stride of rows is 1
                     const int64_t col_stride,  // bytes
                     const int64_t rows,        //
                     const int64_t cols,        //
                     int8_t* to,                // [rows, to_stride]
                     const int64_t to_stride,   // bytes, a multiple of 16
                     const int64_t tiles) {     // down the rows
  __shared__ uint32_t words[kTile][kTile / 4 + 1];
  const int64_t first_row = blockIdx.x % tiles * kTile, first_col = blockIdx.x / tiles * kTile;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kWarps = kThreads / 32, kSteps = kTile / 4 / kWarps;

  const int64_t row = first_row + 4 * lane;
  const int available = static_cast<int>(min(rows - row, int64_t{8}));
  Bytes4 held[kSteps * 4];  // four columns in each step
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) {
    const int64_t col = first_col + 4 * (warp + i / 4 * kWarps) + i % 4;
    held[i] = Bytes4(from + row + col * col_stride, col < cols ? available : 0);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = held[4 * step + i].value();
    transpose4x4(word);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[32 * i + lane][warp + step * kWarps] = word[i];
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int place = 4 * (warp + step * kWarps) + lane / 8, quad = lane % 8 * 4;
    const int64_t out_row = first_row + 4 * (place % 32) + place / 32;
    const int64_t out_col = first_col + 4 * quad;
    if (out_row >= rows || out_col >= to_stride) continue;
    *reinterpret_cast<uint4*>(to + out_row * to_stride + out_col) = uint4{
        words[place][quad], words[place][quad + 1], words[place][quad + 2], words[place][quad + 3]};
  }
}

// --- copy_rows ---------------------------------------------------------------------------------

// Vectors are those of `to`: the first of a row, and the last, may be of two rows.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    copy_rows_of(const int8_t* from,        // [rows, pitch], aligned to 16 bytes
                 const int64_t pitch,       // bytes, a multiple of 16
                 int8_t* to,                // [rows, row_bytes], aligned to a unit
                 const int64_t row_bytes,   // a multiple of a unit's
                 const int64_t rows,        //
                 const int64_t segments) {  // of a row
  const Segment segment(segments);
  if (segment.row >= rows) return;
  const int8_t* source = from + segment.row * pitch;
  int8_t* target = to + segment.row * row_bytes;
  const int skip = static_cast<int>(reinterpret_cast<uintptr_t>(target) % 16);
  const auto is_whole = [&](int64_t at) { return at >= 0 && at + 16 <= row_bytes; };
  Bytes16 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = 16 * (segment.vector + i * blockDim.x) - skip;
    if (is_whole(at))
      held[i] = Bytes16(source + at, static_cast<int>(min(pitch - at, int64_t{32})));
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t at = 16 * (segment.vector + i * blockDim.x) - skip;
    if (is_whole(at)) {
      *reinterpret_cast<uint4*>(target + at) = held[i].value();
      continue;
    }
    for (int64_t b = max(at, int64_t{0}); b < min(at + 16, row_bytes); b += sizeof(Unit)) {
      *reinterpret_cast<Unit*>(target + b) = *reinterpret_cast<const Unit*>(source + b);
    }
  }
}

}  // namespace

void relayout(const Matrix<const int8_t>& from, int64_t rows, int64_t cols, int8_t* to,
              int64_t to_stride, cudaStream_t stream) {
  if (rows == 0) return;
  if (from.row_stride == 1 && from.col_stride != 1 && rows > 1 && cols > 1) {
    const int64_t tiles = ceil_div(rows, kTile);
    const auto blocks = static_cast<unsigned>(tiles * ceil_div(to_stride, kTile));
    relayout_columns<<<blocks, kThreads, 0, stream>>>(from.data, from.col_stride, rows, cols, to,
                                                      to_stride, tiles);
  } else {
    const auto kernel =
        from.col_stride == 1 || cols == 1 ? relayout_rows<true> : relayout_rows<false>;
    const Shares shared = share_out(rows, to_stride / 16);
    kernel<<<shared.blocks, shared.block, 0, stream>>>(from, rows, cols, to, to_stride,
                                                       shared.per_row);
  }
  check(cudaGetLastError(), "relayout");
}

void copy_rows(const void* from, int64_t from_pitch_bytes, void* to, int64_t row_bytes,
               int64_t rows, cudaStream_t stream) {
  if (rows == 0 || row_bytes == 0) return;
  const Shares shared = share_out(rows, row_bytes / 16 + 2);
  const auto kernel = row_bytes % 2 ? copy_rows_of<uint8_t> : copy_rows_of<uint16_t>;
  kernel<<<shared.blocks, shared.block, 0, stream>>>(static_cast<const int8_t*>(from),
                                                     from_pitch_bytes, static_cast<int8_t*>(to),
                                                     row_bytes, rows, shared.per_row);
  check(cudaGetLastError(), "copy_rows");
}

}  // namespace scaled_mm::cuda
