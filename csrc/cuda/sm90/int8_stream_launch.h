// The launch of a streaming kernel: what its parameters have in common, whatever ends the sums.
#pragma once

#include <algorithm>

#include "cuda/sm90/int8_stream.cuh"
#include "cuda/sm90/tensor_map.h"
#include "integers.h"

namespace scaled_mm::cuda::sm90::int8 {

// Rows of A and columns of B, at multiples of 16 bytes, as many bytes apart.
struct StreamFactors {
  const int8_t* a;
  int64_t lda;
  const int8_t* b;
  int64_t ldb;
  int64_t m;
  int64_t n;
  int64_t k;
};

// `params` has operands and destination.
template <class Block, class E, class Params>
void launch_stream(const StreamFactors& of, const StreamPlan& plan, const Device& device,
                   const LaunchOn& on, Params& params) {
  constexpr auto kKernel = stream_gemm<Block, E, Params>;
  params.rows = static_cast<int>(ceil_div(of.m, plan.token_tiles));
  if (of.k > 0) {  // else nothing is loaded
    params.weight = tensor_map(of.b, of.n, of.k, of.ldb, Block::kChannels);
    params.tokens = tensor_map(of.a, of.m, of.k, of.lda, params.rows);
  }
  params.m = static_cast<int>(of.m);
  params.n = static_cast<int>(of.n);
  params.chunks = static_cast<int>(ceil_div(of.k, kChunk));
  params.token_tiles = plan.token_tiles;
  params.stages = Block::stages(device, plan);
  params.early = std::min(plan.early, params.stages);

  allow_all_shared_memory<kKernel>(device);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(Block::kThreads),
                          .shared_bytes = Block::shared_bytes(params.stages, plan.split),
                          .cluster = static_cast<unsigned>(plan.split)};
  launch_early(kKernel, shape, on, params);
}

}  // namespace scaled_mm::cuda::sm90::int8
