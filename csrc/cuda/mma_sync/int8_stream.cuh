// D = epilogue(A B) for few tokens, where reading the weight is what takes the time.
//
//          kTokens            A block owns kChannels x kTokens of D^T. Each of its warps multiplies
//         +------+            all of that, over its own part of K: the warps take steps of 64
//         | A^T  | K          in turn. Their int32 sums meet in shared memory, where the epilogue
//         |      |            runs on them, once.
//   +-----+------+
//   | B^T | D^T  | kChannels  The weight goes from memory to registers and past every cache line of
//   +-----+------+            L1, once; the tokens come from L1 and L2. No bit depends on the order
//      K                      in which integers are added.
//
// Fragments need no shuffle. mma.m16n8k32 wants of lane 4 g + t the bytes [4 t, 4 t + 4) and [16 +
// 4 t, 16 + 4 t + 4) of rows g and g + 8. A sum over K may take K in any order that both operands
// share, so the lane takes the 16 bytes [16 t, 16 t + 16) of its rows instead: the fragments of two
// MMAs, by one load of 16 bytes.
//
//   a row of 64 bytes   | t = 0: 16 bytes | t = 1 | t = 2 | t = 3 |      first MMA: words 0 and 1
//                         w0  w1  w2  w3                                second: words 2 and 3
#pragma once

#include "cuda/common/expert_rows.cuh"
#include "cuda/common/unaligned.cuh"
#include "cuda/epilogue/finish.cuh"
#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::mma_sync {

struct StreamParams {
  const int8_t* weight;  // B^T [N, K], rows aligned to 16 bytes
  int64_t weight_stride;
  const int8_t* tokens;  // A [M, K], as well
  int64_t tokens_stride;
  int m;
  int n;
  int k;
  int token_tiles;    // tiles of D along M
  int slice;          // bytes of K that a slice has, a multiple of Block::kStep
  int32_t* partials;  // int32 [slices, M, N] where K is cut; else null
  EpilogueOperand operands[kNumOperands];
  Destination to;
};

// Of a grouped product: the weights of all experts are one matrix [E * N, K], one below the other.
struct GroupedParams : StreamParams {
  ExpertRows groups;
};

// sums += two rows' 16 bytes (g, g + 8) times a token's.
__device__ inline void multiply_add(int32_t (&sums)[4], uint4 low, uint4 high, uint4 token) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto mma = [&](uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                       uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  };
  mma(low.x, high.x, low.y, high.y, token.x, token.y);
  mma(low.z, high.z, low.w, high.w, token.z, token.w);
#else
  const auto mma = [](int32_t& c0, int32_t& c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  };
  const uint32_t lows[4] = {low.x, low.y, low.z, low.w};
  const uint32_t highs[4] = {high.x, high.y, high.z, high.w};
  const uint32_t tokens[4] = {token.x, token.y, token.z, token.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mma(sums[0], sums[1], lows[i], tokens[i]);
    mma(sums[2], sums[3], highs[i], tokens[i]);
  }
#endif
}

