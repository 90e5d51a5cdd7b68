// D = f(X W + bias + residual) of each expert's rows, W packed in units: lowbit_packed.cuh with the
// rows of one expert in a tile.
//
// Blocks take whole tiles in turn, all channels of a tile's rows one behind the other: those that
// run at the same time share rows of X and a weight. Where the tiles are they read from the offsets
// once (TileTable). Rows of X may lie anywhere, so a warpgroup copies them; one thread of it sends
// for the weight, as there.
#pragma once

#include "cuda/common/groups.cuh"
#include "cuda/sm90/lowbit_packed.cuh"

namespace scaled_mm::cuda::sm90::grouped_lowbit {

using lowbit::Cursor;
using lowbit::Empty;
using lowbit::Full;

struct GroupedParams {
  const uint8_t* units;      // [chunks][panels] of the first expert
  int64_t expert_bytes;      // to the next one's
  int sets;                  // of a unit
  Matrix<const uint16_t> x;  // rows at multiples of 16 bytes
  int k;
  int n;
  int chunks;
  int panels;
  int channel_tiles;  // tiles of D along N
  int stages;         // of the ring
  Groups groups;
  LowbitEnd end;
};

template <const lowbit::Packed& kTile, class Format, int kSets>
struct GroupedBlock : lowbit::PackedBlock<kTile, Format, kSets> {
  using Base = lowbit::PackedBlock<kTile, Format, kSets>;
  static constexpr bool kCopies = true;
  static constexpr int kLoaders = Base::kThreads - Base::kConsumers;
  static_assert(kLoaders == 128);
  static constexpr int table_bytes(int experts) {
    return TileTable<Base::kTokens>::ints(experts) * static_cast<int>(sizeof(int));
  }
};

template <class Block>
class GroupedLoader {
 public:
  using Table = TileTable<Block::kTokens>;

  __device__ GroupedLoader(const GroupedParams& p, uint8_t* tokens, uint8_t* words,
                           typename Block::Barriers& barriers)
      : p_(p),
        tokens_(tokens),
        words_(words),
        barriers_(barriers),
        thread_(static_cast<int>(threadIdx.x) - Block::kConsumers) {}

  __device__ void run(const Table& table) const {
    const int tiles = table.of_experts() * p_.channel_tiles;
    Cursor at{.phase = 1};
#pragma unroll 1
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += gridDim.x) {
      const GroupTile rows = table.find(tile / p_.channel_tiles);
      const int col = tile % p_.channel_tiles * Block::kChannels;
      const uint8_t* const units = p_.units + rows.expert * p_.expert_bytes;
#pragma unroll 1
      for (int piece = 0; piece < p_.chunks * Block::kPieces; ++piece) {
        uint64_t* const full = &barriers_.full[at.stage];
        Empty::wait(&barriers_.empty[at.stage], at.phase);
        if (thread_ == 0) {
          lowbit::send_units<Block>(units, p_.panels, p_.sets, col, piece,
                                    words_ + at.stage * Block::kWordBytes, full, 0,
                                    rows.alone ? lowbit::kOnce : lowbit::kOften);
        }
        copy_tokens(rows, piece, tokens_ + at.stage * Block::kTokenBytes);
        cutlass::arch::cpasync_barrier_arrive_noinc(full);
        at.advance(p_.stages);
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  const GroupedParams& p_;
  uint8_t* tokens_;
  uint8_t* words_;
  typename Block::Barriers& barriers_;
  int thread_;

  // In boxes of 64 columns, to where TMA's swizzle would have them: eight lanes copy 128 bytes of a
  // token. What is not there is zeros, and not read.
  __device__ void copy_tokens(const GroupTile& rows, int piece, uint8_t* stage) const {
    constexpr int kLines = Block::kTokens * Block::kRows / 64, kCopies = kLines / 16;
    // Or registers would spill.
    constexpr int kTogether = Block::kLive == 2 ? 1 : std::min(kCopies, 4);
    static_assert(kLines % 16 == 0 && kCopies % kTogether == 0);
    const int part = thread_ % 8;  // of 16 bytes
#pragma unroll 1
    for (int begin = 0; begin < kCopies; begin += kTogether) {
      int source[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = rows.row + ((begin + i) * 16 + thread_ / 8) % Block::kTokens;
        source[i] = row < rows.end ? p_.groups.source(row) : -1;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int line = (begin + i) * 16 + thread_ / 8;
        const int column = piece * Block::kRows + line / Block::kTokens * 64 + part * 8;
        const int bytes = source[i] < 0 ? 0 : min(max(2 * (p_.k - column), 0), 16);
        const uint16_t* const from =
            bytes > 0 ? p_.x.data + source[i] * p_.x.row_stride + column : p_.x.data;
        const uint32_t to =
            cute::cast_smem_ptr_to_uint(stage + line * 128) + (part ^ line % 8) * 16;
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes)
                     : "memory");
      }
    }
  }
};

// Rows that are no expert's: D is 0 there.
template <class T, class Block>
__device__ void clear(const GroupedParams& p, const GroupTile& rows, int col) {
  const int tokens = min(Block::kTokens, rows.end - rows.row);
  const int pairs = min(Block::kChannels, p.n - col) / 2;
  for (int i = static_cast<int>(threadIdx.x); i < tokens * pairs; i += Block::kConsumers) {
    lowbit::store_pair<T>(p.end, rows.row + i / pairs, col + i % pairs * 2, 0.0f, 0.0f);
  }
}

template <class T, class Block>
__global__ __launch_bounds__(Block::kThreads, Block::kLive) void stream_grouped(
    const __grid_constant__ GroupedParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const words = shared + p.stages * Block::kTokenBytes;
  auto& barriers =
      *reinterpret_cast<typename Block::Barriers*>(words + p.stages * Block::kWordBytes);
  TileTable<Block::kTokens> table(reinterpret_cast<int*>(&barriers + 1), p.groups.experts);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);

  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 1 + Block::kLoaders);
      Empty::init(&barriers.empty[s], Block::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  launch_dependents();
  wait_for_dependencies();
  table.fill(p.groups, thread, Block::kThreads);

  if (warp >= Block::kConsumers / 32) {
    // --- the loaders ---
    cutlass::arch::warpgroup_reg_dealloc<Block::kLoaderRegisters>();
    GroupedLoader<Block>(p, shared, words, barriers).run(table);
  } else {
    // --- a multiplier ---
    cutlass::arch::warpgroup_reg_alloc<Block::kRegisters>();
    lowbit::PackedMultiplier<T, Block> multiplier(p.stages, p.sets, shared, words, barriers);
    int tile = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (; tile < table.of_experts() * p.channel_tiles; tile += gridDim.x) {
      typename lowbit::PackedMultiplier<T, Block>::Sums sums = {};
      multiplier.run(sums, 0, p.chunks);
      const GroupTile rows = table.find(tile / p.channel_tiles);  // here: or registers would spill
      const int col = tile % p.channel_tiles * Block::kChannels;
      lowbit::store_whole<T, Block>(p.end, rows.row, rows.end, col, p.n, rows.expert, sums);
    }
#pragma unroll 1
    for (; tile < table.count() * p.channel_tiles; tile += gridDim.x) {
      const GroupTile rows = table.find(tile / p.channel_tiles);
      clear<T, Block>(p, rows, tile % p.channel_tiles * Block::kChannels);
    }
  }
}

}  // namespace scaled_mm::cuda::sm90::grouped_lowbit
