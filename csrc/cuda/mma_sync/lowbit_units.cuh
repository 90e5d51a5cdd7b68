// D = f(X W + bias), W packed in units (docs/lowbit.md, "The packed form").
//
//            kTokens          Channels lie on the M side of the tensor cores' products, tokens on
//           +-------+         their N side. A block owns kTokens x kChannels of D, of all of K or
//           of |  X^T  | K       a slice. A ring of stages in shared memory is filled by cp.async,
//           a |       |         stage being a chunk of kUnitRows rows of K: the tokens' part of X,
//           and
//   +-------+-------+         the units of the tile's panels, which lie side by side in memory.
//   |  W^T  |  D^T  | kChannels
//   +-------+-------+         A warp has kParts times 16 channels and all tokens; kWarpsK warps
//   share
//       K                     the rows of a chunk, and their sums meet in shared memory.
//
// A unit holds its words in the order of the registers that multiply, so the weight needs no
// ldmatrix: a lane reads 16 bytes, which are its part of two or four steps of 16 rows. X needs one:
// rows of it lie 256 bytes apart, their pieces of 16 bytes mixed up so that eight rows of a piece
// are in different banks. Sums are added in an order that depends on the size alone.
#pragma once

#include "cuda/common/formats.cuh"
#include "cuda/common/unaligned.cuh"
#include "cuda/common/units.cuh"
#include "cuda/mma_sync/activate.cuh"
#include "cuda/mma_sync/kinds.h"
#include "integers.h"

namespace scaled_mm::cuda::mma_sync {

inline constexpr int kMostUnitSets = 4;

struct UnitsParams {
  const uint8_t* units;  // [chunks][panels]
  int sets;              // of a unit
  Matrix<const uint16_t> x;
  int m;
  int n;
  int k;
  int panels;       // of kUnitChannels channels
  int token_tiles;  // tiles of D along M
  int slice;        // chunks of a slice
  float* partials;  // [slices, M, N] where K is cut; else null
  EpilogueOperand bias;
  LowbitActivation activation;
  uint16_t* d;  // [M, N]
};

template <const auto& kTile, class T_, class Format_>
struct UnitsBlock {
  using T = T_;
  using Format = Format_;
  static constexpr int kTokens = kTile.tile_m, kPanels = kTile.tile_n / kUnitChannels;
  static constexpr int kParts = kTile.parts, kWarpsK = kTile.warps_k;
  static constexpr int kWarpsN = 4 * kPanels / kParts, kLive = kTile.live;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  static constexpr int kChannels = kPanels * kUnitChannels;
  static constexpr int kTokenBytes = kTokens * 2 * kUnitRows;  // of a stage
  using Sums = float[kParts][kTokens / 8][4];

  __host__ __device__ static constexpr int unit_size(int sets) {
    return Format::kWordBytes + sets * Format::kSetBytes;
  }
  // A stage has room for units of so many sets, however many there are.
  static constexpr int kStageBytes = kTokenBytes + kPanels * unit_size(kMostUnitSets);
  static constexpr int kStages = std::min(kTile.ring * 1024 / kStageBytes, 8);
  static constexpr int kSumBytes = (kWarpsK - 1) * kWarpsN * 32 * int{sizeof(Sums)};
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kStages >= 2 && kSumBytes <= kSharedBytes && kTokens % 16 == 0);
};

// --- loads ---------------------------------------------------------------------------------------

// 16 bytes to shared memory, of which `available` are there and the rest becomes zeros.
__device__ inline void copy_16(uint8_t* to, const void* from, int available) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(max(0, min(16, available)))
               : "memory");
#else
  *reinterpret_cast<uint4*>(to) = available >= 16
                                      ? __ldg(static_cast<const uint4*>(from))
                                      : load_first(static_cast<const int8_t*>(from), available);
#endif
}
__device__ inline void commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until no more than so many of the newest groups are under way.
template <int kPending>
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// Where piece `piece` of 16 bytes of a token's part of a chunk lies.
__device__ inline int token_offset(int token, int piece) {
  return token * (2 * kUnitRows) + (piece ^ token % 8) * 16;
}

