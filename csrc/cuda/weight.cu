// pack_weight_int8, azp_adj and azp_with_adj on the GPU.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "cuda/common/device.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/relayout.h"
#include "cuda/common/unaligned.cuh"
#include "integers.h"
#include "ops/int8.h"
#include "ops/namespace.h"
#include "problems/int8.h"

namespace scaled_mm {

int64_t packed_weight_bytes(int64_t k, int64_t n) { return n * cuda::packed_stride(k); }

namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// --- column sums -------------------------------------------------------------------------------
//
// azp * sum_k b[k, n] modulo 2^32; the sum itself is within int32 (|sum| <= 128 * kMaxK).

__device__ uint32_t factor(const int32_t* azp) { return azp ? static_cast<uint32_t>(*azp) : 1; }

__device__ int sum_bytes(const uint4& v, int sum) {
  constexpr int kOnes = 0x01010101;
  sum = __dp4a(static_cast<int>(v.x), kOnes, sum);
  sum = __dp4a(static_cast<int>(v.y), kOnes, sum);
  sum = __dp4a(static_cast<int>(v.z), kOnes, sum);
  return __dp4a(static_cast<int>(v.w), kOnes, sum);
}

// The calling thread's part of the sum of `count` bytes, which `threads` threads share out.
__device__ int sum_part(const int8_t* from, int count, int thread, int threads) {
  const int skip = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16);
  const auto* vectors = reinterpret_cast<const uint4*>(from - skip);
  const int end = skip + count, whole_end = end / 16;  // bytes from the first vector on; vectors
  int sum = 0, i = (skip > 0) + thread;
  for (; i + 3 * threads < whole_end; i += 4 * threads) {
    const uint4 a = __ldg(vectors + i), b = __ldg(vectors + i + threads);
    const uint4 c = __ldg(vectors + i + 2 * threads), d = __ldg(vectors + i + 3 * threads);
    sum = sum_bytes(d, sum_bytes(c, sum_bytes(b, sum_bytes(a, sum))));
  }
  for (; i < whole_end; i += threads) sum = sum_bytes(__ldg(vectors + i), sum);
  if (thread == 0 && skip > 0 && count > 0) {
    sum = sum_bytes(only_bytes(load_word<uint4>(from - skip, end), skip, min(end, 16)), sum);
  }
  if (thread == 1 && end % 16 > 0 && (whole_end > 0 || skip == 0)) {
    sum = sum_bytes(load_word<uint4>(from - skip + 16 * whole_end, end % 16), sum);
  }
  return sum;
}

// Columns whose elements lie side by side: a team of warps (threadIdx.x) for each.
__global__ void __launch_bounds__(kThreads)
    sum_columns(const int8_t* b,       // b[k, n] at k + n * stride
                const int64_t stride,  // bytes
                const int k,           //
                const int64_t n,       //
                const int32_t* azp,    // absent: 1
                int32_t* out) {        // [n]
  __shared__ int sums[kWarps];
  const int64_t column = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  int sum = column < n ? sum_part(b + column * stride, k, threadIdx.x, blockDim.x) : 0;
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  const int warp = (threadIdx.y * blockDim.x + threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0 || column >= n) return;
  for (int i = 1; i < blockDim.x / 32; ++i) sum += sums[warp + i];
  out[column] = static_cast<int32_t>(factor(azp) * static_cast<uint32_t>(sum));
}

constexpr int kGroup = 128;  // columns that a warp of sum_rows has, four to a lane
constexpr int kRows = 8;     // that it has in flight together

// 4 elements of a row as the bytes of a word, or the `available` ones and zeros.
template <bool kSideBySide>
__device__ Bytes4 load_columns(const int8_t* from, int64_t stride, int available) {
  if (kSideBySide) return Bytes4(from, available);
  Bytes4 bytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < available) bytes.low |= uint32_t{static_cast<uint8_t>(from[i * stride])} << 8 * i;
  }
  return bytes;
}

