// Products of several experts that have many rows each: D = epilogue(A B[e]) of each expert's rows.
//
// Pairs of blocks, a cluster each, stay and go from tile to tile. A tile is kTokens rows of one
// expert by 128 channels; both blocks of a pair have the same rows, so each loads half of them for
// both. Tiles are counted expert by expert, within one down the rows first: pairs that run at the
// same time share an expert's weight and rows in L2.
//
//                rows of expert 0 |  of 1   |        of 2        |     D is 0 there
//               +------+----------+---------+------+------+------+------------------
//    channels   |  0   |    1     |    8    |  12  |  13  |  14  |   tiles of a pair, kTokens rows
//    of a pair  |  2   |    3     |    9    |  15  |  16  |  17  |   each, or as many as there are
//    256 a row  |  4   |    5     |   10    |  ..  |      |      |
//
// Where rows of A lie as those of D do, TMA loads them from any row on: what a tile has of the next
// expert's rows is multiplied and not stored. Where they lie anywhere, small tiles gather them, a
// block all of its own; for larger ones they are copied first (`sorted_rows`). Channels lie on the
// M side of wgmma, tokens on its N side, as in int8_stream.cuh. In a block
//
//    warp 0           loads, by TMA, into a ring of stages of 128 bytes of K
//    warp 1           loads the epilogue's operands of the tiles that come next
//    warp 2           gathers rows of A into the ring
//    warpgroups 1, 2  each multiply and end every other tile: one ends while the other multiplies
#pragma once

#include "cuda/sm90/int8_stream.cuh"

#include <cutlass/arch/reg_reconfig.h>

namespace scaled_mm::cuda::sm90::grouped {

using int8::kChunk;

inline constexpr int kChannels = 128;  // of a block's tile
inline constexpr int kSlice = 16;      // tokens that are ended at a time
inline constexpr int kThreads = 3 * 128;
inline constexpr int kPitch = kChannels + 4;  // words from token to token: other banks

struct PersistentParams {
  CUtensorMap weight;  // of all experts, [E * N, K], in boxes of kChannels x kChunk
  CUtensorMap tokens;  // [M, K] in boxes of half a tile's rows x kChunk; or rows are gathered:
  const int8_t* a;     // null, or rows of K bytes, aligned to 16
  int64_t a_stride;
  int k;
  int n;
  int chunks;  // of K
  int pairs;   // of tiles along N
  int stages;  // of the ring
  EpilogueOperand operands[kNumOperands];
  Destination to;
  ExpertRows groups;
};

template <int kTokens_, class E>
struct PersistentBlock {
  static constexpr int kTokens = kTokens_;
  static_assert(kTokens % kSlice == 0);  // halves have whole eights of rows, a swizzle's group
  static constexpr int kWeightBytes = kChannels * kChunk;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kChunk;
  static constexpr bool kHasMatrix = Lower<E>::List::has_full;
  static constexpr bool kGathers = kTokens <= 32;  // one warp keeps up with the weight's loads
  static constexpr int kLoaderRegisters = kGathers ? 56 : 40;
  static constexpr int kOtherRegisters = kGathers ? 224 : 232;

  struct Fixed {
    StagedOperands<typename Lower<E>::List, kTokens, kChannels> operands[2];  // of a warpgroup each
    alignas(16) int32_t sums[2][kSlice * kPitch];
    alignas(8) uint64_t full[int8::kMaxStages];
    uint64_t empty[int8::kMaxStages];
    uint64_t ready[2], ended[2];  // the operands
    uint64_t multiplied[2];       // a warpgroup's tile: the other's turn
    int tiles[TileTable<kTokens>::ints(kMaxExperts)];
  };

