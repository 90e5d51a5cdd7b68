// Lines of a lowbit.table without tensor cores: those of 7.5 have no bfloat16. setup.py compiles
// this for a few lines at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X)
// defined as X(name) of each.
#include "cuda/lowbit.h"
#include "cuda/lowbit/end.cuh"
#include "cuda/mma_sync/model.h"

namespace scaled_mm::cuda::mma_sync {

struct SimtParams {
  Matrix<const uint16_t> x;
  const uint16_t* w;  // [K, N]
  int m;
  int n;
  int k;
  LowbitEnd end;
};

// A block has kTile tokens x kTile channels, a thread 4 x 4 of them: float32 fused multiply-adds in
// the order of K.
template <DType dtype, int kTile>
__global__ void __launch_bounds__(kTile* kTile / 16)
    simt_gemm(const __grid_constant__ SimtParams p) {
  using Of = Format<dtype>;
  constexpr int kDepth = 16, kPitch = kTile + 4, kThreads = kTile * kTile / 16;
  __shared__ float tokens[kDepth][kPitch], channels[kDepth][kPitch];
  const int thread = static_cast<int>(threadIdx.x);
  const int down = thread / (kTile / 4) * 4, along = thread % (kTile / 4) * 4;
  const int row = static_cast<int>(blockIdx.y) * kTile, col = static_cast<int>(blockIdx.x) * kTile;
  float sums[4][4] = {};
  for (int k = 0; k < p.k; k += kDepth) {
#pragma unroll
    for (int i = thread; i < kTile * kDepth; i += kThreads) {
      const int token = i / kDepth, of_token = i % kDepth;
      const bool is_there = row + token < p.m && k + of_token < p.k;
      tokens[of_token][token] =
          is_there ? Of::widen(p.x.data[(row + token) * p.x.row_stride + k + of_token], 0) : 0.0f;
      const int channel = i % kTile, of_channel = i / kTile;
      const bool is_here = col + channel < p.n && k + of_channel < p.k;
      channels[of_channel][channel] =
          is_here ? Of::widen(p.w[int64_t{k + of_channel} * p.n + col + channel], 0) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(&tokens[i][down]);
      const float4 w = *reinterpret_cast<const float4*>(&channels[i][along]);
      const float xs[4] = {x.x, x.y, x.z, x.w}, ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int a = 0; a < 4; ++a) {
#pragma unroll
        for (int b = 0; b < 4; ++b) sums[a][b] = __fmaf_rn(xs[a], ws[b], sums[a][b]);
      }
    }
    __syncthreads();
  }
  const int channel = col + along;
  if (channel >= p.n) return;
  float bias[4];
  load_bias(p.end, channel, bias);
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    const int token = row + down + a;
    if (token >= p.m) return;
#pragma unroll
    for (int b = 0; b < 4; ++b) sums[a][b] = __fadd_rn(sums[a][b], bias[b]);
    store_ended<dtype>(p.end, token, channel, sums[a]);
  }
}

template <const auto& kTile>
void run_simt(const LowbitProblem& p, const Scope& scope) {
  auto* const w = scope.allocate<uint16_t>(p.w.k * p.w.n);
  dequantize(p.w, w, false, scope);
  const SimtParams params{.x = p.x,
                          .w = w,
                          .m = static_cast<int>(p.m),
                          .n = static_cast<int>(p.w.n),
                          .k = static_cast<int>(p.w.k),
                          .end = end_of(p)};
  constexpr int kSide = kTile.tile;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.w.n, int64_t{kSide})),
                  static_cast<unsigned>(ceil_div(p.m, int64_t{kSide})));
  with_dtype16(p.w.dtype, [&](auto dtype) {
    simt_gemm<decltype(dtype)::value, kSide><<<grid, kSide * kSide / 16, 0, scope.stream>>>(params);
  });
  check(cudaGetLastError(), "simt_gemm, launch");
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit {

template <const Simt& kTile>
void run(const LowbitProblem& p, const Scope& scope) {
  mma_sync::run_simt<kTile>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const LowbitProblem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::lowbit
