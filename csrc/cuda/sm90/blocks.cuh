// D = f(sum over blocks of K of s t + bias ...) of int8 with scales in blocks of 128 x 128
// (docs/numerics.md, section 8), for many tokens.
//
// Tokens lie on the M side of wgmma, 64 for each warpgroup, the channels of a block of the weight
// on its N side. A stage of the ring is a block of K. Its int32 sums go to the chain of their slice
// while the other warpgroup's products run. Chains and the sums of slices stay in registers: shared
// memory has no time left for them beside the products. Of more than 128 tokens two tiles with the
// same channels are a cluster's: each of its blocks loads half of the weight for both. In a block
// of threads
//
//    warpgroups 0, 1    multiply, and each ends its tokens of a tile
//    warp 8             loads, by TMA, into the ring
//    warps 9 to 11      load scales, each of every third stage: a token's times the block's
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <utility>

#include "cuda/common/launch.cuh"
#include "cuda/k_scales/end.cuh"
#include "cuda/sm90/k_scales.h"
#include "cuda/sm90/lowbit_block.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

struct BlocksParams {
  CUtensorMap tokens;  // A [M, K], in boxes of kSide rows
  CUtensorMap weight;  // B^T [N, K], likewise, or of a block's part of them
  int cluster;         // blocks: 1 or 2
  int m;
  int n;
  int chunks;       // blocks of K
  int slice;        // of them
  int tiles;        // of D, a cluster's
  int token_tiles;  // along M
  int stages;       // of the ring
  EpilogueOperand row_scales, scales;
  GroupsEnd end;
};

// Of two blocks, where both have tokens.
constexpr int cluster_of(int64_t m) { return m > 128 ? 2 : 1; }

struct BlocksTile {
  static constexpr int kSide = 128;  // tokens, channels, and rows of K of a stage
  static constexpr int kConsumers = 256, kThreads = kConsumers + 128;
  static constexpr int kScalers = 3;  // warps
  static constexpr int kRegisters = 232, kLoaderRegisters = 40;
  static constexpr int kHalfBytes = kSide * kSide, kStageBytes = 2 * kHalfBytes;
  static constexpr int kMaxStages = 4;
  struct Fixed {
    alignas(16) float sums[kSide * kSide];  // of a tile that ends: sum()
    float scales[kMaxStages][kSide];        // of a stage's tokens, times the block's
    uint64_t full[kMaxStages];
    uint64_t ready[kMaxStages];  // scales are there
    uint64_t empty[kMaxStages];  // of all blocks of the cluster
    // What a warp stores or loads at a time lies in different banks.
    __device__ float& sum(int token, int channel) {
      return sums[token * kSide + (channel ^ token % 4 * 8)];
    }
  };
  static constexpr int shared_bytes(int stages) {
    return stages * kStageBytes + static_cast<int>(sizeof(Fixed));
  }
  static constexpr int stages(int bytes) {
    return std::min((bytes - static_cast<int>(sizeof(Fixed))) / kStageBytes, kMaxStages);
  }
};

__device__ inline int rank_of(const BlocksParams& p) {
  return p.cluster == 1 ? 0 : static_cast<int>(blockIdx.x) % 2;
}

// f(place) of all tiles of the block.
template <class F>
__device__ void each_tile(const BlocksParams& p, const F& f) {
  constexpr int kSide = BlocksTile::kSide;
  const int step = static_cast<int>(gridDim.x) / p.cluster;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x) / p.cluster; tile < p.tiles; tile += step) {
    lowbit::TileOrigin place(tile, p.tiles, p.token_tiles, p.cluster * kSide, kSide);
    place.row += rank_of(p) * kSide;
    f(place);
  }
}