  static constexpr int stages(int bytes) {
    return std::min<int>((bytes - static_cast<int>(sizeof(Fixed))) / kStageBytes, int8::kMaxStages);
  }
  static constexpr int shared_bytes(int stages) {
    return stages * kStageBytes + static_cast<int>(sizeof(Fixed));
  }
};

// The tiles of a pair of blocks, in turn.
template <class Block>
struct Walk : ExpertTile {
  const PersistentParams& p;
  const TileTable<Block::kTokens> tiles;
  int turn = -1;
  int col = 0;  // the first channel of this block

  __device__ Walk(const PersistentParams& params, typename Block::Fixed& fixed)
      : ExpertTile{}, p(params), tiles(fixed.tiles, params.groups.experts) {}

  __device__ bool next() {
    const int tile = static_cast<int>(blockIdx.x) / 2 + ++turn * static_cast<int>(gridDim.x) / 2;
    if (tile >= tiles.count() * p.pairs) return false;
    int pair;
    static_cast<ExpertTile&>(*this) = tiles.find(tile, p.pairs, pair);
    col = (2 * pair + static_cast<int>(blockIdx.x) % 2) * kChannels;
    return true;
  }
  __device__ bool has_products() const { return expert < p.groups.experts; }
};

template <class Block>
__device__ void load_tiles(const PersistentParams& p, uint8_t* ring, typename Block::Fixed& fixed) {
  const int half = static_cast<int>(blockIdx.x) % 2 * (Block::kTokens / 2);
  int stage = 0, phase = 1;
  for (Walk<Block> at(p, fixed); at.next();) {
    if (!at.has_products()) continue;
    const auto hint = static_cast<uint64_t>(at.alone ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                                     : cute::TMA::CacheHintSm90::EVICT_LAST);
    const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      cutlass::arch::ClusterBarrier::wait(&fixed.empty[stage], phase);  // in both blocks
      uint64_t* const full = &fixed.full[stage];
      const bool gathers = Block::kGathers && p.a != nullptr;
      cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(
          full, gathers ? Block::kWeightBytes : Block::kStageBytes);
      uint8_t* const to = ring + stage * Block::kStageBytes;
      cute::SM90_TMA_LOAD_2D::copy(&p.weight, full, hint, to, chunk * kChunk,
                                   at.expert * p.n + at.col);
      if (!gathers) {
        cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&p.tokens, full, uint16_t{3}, often,
                                               to + Block::kWeightBytes + half * kChunk,
                                               chunk * kChunk, at.row + half);
      }
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
  }
}

// A whole warp: eight lanes copy the 128 bytes of a row.
template <class Block>
__device__ void gather_tiles(const PersistentParams& p, uint8_t* ring, typename Block::Fixed& fixed,
                             int lane) {
  constexpr int kCopies = Block::kTokens / 4;  // of a lane, in a chunk
  int stage = 0, phase = 1;
  for (Walk<Block> at(p, fixed); at.next();) {
    if (!at.has_products()) continue;
    int source[kCopies];  // -1: not there
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = at.row + 4 * i + lane / 8;
      source[i] = row < at.end ? p.groups.source(row) : -1;
    }
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      cutlass::arch::ClusterBarrier::wait(&fixed.empty[stage], phase);
      uint8_t* const to = ring + stage * Block::kStageBytes + Block::kWeightBytes;
      int8::copy_rows(p.a, p.a_stride, p.k, chunk, source, to, lane);
      cutlass::arch::cpasync_barrier_arrive_noinc(&fixed.full[stage]);
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
  }
}

template <class Block>
__device__ void load_operands(const PersistentParams& p, typename Block::Fixed& fixed, int lane) {
  for (Walk<Block> at(p, fixed); at.next();) {
    if (!at.has_products()) continue;
    const int whose = at.turn % 2, phase = at.turn / 2 & 1;
    cutlass::arch::ClusterBarrier::wait(&fixed.ended[whose], phase ^ 1);
    fixed.operands[whose].load(p.operands, at.row, at.col, at.end, p.n, lane, 32,
                               ExpertElements{p.groups, at.expert});
    cutlass::arch::ClusterBarrier::arrive(&fixed.ready[whose]);
  }
}

