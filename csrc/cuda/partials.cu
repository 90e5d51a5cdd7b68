// Sums of slices of K that went to memory, ended.
#include <algorithm>

#include "cuda/epilogue/finish.cuh"
#include "cuda/int8.h"
#include "epilogue/registry.h"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kThreads = 256;

struct PartialsParams {
  const int32_t* partials;
  int slices;
  int m;
  int n;
  EpilogueOperand operands[kNumOperands];
  Destination to;
};

// A thread has four channels of a token at a time. Without the second bound ptxas spills on sm_80,
// to keep within 32 registers.
template <class E>
__global__ __launch_bounds__(kThreads,
                             4) void reduce_partials(const __grid_constant__ PartialsParams p) {
  const int64_t quads = (p.n + 3) / 4, all = int64_t{p.m} * quads, step = int64_t{p.m} * p.n;
  const bool vectors = p.n % 4 == 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t token = i / quads, channel = i % quads * 4;
    const int inside = static_cast<int>(p.n - channel);
    const int32_t* from = p.partials + token * p.n + channel;
    int32_t acc[4] = {};
    for (int s = 0; s < p.slices; ++s, from += step) {
      if (vectors) {
        const int4 part = *reinterpret_cast<const int4*>(from);
        acc[0] += part.x, acc[1] += part.y, acc[2] += part.z, acc[3] += part.w;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[e] += e < inside ? from[e] : 0;
      }
    }
    float matrix[4];  // the elements of a matrix operand
    if constexpr (Lower<E>::List::has_full) {
      load_elements<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)], token,
                                        channel, inside, matrix);
    }
    const auto get = [&](auto leaf, int e) {
      using L = decltype(leaf);
      const int64_t at = min(channel + e, int64_t{p.n} - 1);  // what is beyond is not stored
      if constexpr (L::axis == epilogue::Axis::Full) {
        return matrix[e];
      } else {
        return load_operand<L>(p.operands[static_cast<int>(L::id)], token, at);
      }
    };
    finish_four<E>(p.to, acc, token, channel, inside, get);
  }
}

}  // namespace

void finish_partials(const int32_t* partials, int slices, const Int8Problem& p,
                     const Scope& scope) {
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    PartialsParams params{
        partials, slices,           static_cast<int>(p.size.m), static_cast<int>(p.size.n),
        {},       destination<E>(p)};
    std::copy(std::begin(p.operands), std::end(p.operands), params.operands);
    const int64_t blocks = ceil_div(p.size.m * ceil_div(p.size.n, int64_t{4}), kThreads);
    reduce_partials<E>
        <<<static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20)), kThreads, 0, scope.stream>>>(
            params);
    check(cudaGetLastError(), "reduce_partials");
  });
}

}  // namespace scaled_mm::cuda