// 16 bytes of the weight, which nobody reads again.
__device__ inline uint4 load_once(const int8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

template <int kTokens_, int kChannels_, int kWarps_, int kStep_, int kLive_, class E>
struct StreamTile {
  using Epilogue = E;
  static constexpr int kTokens = kTokens_, kChannels = kChannels_, kWarps = kWarps_;
  static constexpr int kStep = kStep_, kLive = kLive_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPitch = kChannels + 4;  // words from a token's sums to the next one's
  using Operands = StagedOperands<typename Lower<E>::List, kTokens, kChannels>;
  struct Shared {
    Operands operands;
    alignas(16) int32_t sums[kWarps][kTokens][kPitch];
  };
};

template <class Block, class Params>
__global__ __launch_bounds__(Block::kThreads,
                             Block::kLive) void stream_gemm(const __grid_constant__ Params p) {
  constexpr bool kGrouped = std::is_same_v<Params, GroupedParams>;
  using E = typename Block::Epilogue;
  constexpr int kTokens = Block::kTokens, kChannels = Block::kChannels, kWarps = Block::kWarps;
  constexpr int kStep = Block::kStep;
  constexpr int kRows = kChannels / 8;  // rows of the weight that a lane reads
  constexpr int kColumns = kTokens / 8;
  constexpr int kHalves = kStep / 64;
  extern __shared__ __align__(16) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Block::Shared*>(memory);

  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int tile = static_cast<int>(blockIdx.x);
  [[maybe_unused]] ExpertTile place = {};
  if constexpr (kGrouped) {
    place = find_tile<kTokens>(p.groups, tile % p.token_tiles, lane);
    if (place.expert < 0) return;
    if (place.expert == p.groups.experts) {
      const int channel = tile / p.token_tiles * kChannels;
      clear<E>(p.to, place.row, min(place.row + kTokens, place.end), channel,
               min(kChannels, p.n - channel), thread, Block::kThreads);
      return;
    }
  }
  const int row = kGrouped ? place.row : tile % p.token_tiles * kTokens;  // first token
  const auto end_row = [&] { return kGrouped ? place.end : p.m; };        // behind the last
  const int col = tile / p.token_tiles * kChannels;                       // first channel
  const int begin = static_cast<int>(blockIdx.y) * p.slice;
  const int end = min(p.k, begin + p.slice);

  // Rows beyond the last are the last: their sums are not stored.
  const int8_t* weight[kRows];
  const int8_t* tokens[kColumns];
  const int offset = lane % 4 * 16;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    weight[i] = p.weight + min(col + 8 * i + lane / 4, p.n - 1) * p.weight_stride + offset;
    if constexpr (kGrouped) weight[i] += int64_t{place.expert} * p.n * p.weight_stride;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int token = min(row + 8 * i + lane / 4, end_row() - 1);
    if constexpr (kGrouped) {
      tokens[i] = p.tokens + p.groups.source(token) * p.tokens_stride + offset;
    } else {
      tokens[i] = p.tokens + token * p.tokens_stride + offset;
    }
  }

  int32_t sums[kRows / 2][kColumns][4] = {};
  // What a lane reads for a step: of the weight, of the tokens.
  struct Step {
    uint4 weight[kHalves][kRows];
    uint4 token[kHalves][kColumns];
  };
  const auto load = [&](int k) {
    Step step;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) step.weight[h][i] = load_once(weight[i] + k + 64 * h);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        step.token[h][j] = __ldg(reinterpret_cast<const uint4*>(tokens[j] + k + 64 * h));
      }
    }
    return step;
  };
  const auto multiply = [&](const Step& step) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          multiply_add(sums[i][j], step.weight[h][2 * i], step.weight[h][2 * i + 1],
                       step.token[h][j]);
        }
      }
    }
  };

  constexpr int kStride = kWarps * kStep;
  const int whole = begin + (end - begin) / kStep * kStep;  // behind it: less than a step
  int k = begin + warp * kStep;
  Step next;  // on its way while the one before is multiplied
  if (k < whole) next = load(k);
  if constexpr (kGrouped) {
    shared.operands.load(p.operands, row, col, place.end, p.n, thread, Block::kThreads,
                         ExpertElements{p.groups, place.expert});
  } else {
    shared.operands.load(p.operands, row, col, p.m, p.n, thread, Block::kThreads);
  }
#pragma unroll 1  // or registers for several steps would be wanted at once
  for (; k < whole; k += kStride) {
    const Step now = next;
    if (k + kStride < whole) next = load(k + kStride);
    multiply(now);
  }
  if (k == whole && whole < end) {  // the warp whose turn it is
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int at = whole + 64 * h, available = end - at - offset;
#pragma unroll
      for (int i = 0; i < kRows; ++i) next.weight[h][i] = load_first(weight[i] + at, available);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) next.token[h][j] = load_first(tokens[j] + at, available);
    }
    multiply(next);
  }

  // A lane holds channels 16 i + lane / 4 (+ 8) of tokens 8 j + 2 (lane % 4) (+ 1).
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      int32_t* const to = &shared.sums[warp][8 * j + lane % 4 * 2][16 * i + lane / 4];
      to[0] = sums[i][j][0];
      to[Block::kPitch] = sums[i][j][1];
      to[8] = sums[i][j][2];
      to[Block::kPitch + 8] = sums[i][j][3];
    }
  }
  __syncthreads();

  // --- the epilogue: four channels of a token at a time ---
  constexpr int kQuads = kChannels / 4;
  const int items = min(kTokens, end_row() - row) * kQuads;
  for (int i = thread; i < items; i += Block::kThreads) {
    const int token = i / kQuads, channel = i % kQuads * 4;
    const int inside = p.n - col - channel;
    if (inside <= 0) continue;
    int32_t acc[4] = {};
#pragma unroll 4
    for (int w = 0; w < kWarps; ++w) {
      const int4 part = *reinterpret_cast<const int4*>(&shared.sums[w][token][channel]);
      acc[0] += part.x, acc[1] += part.y, acc[2] += part.z, acc[3] += part.w;
    }
    if (p.partials != nullptr) {
      const Output out{p.partials + int64_t{p.m} * p.n * blockIdx.y, {}, p.n % 4 == 0};
      store_row(out, int64_t{row + token} * p.n + col + channel, inside, acc);
      continue;
    }
    float matrix[4];  // the elements of a matrix operand
    if constexpr (Lower<E>::List::has_full) {
      load_elements<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)],
                                        row + token, col + channel, inside, matrix);
    }
    const auto get = [&](auto leaf, int e) {
      using L = decltype(leaf);
      if constexpr (L::axis == epilogue::Axis::Full) {
        static_assert(L::id == Operand::residual);
        return matrix[e];
      } else {
        return shared.operands.at(leaf, token, channel + e);
      }
    };
    finish_four<E>(p.to, acc, row + token, col + channel, inside, get);
  }
}

}  // namespace scaled_mm::cuda::mma_sync