// put(word, sum) of a thread's sums of tokens [kSlice * slice, + kSlice). Registers have no index:
// this is how a loop takes some of them in turn.
template <int kFirst, int kCount, int kSums, class Put>
__device__ inline void with_slice(int slice, const int32_t (&sums)[2][kSums], const Put& put) {
  if constexpr (kCount > 1) {
    if (slice < kFirst + kCount / 2) {
      with_slice<kFirst, kCount / 2>(slice, sums, put);
    } else {
      with_slice<kFirst + kCount / 2, kCount - kCount / 2>(slice, sums, put);
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kSlice / 8; ++i) {
        const int32_t* const four = sums[half] + 4 * (kFirst * (kSlice / 8) + i);
        const int word = half * 64 + 8 * i * kPitch;
        put(word, four[0]), put(word + kPitch, four[1]);
        put(word + 8, four[2]), put(word + kPitch + 8, four[3]);
      }
    }
  }
}

// Ends a warpgroup's tile: a slice of tokens goes through shared memory, from where a thread takes
// four channels of a token, a warp all 128.
template <class Block, class E>
__device__ void end_tile(const PersistentParams& p, const Walk<Block>& at,
                         const int32_t (&sums)[2][Block::kTokens / 2], typename Block::Fixed& fixed,
                         int whose, int thread) {
  constexpr int kItems = kSlice / 4;  // of a thread
  const auto& operands = fixed.operands[whose];
  int32_t* const shared = fixed.sums[whose];
  const int warp = thread / 32, lane = thread % 32;
  const int first_word = 16 * warp + lane / 4 + lane % 4 * 2 * kPitch;
  const int tokens = min(Block::kTokens, at.end - at.row);
  const int channel = 4 * lane, inside = p.n - at.col - channel;
#pragma unroll 1
  for (int slice = 0; slice * kSlice < tokens; ++slice) {
    cutlass::arch::NamedBarrier::sync(128, 1 + whose);  // the slice before has been read
    with_slice<0, Block::kTokens / kSlice>(
        slice, sums, [&](int word, int32_t sum) { shared[first_word + word] = sum; });
    cutlass::arch::NamedBarrier::sync(128, 1 + whose);
    if (inside <= 0) continue;
    float matrix[kItems][4];
    if constexpr (Block::kHasMatrix) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int token = slice * kSlice + 4 * i + warp;
        if (token < tokens) {
          load_elements<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)],
                                            at.row + token, at.col + channel, inside, matrix[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int in_slice = 4 * i + warp, token = slice * kSlice + in_slice;
      if (token >= tokens) break;
      const int4 four = *reinterpret_cast<const int4*>(shared + in_slice * kPitch + channel);
      const int32_t acc[4] = {four.x, four.y, four.z, four.w};
      const auto get = [&](auto leaf, int e) {
        using L = decltype(leaf);
        if constexpr (L::axis == epilogue::Axis::Full) {
          return matrix[i][e];
        } else {
          return operands.at(leaf, token, channel + e);
        }
      };
      finish_four<E>(p.to, acc, at.row + token, at.col + channel, inside, get);
    }
  }
}