// What a thread copies of every stage: always the same pieces, each a step further on in memory.
// Pieces of tokens that do not exist are zeros from the beginning, in all stages.
template <class Block>
class UnitsLoader {
 public:
  __device__ UnitsLoader(const UnitsParams& p, uint8_t* shared, int row, int panel, int chunk)
      : left_(2 * (p.k - chunk * kUnitRows)), nothing_(p.x.data) {
    const int thread = static_cast<int>(threadIdx.x), size = Block::unit_size(p.sets);
    bytes_ = min(Block::kPanels, p.panels - panel) * size - 16 * thread;
    step_ = int64_t{p.panels} * size;
    units_ = p.units + chunk * step_ + int64_t{panel} * size + 16 * thread;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * Block::kThreads + thread, token = at / kPieces, piece = at % kPieces;
      const bool is_piece = at < Block::kTokens * kPieces;
      tokens_[i] = nullptr;
      if (is_piece && row + token < p.m) {
        const int64_t first = (row + token) * p.x.row_stride + chunk * kUnitRows + piece * 8;
        tokens_[i] = reinterpret_cast<const uint8_t*>(p.x.data + first);
      } else if (is_piece) {
        for (int stage = 0; stage < Block::kStages; ++stage) {
          uint8_t* const to = shared + stage * Block::kStageBytes + token_offset(token, piece);
          *reinterpret_cast<uint4*>(to) = {};
        }
      }
    }
  }

  // The next chunk.
  __device__ void load(uint8_t* stage) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (tokens_[i] == nullptr) continue;
      const int at = i * Block::kThreads + thread, piece = at % kPieces;
      const int available = left_ - 16 * piece;
      const void* const from = available > 0 ? tokens_[i] : nothing_;  // has to be an address
      copy_16(stage + token_offset(at / kPieces, piece), from, available);
      tokens_[i] += 2 * kUnitRows;
    }
    uint8_t* const to = stage + Block::kTokenBytes + 16 * thread;
#pragma unroll
    for (int i = 0; i < kMostUnits; ++i) {
      const int at = i * 16 * Block::kThreads;
      if (at < bytes_) copy_16(to + at, units_ + at, 16);
    }
    units_ += step_;
    left_ -= 2 * kUnitRows;
  }

 private:
  static constexpr int kPieces = 2 * kUnitRows / 16;
  static constexpr int kCopies = ceil_div(Block::kTokens * kPieces, Block::kThreads);
  static constexpr int kMostUnits =
      ceil_div(Block::kPanels * Block::unit_size(kMostUnitSets), 16 * Block::kThreads);

  int left_;   // bytes of a token's row from the chunk on
  int bytes_;  // of the units from the thread's first piece on
  int64_t step_;
  const uint8_t* units_;
  const uint8_t* tokens_[kCopies];  // null: none
  const void* nothing_;
};

// --- products ------------------------------------------------------------------------------------

__device__ inline void load_matrices(uint32_t (&to)[4], const uint8_t* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}

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
__device__ void join_warps(typename Block::Sums& sums, uint8_t* shared) {
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
  activate_once(both, p.activation);
  *reinterpret_cast<uint32_t*>(p.d + int64_t{token} * p.n + channel) =
      Format<DTypeOf<T>::value>::narrow(both[0], both[1]);
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
    float bias[2] = {};
    if (p.bias.data && p.partials == nullptr) {
#pragma unroll
      for (int e = 0; e < 2; ++e) bias[e] = load_float(p.bias, 0, channel + e);
    }
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
  join_warps<Block>(sums, shared);
  store_tile<Block>(p, sums, row, panel);
}

// Adds up the slices in their order; a thread has four channels of a token.
template <class T>
__global__ void __launch_bounds__(256)
    join_slices(const __grid_constant__ UnitsParams p, int slices) {
  const int quads = p.n / 4;
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x, step = int64_t{p.m} * p.n;
  if (i >= int64_t{p.m} * quads) return;
  const int channel = static_cast<int>(i % quads) * 4;
  const float* from = p.partials + 4 * i;
  float all[4] = {};
#pragma unroll 4
  for (int s = 0; s < slices; ++s, from += step) {
    const float4 part = *reinterpret_cast<const float4*>(from);
    all[0] += part.x, all[1] += part.y, all[2] += part.z, all[3] += part.w;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (p.bias.data) all[e] += load_float(p.bias, 0, channel + e);
  }
  activate(all, p.activation);
  using Of = Format<DTypeOf<T>::value>;
  *reinterpret_cast<uint2*>(p.d + 4 * i) = {Of::narrow(all[0], all[1]), Of::narrow(all[2], all[3])};
}

}  // namespace scaled_mm::cuda::mma_sync
