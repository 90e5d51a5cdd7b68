// Of Hopper, what kernels take from CUTLASS: barriers, copies by TMA, wgmma with its first operand
// in registers. Copies and products are done where they are asked for.
#pragma once

#include "block.h"

#include <cstring>

// --- memory --------------------------------------------------------------------------------------

struct CUtensorMap {
  const int8_t* data;
  int rows, cols;
  int64_t row_stride;
  int box_rows;
};

// The shared memory of a cluster's blocks, aligned to 1024, and the running one's.
inline uint8_t* played_memory[2] = {};
struct PlayedShared {
  operator uint8_t*() const { return played_memory[Block::rank()]; }
} inline played_shared;

namespace cute {
inline uint32_t cast_smem_ptr_to_uint(const void* at) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(at) - played_shared);
}
inline bool elect_one_sync() { return threadIdx.x % 32 == 0; }
inline uint32_t set_block_rank(uint32_t address, int) { return address; }
inline void cluster_arrive() {}
inline void cluster_wait() { Block::meet_cluster(); }
inline void prefetch_tma_descriptor(const CUtensorMap*) {}
// Where a byte is that TMA or wgmma place at an address, in rows of 128.
inline uint8_t* swizzled(uint32_t address, int rank = Block::rank()) {
  return played_memory[rank] + (address ^ (address >> 7 & 7) << 4);
}
}  // namespace cute

// --- barriers ------------------------------------------------------------------------------------

struct PlayedBarrier {
  int threads = 0, missing = 0, bytes = 0, phase = 0;
};
inline std::map<const uint64_t*, PlayedBarrier> played_barriers;

namespace cutlass::arch {
struct ClusterBarrier {
  static void init(uint64_t* at, int threads) { played_barriers[at] = {threads, threads, 0, 0}; }
  static void arrive(uint64_t* at) { change(at, 1, 0); }
  static void arrive(uint64_t* at, int rank, bool does) {
    if (does) change(of(at, rank), 1, 0);
  }
  static uint64_t* of(uint64_t* at, int rank) {  // the same one of another block
    const auto* const byte = reinterpret_cast<uint8_t*>(at);
    return reinterpret_cast<uint64_t*>(played_memory[rank] + (byte - played_shared));
  }
  static void wait(uint64_t* at, int phase) {
    Block::wait([&] { return played_barriers[at].phase != phase; });
  }
  static void change(uint64_t* at, int threads, int bytes) {
    PlayedBarrier& barrier = played_barriers[at];
    barrier.missing -= threads, barrier.bytes += bytes;
    if (barrier.missing < 0) {
      std::puts("more arrive at a barrier than it waits for");
      std::exit(1);
    }
    if (barrier.missing > 0 || barrier.bytes != 0) return;
    barrier.phase ^= 1, barrier.missing = barrier.threads;
  }
};
struct ClusterTransactionBarrier : ClusterBarrier {
  static void arrive_and_expect_tx(uint64_t* at, int bytes) { change(at, 1, bytes); }
};
struct NamedBarrier {
  static void sync(int threads, int id) { Block::meet(2000 + id, threads); }
};
inline void fence_barrier_init() {}
inline void fence_view_async_shared() {}
template <int>
void warpgroup_reg_alloc() {}
template <int>
void warpgroup_reg_dealloc() {}
}  // namespace cutlass::arch

// --- copies --------------------------------------------------------------------------------------