__device__ inline void load_blocks(const BlocksParams& p, uint8_t* ring, BlocksTile::Fixed& fixed) {
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  const int half = rank_of(p) * (BlocksTile::kSide / 2);
  lowbit::Cursor at{.phase = 1};
  each_tile(p, [&](const lowbit::TileOrigin& place) {
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      uint64_t* const full = &fixed.full[at.stage];
      uint8_t* const stage = ring + at.stage * BlocksTile::kStageBytes;
      uint8_t* const weight = stage + BlocksTile::kHalfBytes + half * BlocksTile::kSide;
      lowbit::Empty::wait(&fixed.empty[at.stage], at.phase);
      lowbit::Full::arrive_and_expect_tx(full, BlocksTile::kStageBytes);
      const int k = chunk * BlocksTile::kSide;
      cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often, stage, k, place.row);
      if (p.cluster == 1) {
        cute::SM90_TMA_LOAD_2D::copy(&p.weight, full, often, weight, k, place.col);
      } else {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&p.weight, full, uint16_t{3}, often, weight, k,
                                               place.col + half);
      }
      at.advance(p.stages);
    }
  });
}

// The part of one of kScalers warps.
__device__ inline void load_scales(const BlocksParams& p, BlocksTile::Fixed& fixed, int mine,
                                   int lane) {
  lowbit::Cursor at{.phase = 1};
  int turn = BlocksTile::kScalers - mine;
  each_tile(p, [&](const lowbit::TileOrigin& place) {
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      if (--turn == 0) {
        turn = BlocksTile::kScalers;
        float scales[BlocksTile::kSide / 32];
        const float of_block = load_float(p.scales, chunk, place.col / BlocksTile::kSide);
#pragma unroll
        for (int i = 0; i < BlocksTile::kSide / 32; ++i) {
          const int row = min(place.row + 32 * i + lane, p.m - 1);
          scales[i] = load_float(p.row_scales, row, chunk);
        }
        lowbit::Empty::wait(&fixed.empty[at.stage], at.phase);
#pragma unroll
        for (int i = 0; i < BlocksTile::kSide / 32; ++i) {
          fixed.scales[at.stage][32 * i + lane] = __fmul_rn(scales[i], of_block);
        }
        lowbit::Empty::arrive(&fixed.ready[at.stage]);
      }
      at.advance(p.stages);
    }
  });
}

// A warpgroup's 64 tokens of all tiles.
class BlocksMultiplier {
 public:
  __device__ BlocksMultiplier(const BlocksParams& p, const uint8_t* ring, BlocksTile::Fixed& fixed)
      : p_(p), ring_(ring), fixed_(fixed), thread_(static_cast<int>(threadIdx.x)) {
    warp_ = __shfl_sync(~0u, thread_ / 32, 0);
    lane_ = thread_ % 32;
  }

