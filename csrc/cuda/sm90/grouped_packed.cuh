// D = f(X W + bias + residual) of each expert's rows, W packed in units: lowbit_packed.cuh with the
// rows of one expert in a tile.
//
// Blocks take whole tiles in turn, all channels of a tile's rows one behind the other: those that
// run at the same time share rows of X and a weight. Where the tiles are they read from the offsets
// once (TileTable). Rows of X may lie anywhere, so a warpgroup copies them; one thread of it sends
// for the weight, as there.
#pragma once

#include "cuda/common/expert_rows.cuh"
#include "cuda/sm90/lowbit_packed.cuh"

namespace scaled_mm::cuda::sm90::grouped_lowbit {

using lowbit::Cursor;
using lowbit::Empty;
using lowbit::Full;

// units are the first expert's, end.bias has a row for each; tokens, m, token_tiles, plan and
// partials are not used.
struct GroupedParams : lowbit::PackedParams {
  int64_t expert_bytes;      // of the units, to the next expert's
  Matrix<const uint16_t> x;  // rows at multiples of 16 bytes
  int k;
  int chunks;
  int channel_tiles;  // tiles of D along N
  ExpertRows groups;
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
      const ExpertTile rows = table.find(tile / p_.channel_tiles);
      const int col = tile % p_.channel_tiles * Block::kChannels;
      const uint8_t* const units = p_.units + rows.expert * p_.expert_bytes;
#pragma unroll 1
      for (int piece = 0; piece < p_.chunks * Block::kPieces; ++piece) {
        uint64_t* const full = &barriers_.full[at.stage];
        Empty::wait(&barriers_.empty[at.stage], at.phase);
        if (thread_ == 0) {
          send_units(units, col, piece, words_ + at.stage * Block::kWordBytes, full, rows.alone);
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

  // Sends for a stage's units of the tile that begins at column `col`, and announces their bytes.
  __device__ void send_units(const uint8_t* units, int col, int piece, uint8_t* to, uint64_t* full,
                             bool once) const {
    const int chunk = piece / Block::kPieces, part = piece % Block::kPieces;
    const int panel = col / kUnitChannels, here = min(Block::kAllPanels, p_.panels - panel);
    const int unit_bytes = Block::unit_bytes(p_.sets), piece_bytes = Block::piece_bytes(p_.sets);
    const uint8_t* from = units + (int64_t{chunk} * p_.panels + panel) * unit_bytes;
    using Hint = cute::TMA::CacheHintSm90;
    const auto hint = static_cast<uint64_t>(once ? Hint::EVICT_FIRST : Hint::EVICT_LAST);
    const auto copy = [&](uint8_t* there, const uint8_t* source, int bytes) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
          " [%0], [%1], %2, [%3], %4;" ::"r"(cute::cast_smem_ptr_to_uint(there)),
          "l"(source), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(full)), "l"(hint)
          : "memory");
    };
    Full::arrive_and_expect_tx(full, here * piece_bytes);
    if constexpr (Block::kPieces == 1) {
      copy(to, from, here * unit_bytes);
    } else {
#pragma unroll 1
      for (int i = 0; i < here; ++i, from += unit_bytes, to += piece_bytes) {
        copy(to, from + part * Block::kPieceWords, Block::kPieceWords);
        copy(to + Block::kPieceWords, from + Block::Format::kWordBytes, Block::set_bytes(p_.sets));
      }
    }
  }

  // In boxes of 64 columns, to where TMA's swizzle would have them: eight lanes copy 128 bytes of a
  // token. What is not there is zeros, and not read.
  __device__ void copy_tokens(const ExpertTile& rows, int piece, uint8_t* stage) const {
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
__device__ void clear(const GroupedParams& p, const ExpertTile& rows, int col) {
  const int tokens = min(Block::kTokens, rows.end - rows.row);
  const int pairs = min(Block::kChannels, p.n - col) / 2;
  lowbit::store_pairs<T>(p.end, [&](const auto& store) {
    for (int i = static_cast<int>(threadIdx.x); i < tokens * pairs; i += Block::kConsumers) {
      store(rows.row + i / pairs, col + i % pairs * 2, 0.0f, 0.0f);
    }
  });
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
    lowbit::PackedMultiplier<T, Block> multiplier(p, shared, words, barriers);
    int tile = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (; tile < table.of_experts() * p.channel_tiles; tile += gridDim.x) {
      typename lowbit::PackedMultiplier<T, Block>::Sums sums = {};
      multiplier.run(sums, 0, p.chunks);
      const ExpertTile rows = table.find(tile / p.channel_tiles);  // here: or registers would spill
      const int col = tile % p.channel_tiles * Block::kChannels;
      lowbit::end_tile<T, Block>(p.end, sums, rows.row, rows.end, col, p.n, rows.expert);
    }
#pragma unroll 1
    for (; tile < table.count() * p.channel_tiles; tile += gridDim.x) {
      const ExpertTile rows = table.find(tile / p.channel_tiles);
      clear<T, Block>(p, rows, tile % p.channel_tiles * Block::kChannels);
    }
  }
}

}  // namespace scaled_mm::cuda::sm90::grouped_lowbit
