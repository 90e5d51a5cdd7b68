// A block of the kernel for packed weights (lowbit_units.cuh): what it is given, how its shared
// memory is laid out, and the copies that fill it.
#pragma once

#include "cuda/common/unaligned.cuh"
#include "cuda/lowbit/end.cuh"
#include "cuda/lowbit/units.cuh"
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
  LowbitEnd end;
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

}  // namespace scaled_mm::cuda::mma_sync