namespace cute {
namespace TMA {
enum class CacheHintSm90 : uint64_t { EVICT_FIRST, EVICT_LAST };
}
struct SM90_TMA_LOAD_MULTICAST_2D {
  static void copy(const CUtensorMap* map, uint64_t* full, uint16_t ranks, uint64_t, void* to,
                   int x, int y) {
    for (int rank = 0; rank < 2; ++rank) {
      if (ranks >> rank & 1) copy_to(rank, map, full, to, x, y);
    }
  }
  static void copy_to(int rank, const CUtensorMap* map, uint64_t* full, void* to, int x, int y) {
    for (int row = 0; row < map->box_rows; ++row) {
      for (int byte = 0; byte < 128; ++byte) {
        const bool there = y + row < map->rows && x + byte < map->cols;
        const int8_t value = there ? map->data[(y + row) * map->row_stride + x + byte] : 0;
        *swizzled(cast_smem_ptr_to_uint(to) + 128 * row + byte, rank) = static_cast<uint8_t>(value);
      }
    }
    using cutlass::arch::ClusterBarrier;
    ClusterBarrier::change(ClusterBarrier::of(full, rank), 0, -128 * map->box_rows);
  }
};
struct SM90_TMA_LOAD_2D {
  static void copy(const CUtensorMap* map, uint64_t* full, uint64_t, void* to, int x, int y) {
    SM90_TMA_LOAD_MULTICAST_2D::copy_to(Block::rank(), map, full, to, x, y);
  }
};

// --- products ------------------------------------------------------------------------------------

inline void warpgroup_arrive() {}
inline void warpgroup_commit_batch() {}
template <int>
void warpgroup_wait() {}
template <class T>
void warpgroup_fence_operand(T&) {}

namespace SM90::GMMA {
enum class ScaleOut { Zero, One };
inline uint32_t played_weights[2048][4];

// Lane 4 g + t of a warp has bytes [4 t, 4 t + 4) and those 16 further on of rows g and g + 8, and
// their sums with tokens 8 i + 2 t and the next.
template <int kTokens>
struct Played {
  template <size_t... I, class... Rest>
  static void run(uint64_t tokens, std::index_sequence<I...>, Rest&&... rest) {
    const auto all = std::forward_as_tuple(rest...);
    uint32_t* const sums[] = {&std::get<I>(all)...};
    const bool adds = std::get<sizeof...(I)>(all) == ScaleOut::One;
    const int first = Block::self() / 32 * 32, lane = threadIdx.x % 32;
    const auto base = static_cast<uint32_t>(tokens & 0x3fff) << 4;
    for (int i = 0; i < kTokens / 2; ++i) {
      const int row = lane / 4, upper = i % 4 / 2, token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      int32_t sum = adds ? static_cast<int32_t>(*sums[i]) : 0;
      for (int k = 0; k < 32; ++k) {
        const uint32_t word = played_weights[first + 4 * row + k % 16 / 4][k / 16 * 2 + upper];
        const auto value = static_cast<int8_t>(word >> k % 4 * 8);
        sum += value * static_cast<int8_t>(*swizzled(base + 128 * token + k));
      }
      *sums[i] = static_cast<uint32_t>(sum);
    }
  }
  template <class... Rest>
  static void fma(uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t tokens,
                  Rest&&... rest) {
    const int group = threadIdx.x / 128;
    const uint32_t mine[] = {a0, a1, a2, a3};
    std::copy(mine, mine + 4, played_weights[Block::self()]);
    Block::meet(1000 + group, 128);
    run(tokens, std::make_index_sequence<kTokens / 2>{}, rest...);
    Block::meet(1000 + group, 128);
  }
};
// The same with the first operand in shared memory: 64 rows, 16 of each warp.
template <int kTokens>
struct PlayedFromShared {
  template <class... Rest>
  static void fma(uint64_t rows, uint64_t tokens, Rest&&... rest) {
    const auto base = static_cast<uint32_t>(rows & 0x3fff) << 4;
    uint32_t mine[4];
    for (int i = 0; i < 4; ++i) {
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + i % 2 * 8 + lane / 4;
      for (int byte = 0; byte < 4; ++byte) {
        const int k = i / 2 * 16 + lane % 4 * 4 + byte;
        reinterpret_cast<uint8_t*>(&mine[i])[byte] = *swizzled(base + 128 * row + k);
      }
    }
    Played<kTokens>::fma(mine[0], mine[1], mine[2], mine[3], tokens, rest...);
  }
};
using MMA_64x128x32_S32S8S8_SS_TN = PlayedFromShared<128>;
using MMA_64x8x32_S32S8S8_RS_TN = Played<8>;
using MMA_64x16x32_S32S8S8_RS_TN = Played<16>;
using MMA_64x32x32_S32S8S8_RS_TN = Played<32>;
using MMA_64x64x32_S32S8S8_RS_TN = Played<64>;
using MMA_64x128x32_S32S8S8_RS_TN = Played<128>;
}  // namespace SM90::GMMA
}  // namespace cute