  // D of a tile.
  __device__ __forceinline__ void run(const lowbit::TileOrigin& place) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum_[i] = chain_[i] = -0.0f;
    Operands operands = next_operands();
    int slice_end = p_.slice;
#pragma unroll 1
    for (int chunk = 0; chunk < p_.chunks; ++chunk) {
      multiply(operands);
      // What the chunk that follows needs, while the products run.
      const int stage = at_.stage;
      load_scales();
      at_.advance(p_.stages);
      if (chunk + 1 < p_.chunks) operands = next_operands();
      cute::warpgroup_wait<0>();
      release(stage);
      promote();
      if (chunk + 1 == slice_end || chunk + 1 == p_.chunks) {
        end_slice();
        slice_end += p_.slice;
      }
    }
    end_tile(place);
  }

 private:
  static constexpr int kSums = BlocksTile::kSide / 2;  // of a lane

  struct Operands {  // descriptors
    uint64_t tokens, weight;
  };

  const BlocksParams& p_;
  const uint8_t* ring_;
  BlocksTile::Fixed& fixed_;
  int thread_, warp_, lane_;
  lowbit::Cursor at_;
  float scale_[2];  // of the sums' tokens
  // Of tokens g (4 i, 4 i + 1) and g + 8, channels 8 i + 2 t (4 i, 4 i + 2) and the next: sums of a
  // chunk, of a slice, of all slices.
  uint32_t acc_[kSums];
  float chain_[kSums], sum_[kSums];

  __device__ int token() const { return 16 * warp_ + lane_ / 4; }
  __device__ void release(int stage) const {
    __syncwarp();
    lowbit::Empty::arrive(&fixed_.empty[stage], lane_, lane_ < p_.cluster);
  }
  __device__ void fence() {
#pragma unroll
    for (uint32_t& x : acc_) cute::warpgroup_fence_operand(x);
  }
  __device__ void load_scales() {
    lowbit::Empty::wait(&fixed_.ready[at_.stage], at_.phase);
    scale_[0] = fixed_.scales[at_.stage][token()],
    scale_[1] = fixed_.scales[at_.stage][token() + 8];
  }
  // Of the stage, when they are there.
  __device__ Operands next_operands() const {
    const uint8_t* const stage = ring_ + at_.stage * BlocksTile::kStageBytes;
    lowbit::Full::wait(&fixed_.full[at_.stage], at_.phase);
    asm volatile("" ::: "memory");  // no product before
    return {descriptor(stage + warp_ / 4 * 64 * BlocksTile::kSide),
            descriptor(stage + BlocksTile::kHalfBytes)};
  }
  __device__ void multiply(const Operands& of) {
    using cute::SM90::GMMA::ScaleOut;
    fence();
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 32 bytes further
      [&]<size_t... I>(std::index_sequence<I...>) {
        cute::SM90::GMMA::MMA_64x128x32_S32S8S8_SS_TN::fma(of.tokens + 2 * k, of.weight + 2 * k,
                                                           acc_[I]...,
                                                           k == 0 ? ScaleOut::Zero : ScaleOut::One);
      }(std::make_index_sequence<kSums>{});
    }
    cute::warpgroup_commit_batch();
  }
  // The sums of a chunk go to their chain.
  __device__ __forceinline__ void promote() {
    fence();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float t = __int2float_rn(static_cast<int32_t>(acc_[i]));
      chain_[i] = __fmaf_rn(scale_[i % 4 / 2], t, chain_[i]);
    }
  }
  __device__ __forceinline__ void end_slice() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sum_[i] = __fadd_rn(sum_[i], chain_[i]);
      chain_[i] = -0.0f;
    }
  }
  // D of the warpgroup's tokens, by way of shared memory.
  __device__ __forceinline__ void end_tile(const lowbit::TileOrigin& place) {
    const int group = warp_ / 4, row = place.row + 64 * group;
    cutlass::arch::NamedBarrier::sync(128, 1 + group);  // the tile before has been read
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const int channel = i / 4 * 8 + lane_ % 4 * 2;
      *reinterpret_cast<float2*>(&fixed_.sum(token() + i % 4 / 2 * 8, channel)) = {sum_[i],
                                                                                   sum_[i + 1]};
    }
    cutlass::arch::NamedBarrier::sync(128, 1 + group);
    finish_tile<BlocksTile::kSide, 128>(
        p_.end, row, place.col, min(64, p_.m - row), thread_ % 128, [&](int token, int channel) {
          return *reinterpret_cast<const float4*>(&fixed_.sum(64 * group + token, channel));
        });
  }
};

// A block, whose shared memory begins at a multiple of 1024 bytes.
__device__ __forceinline__ void multiply_blocks(const BlocksParams& p, uint8_t* shared) {
  using Tile = BlocksTile;
  auto& fixed = *reinterpret_cast<Tile::Fixed*>(shared + p.stages * Tile::kStageBytes);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      lowbit::Full::init(&fixed.full[s], 1);
      lowbit::Empty::init(&fixed.ready[s], 32);
      lowbit::Empty::init(&fixed.empty[s], p.cluster * (Tile::kConsumers / 32));
    }
    cutlass::arch::fence_barrier_init();
  }
  if (p.cluster == 1) {
    __syncthreads();
  } else {
    cluster_sync();  // the other block's barriers are ready
  }
  launch_dependents();
  wait_for_dependencies();
  if (warp < Tile::kConsumers / 32) {
    cutlass::arch::warpgroup_reg_alloc<Tile::kRegisters>();
    BlocksMultiplier multiplier(p, shared, fixed);
    each_tile(p, [&](const lowbit::TileOrigin& place) { multiplier.run(place); });
  } else {
    cutlass::arch::warpgroup_reg_dealloc<Tile::kLoaderRegisters>();
    const int role = warp - Tile::kConsumers / 32;
    if (role > 0) {
      load_scales(p, fixed, role - 1, thread % 32);
    } else if (cute::elect_one_sync()) {
      load_blocks(p, shared, fixed);
    }
  }
  if (p.cluster > 1) cluster_sync();  // the other block may still send to this one
}

}  // namespace scaled_mm::cuda::sm90::k_scales
