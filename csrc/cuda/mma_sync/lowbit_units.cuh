// D = f(X W + bias + residual), W packed in units (docs/lowbit.md, "The packed form").
//
//            kTokens              Channels lie on the M side of the tensor cores' products, tokens
//           +-------+             on their N side. A block owns kTokens x kChannels of D, of all of
//           |  X^T  | K           K or of a slice. A ring of stages in shared memory is filled by
//           |       |             cp.async (lowbit_units_load.cuh), a stage being a chunk of
//   +-------+-------+             kUnitRows rows of K: the tokens' part of X, and the units of the
//   |  W^T  |  D^T  | kChannels   tile's panels, which lie side by side in memory.
//   +-------+-------+
//       K                         A warp has kParts times 16 channels and all tokens; kWarpsK warps
//                                 share the rows of a chunk, and their sums meet in shared memory.
//
// A unit holds its words in the order of the registers that multiply, so the weight needs no
// ldmatrix: a lane reads 16 bytes, which are its part of two or four steps of 16 rows. X needs one:
// rows of it lie 256 bytes apart, their pieces of 16 bytes mixed up so that eight rows of a piece
// are in different banks. Sums are added in an order that depends on the size alone.
#pragma once

#include "cuda/common/formats.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/mma_sync/lowbit_units_load.cuh"

namespace scaled_mm::cuda::mma_sync {

// --- products ------------------------------------------------------------------------------------

// sums += 16 channels x 16 rows of W times 16 rows x 8 tokens of X.
template <class T>
__device__ inline void multiply_add(float (&sums)[4], const Pair (&w)[4], uint32_t x0,
                                    uint32_t x1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
  }
#else
  static_assert(std::is_same_v<T, __half>, "no tensor core of 7.5 multiplies bfloat16");
  const auto mma = [&](uint32_t w0, uint32_t w1, uint32_t x) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(w0), "r"(w1), "r"(x));
  };
  mma(w[0], w[1], x0);
  mma(w[2], w[3], x1);
#endif
}

// A warp's products of a chunk: its channels' words become weights, four steps of 16 rows or two at
// a time.
template <class Block>
class UnitsMultiplier {
 public:
  __device__ UnitsMultiplier(int sets) : sets_(sets) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    lane_ = thread % 32;
    first_part_ = warp % Block::kWarpsN * kParts;
    first_step_ = warp / Block::kWarpsN * kSteps;
  }

  __device__ void run(typename Block::Sums& sums, const uint8_t* stage) const {
    Group group[kParts];
#pragma unroll
    for (int i = 0; i < kSteps; i += kLoadSteps) {
      uint4 words[kParts];
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        words[j] = *unit_words(unit(stage, j), (first_step_ + i) / kLoadSteps, warp_of(j), lane_);
      }
#pragma unroll
      for (int s = 0; s < kLoadSteps; ++s) {
        if (i + s == 0 || ((i + s) % 2 == 0 && sets_ > 1)) read_groups(group, stage, i + s);
        multiply(sums, group, words, stage, i + s, s * Format::kStepWords);
      }
    }
  }

 private:
  using T = typename Block::T;
  using Format = typename Block::Format;
  using Group = UnitGroup<T, Format>;
  static constexpr int kParts = Block::kParts, kTokens = Block::kTokens;
  static constexpr int kSteps = kUnitRows / 16 / Block::kWarpsK;  // of a warp
  static constexpr int kLoadSteps = Format::kPartSteps;           // of a load of words
  static_assert(kSteps % kLoadSteps == 0 && kUnitRows / 16 / kMostUnitSets == 2);

  int sets_, lane_, first_part_, first_step_;

  __device__ int warp_of(int j) const { return (first_part_ + j) % 4; }
  __device__ const uint8_t* unit(const uint8_t* stage, int j) const {
    return stage + Block::kTokenBytes + (first_part_ + j) / 4 * Block::unit_size(sets_);
  }
  __device__ void read_groups(Group (&group)[kParts], const uint8_t* stage, int step) const {
    const int set = (first_step_ + step) * sets_ / (kUnitRows / 16);
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      group[j].read(unit(stage, j), set, warp_of(j), lane_);
      group[j].lift();
    }
  }
  // A step, whose words are the lane's from `at` on.
  __device__ void multiply(typename Block::Sums& sums, const Group (&group)[kParts],
                           const uint4 (&words)[kParts], const uint8_t* stage, int step,
                           int at) const {
    Pair w[kParts][4];
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const uint32_t of[4] = {words[j].x, words[j].y, words[j].z, words[j].w};
      group[j].weights(w[j], of + at);
    }
    const int piece = 2 * (first_step_ + step) + lane_ / 8 % 2;
#pragma unroll
    for (int tokens = 0; tokens < kTokens; tokens += 16) {
      uint32_t x[4];  // of two times eight tokens
      load_matrices(x, stage + token_offset(tokens + lane_ / 16 * 8 + lane_ % 8, piece));
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        multiply_add<T>(sums[j][tokens / 8], w[j], x[0], x[1]);
        multiply_add<T>(sums[j][tokens / 8 + 1], w[j], x[2], x[3]);
      }
    }
  }
};