// Columns whose elements do not: warps take pieces of k for a group of columns, a block joins those
// of its warps, and adds to what other blocks have. Integers: no order matters.
template <bool kSideBySide>  // the elements of a row
__global__ void __launch_bounds__(kThreads) sum_rows(const Matrix<const int8_t> b,  // [k, n]
                                                     const int k,                   //
                                                     const int64_t n,               //
                                                     const int64_t groups,          // of columns
                                                     const int rows,      // of b to a warp
                                                     const int32_t* azp,  // absent: 1
                                                     int32_t* out) {      // [n], zeros
  __shared__ int sums[kWarps][kGroup];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = blockIdx.x % groups * kGroup, column = first + 4 * lane;
  const int available = static_cast<int>(min(n - column, int64_t{8}));
  const int64_t begin = (blockIdx.x / groups * kWarps + warp) * rows;
  const int64_t end = min(begin + rows, int64_t{k});
  int sum[4] = {};
  if (available > 0) {
    const int8_t* from = b.data + begin * b.row_stride + column * b.col_stride;
#pragma unroll 1
    for (int64_t row = begin; row < end; row += kRows, from += kRows * b.row_stride) {
      Bytes4 held[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        held[i] = load_columns<kSideBySide>(from + i * b.row_stride, b.col_stride,
                                            row + i < end ? available : 0);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int word = static_cast<int>(held[i].value());
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = __dp4a(word, 1 << 8 * c, sum[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) sums[warp][4 * lane + c] = sum[c];
  __syncthreads();
  if (threadIdx.x >= kGroup || first + threadIdx.x >= n) return;
  int total = 0;
  for (int i = 0; i < kWarps; ++i) total += sums[i][threadIdx.x];
  atomicAdd(out + first + threadIdx.x,
            static_cast<int>(factor(azp) * static_cast<uint32_t>(total)));
}

// Enough warps to a column for half of what the device holds, if it is long enough.
void launch_columns(const ColumnSums& p, const int8_t* b, int64_t stride, const Scope& scope) {
  int warps = 1;
  while (warps < kWarps && p.b.n * warps < 32 * scope.device.sms && p.b.k >= 1024 * warps) {
    warps *= 2;
  }
  const dim3 block(32 * warps, kWarps / warps);
  const auto blocks = static_cast<unsigned>(ceil_div(p.b.n, block.y));
  sum_columns<<<blocks, block, 0, scope.stream>>>(b, stride, static_cast<int>(p.b.k), p.b.n, p.azp,
                                                  p.out);
  check(cudaGetLastError(), "sum_columns");
}

// As many warps as the device holds, if each then has at least 16 rows.
void launch_rows(const ColumnSums& p, const Scope& scope) {
  check(cudaMemsetAsync(p.out, 0, p.b.n * sizeof(int32_t), scope.stream), "cudaMemsetAsync");
  const int64_t groups = ceil_div(p.b.n, kGroup);
  const int64_t pieces =
      std::clamp<int64_t>(64 * scope.device.sms / groups, 1, ceil_div(p.b.k, 16));
  const auto rows = static_cast<int>(ceil_div(p.b.k, pieces));
  const auto blocks = static_cast<unsigned>(groups * ceil_div(pieces, kWarps));
  const auto kernel = p.b.plain.col_stride == 1 ? sum_rows<true> : sum_rows<false>;
  kernel<<<blocks, kThreads, 0, scope.stream>>>(p.b.plain, static_cast<int>(p.b.k), p.b.n, groups,
                                                rows, p.azp, p.out);
  check(cudaGetLastError(), "sum_rows");
}

Tensor column_sums(const Checked<ColumnSums>& checked) {
  const ColumnSums& p = checked.problem;
  if (p.b.n == 0) return checked.outputs[0];
  const Scope scope(checked.outputs[0]);
  if (p.b.packed) {
    launch_columns(p, reinterpret_cast<const int8_t*>(p.b.packed), packed_stride(p.b.k), scope);
  } else if (p.b.plain.row_stride == 1 || p.b.k == 0) {
    launch_columns(p, p.b.plain.data, p.b.plain.col_stride, scope);
  } else {
    launch_rows(p, scope);
  }
  return checked.outputs[0];
}

using Azp = AzpOps<column_sums>;

Tensor pack_weight_int8(const Tensor& b) {
  const Checked<Weight> checked = check_pack_weight(b);
  const Weight& weight = checked.problem;
  const Tensor& packed = checked.outputs[0];
  const Scope scope(packed);
  const Matrix<const int8_t> columns = {weight.plain.data, weight.plain.col_stride,
                                        weight.plain.row_stride};
  relayout(columns, weight.n, weight.k, static_cast<int8_t*>(packed.mutable_data_ptr()),
           packed_stride(weight.k), scope.stream);
  if (weight.n > 0) settle(scope);
  return packed;
}

void settle_memory(const Tensor& of) { settle(Scope(of)); }

}  // namespace
}  // namespace cuda
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("azp_adj", TORCH_BOX(&scaled_mm::cuda::Azp::azp_adj));
  ops.impl("azp_with_adj", TORCH_BOX(&scaled_mm::cuda::Azp::azp_with_adj));
  ops.impl("pack_weight_int8", TORCH_BOX(&scaled_mm::cuda::pack_weight_int8));
  ops.impl("_settle", TORCH_BOX(&scaled_mm::cuda::settle_memory));
}