template <class Block, class E>
__device__ void multiply_tiles(const PersistentParams& p, uint8_t* ring,
                               typename Block::Fixed& fixed, int whose, int thread) {
  constexpr int kTokens = Block::kTokens;
  const bool gathers = Block::kGathers && p.a != nullptr;
  const int lane = thread % 32;
  const auto release = [&](int stage) {  // in both blocks, which both load it
    cutlass::arch::ClusterBarrier::arrive(&fixed.empty[stage], lane % 2, lane < 2);
  };
  int64_t loaded = 0;  // chunks before the tile's
  for (Walk<Block> at(p, fixed); at.next();) {
    const int64_t begin = loaded;
    if (at.has_products()) loaded += p.chunks;
    if (at.turn % 2 != whose) continue;
    if (!at.has_products()) {  // nor have those that follow
      clear<E>(p.to, at.row, min(at.row + kTokens, at.end), at.col,
               min(kChannels, max(p.n - at.col, 0)), thread, 128);
      continue;
    }
    // A barrier's parity tells of one phase: before the tile ahead is multiplied, a stage's may be
    // that of the round before.
    if (at.turn > 0) {
      cutlass::arch::ClusterBarrier::wait(&fixed.multiplied[1 - whose], (at.turn - 1) / 2 & 1);
    }
    int stage = static_cast<int>(begin % p.stages), phase = static_cast<int>(begin / p.stages & 1);
    int32_t sums[2][kTokens / 2] = {};
    int before = -1;  // the stage whose wgmma may still be reading
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      cutlass::arch::ClusterBarrier::wait(&fixed.full[stage], phase);
      if (gathers) cutlass::arch::fence_view_async_shared();  // what lanes copied
      const uint8_t* const weight = ring + stage * Block::kStageBytes;
      const uint64_t low = descriptor(weight), high = descriptor(weight + 64 * kChunk);
      const uint64_t tokens = descriptor(weight + Block::kWeightBytes);
      cute::warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < kChunk / 32; ++k) {  // 32 bytes further
        int8::multiply_add<kTokens>(sums[0], low + 2 * k, tokens + 2 * k);
        int8::multiply_add<kTokens>(sums[1], high + 2 * k, tokens + 2 * k);
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<1>();
      if (before >= 0) release(before);
      before = stage;
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    if (lane == 0) cutlass::arch::ClusterBarrier::arrive(&fixed.multiplied[whose]);
    cute::warpgroup_wait<0>();
    if (before >= 0) release(before);
    cutlass::arch::ClusterBarrier::wait(&fixed.ready[whose], at.turn / 2 & 1);
    end_tile<Block, E>(p, at, sums, fixed, whose, thread);
    __syncwarp();
    if (lane == 0) cutlass::arch::ClusterBarrier::arrive(&fixed.ended[whose]);
  }
}

template <class Block, class E>
__global__ __launch_bounds__(kThreads,
                             1) void persistent_gemm(const __grid_constant__ PersistentParams p) {
  extern __shared__ __align__(1024) uint8_t ring[];
  auto& fixed = *reinterpret_cast<typename Block::Fixed*>(ring + p.stages * Block::kStageBytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  launch_dependents();
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      cutlass::arch::ClusterBarrier::init(&fixed.full[s], Block::kGathers && p.a ? 1 + 32 : 1);
      cutlass::arch::ClusterBarrier::init(&fixed.empty[s], 2 * 4);  // a warpgroup's in both blocks
    }
    for (int i = 0; i < 2; ++i) {
      cutlass::arch::ClusterBarrier::init(&fixed.ready[i], 32);
      cutlass::arch::ClusterBarrier::init(&fixed.ended[i], 4);
      cutlass::arch::ClusterBarrier::init(&fixed.multiplied[i], 4);
    }
    cutlass::arch::fence_barrier_init();
  }
  wait_for_dependencies();
  TileTable<Block::kTokens>(fixed.tiles, p.groups.experts).fill(p.groups, thread, kThreads);
  cluster_sync();  // the other block's barriers are ready
  if (warp < 4) {
    cutlass::arch::warpgroup_reg_dealloc<Block::kLoaderRegisters>();
    if (thread == 0) load_tiles<Block>(p, ring, fixed);
    if (warp == 1) load_operands<Block>(p, fixed, thread % 32);
    if constexpr (Block::kGathers) {
      if (warp == 2 && p.a != nullptr) gather_tiles<Block>(p, ring, fixed, thread % 32);
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<Block::kOtherRegisters>();
    multiply_tiles<Block, E>(p, ring, fixed, warp / 4 - 1, thread % 128);
  }
  cluster_sync();  // the other block may still send to this one, or tell it what it has done
}

}  // namespace scaled_mm::cuda::sm90::grouped