// --- the epilogue --------------------------------------------------------------------------------

// Adds the sums of the warps that share channels, in the order of their rows; the first has them.
template <class Block>
__device__ void reduce_warps(typename Block::Sums& sums, uint8_t* shared) {
  if constexpr (Block::kWarpsK > 1) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    constexpr int kSums = sizeof(sums) / 4;
    auto* const mine = reinterpret_cast<float*>(shared) + lane;
    auto& flat = reinterpret_cast<float (&)[kSums]>(sums);
    if (warp >= Block::kWarpsN) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        mine[((warp - Block::kWarpsN) * kSums + i) * 32] = flat[i];
      }
    }
    __syncthreads();
    if (warp >= Block::kWarpsN) return;
#pragma unroll
    for (int other = 0; other < Block::kWarpsK - 1; ++other) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        flat[i] += mine[((other * Block::kWarpsN + warp) * kSums + i) * 32];
      }
    }
  }
}

// Two neighbours of D, or of what is to be added up. N is a multiple of 8.
template <class T>
__device__ inline void finish_two(const UnitsParams& p, int token, int channel,
                                  const float (&bias)[2], float first, float second) {
  if (p.partials != nullptr) {
    const int64_t at = (int64_t{p.m} * blockIdx.y + token) * p.n + channel;
    *reinterpret_cast<float2*>(p.partials + at) = {first, second};
    return;
  }
  float both[2] = {first + bias[0], second + bias[1]};
  store_ended<DTypeOf<T>::value>(p.end, token, channel, both);
}

template <class Block>
__device__ void store_tile(const UnitsParams& p, const typename Block::Sums& sums, int row,
                           int panel) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (warp >= Block::kWarpsN) return;
#pragma unroll
  for (int j = 0; j < Block::kParts; ++j) {
    const int part = warp * Block::kParts + j;
    const int channel = panel * kUnitChannels + 16 * part + lane / 4 * 2;
    if (channel >= p.n) continue;
    float bias[2];
    load_bias(p.end, channel, bias);
#pragma unroll
    for (int i = 0; i < Block::kTokens / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = row + 8 * i + lane % 4 * 2 + e;
        if (token >= p.m) continue;
        finish_two<typename Block::T>(p, token, channel, bias, sums[j][i][e], sums[j][i][2 + e]);
      }
    }
  }
}

// --- the kernels ---------------------------------------------------------------------------------

template <class Block>
__global__ __launch_bounds__(Block::kThreads,
                             Block::kLive) void units_gemm(const __grid_constant__ UnitsParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kStages = Block::kStages;
  const int tile = static_cast<int>(blockIdx.x);
  const int row = tile % p.token_tiles * Block::kTokens;
  const int panel = tile / p.token_tiles * Block::kPanels;
  const int chunks = ceil_div(p.k, kUnitRows);
  const int begin = static_cast<int>(blockIdx.y) * p.slice, end = min(chunks, begin + p.slice);

  UnitsLoader<Block> loader(p, shared, row, panel, begin);
#pragma unroll 1
  for (int s = 0; s < kStages - 1; ++s) {
    if (begin + s < end) loader.load(shared + s * Block::kStageBytes);
    commit();
  }
  typename Block::Sums sums = {};
  const UnitsMultiplier<Block> multiplier(p.sets);
  int stage = 0, free = kStages - 1;
#pragma unroll 1
  for (int chunk = begin; chunk < end; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is there for all; all are through with the one before
    if (chunk + kStages - 1 < end) loader.load(shared + free * Block::kStageBytes);
    commit();
    multiplier.run(sums, shared + stage * Block::kStageBytes);
    free = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();
  reduce_warps<Block>(sums, shared);
  store_tile<Block>(p, sums, row, panel);
}

// Adds up the slices in their order; a thread has four channels of a token.
template <class T>
__global__ void __launch_bounds__(256)
    reduce_slices(const __grid_constant__ UnitsParams p, int slices) {
  const int quads = p.n / 4;
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x, step = int64_t{p.m} * p.n;
  if (i >= int64_t{p.m} * quads) return;
  const int channel = static_cast<int>(i % quads) * 4, token = static_cast<int>(i / quads);
  const float* from = p.partials + 4 * i;
  float all[4] = {};
#pragma unroll 4
  for (int s = 0; s < slices; ++s, from += step) {
    const float4 part = *reinterpret_cast<const float4*>(from);
    all[0] += part.x, all[1] += part.y, all[2] += part.z, all[3] += part.w;
  }
  float bias[4];
  load_bias(p.end, channel, bias);
#pragma unroll
  for (int e = 0; e < 4; ++e) all[e] += bias[e];
  store_ended<DTypeOf<T>::value>(p.end, token, channel, all);
}

}  // namespace scaled_mm::cuda::mma_sync
