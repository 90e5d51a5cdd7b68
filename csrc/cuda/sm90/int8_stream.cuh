// D = epilogue(A B) for few tokens, where reading the weight is what takes the time.
//
// The weight's channels lie on the M side of wgmma (64 rows an instruction), the tokens on its N
// side (as few as 8), so no tensor-core work is padded beyond that:
//
//                 kTokens                    A block owns kChannels x kTokens of D^T, over one
//               +---------+  A^T             slice of K. The blocks of a cluster own the slices of
//               |    |    |                  one tile: each leaves its int32 sums in its shared
//            K  |  slice  | of block 1       memory, then every block reads its share of the tile
//               |    |    |                  from all of them and runs the epilogue on it, once
//               |    |    |                  (a small tile's go to the first block, which runs it).
//               +---------+                  Integer sums are associative: no bit depends on the
//      +------+-+---------+                  cut. Nothing but D is written to memory.
//      |slice |           |
//  B^T |block |     D^T   | kChannels        One warp feeds a ring of stages by TMA (128 bytes of K
//      |  1   |           |                  of every row, 128-byte swizzle); kGroups warpgroups
//      +------+-----------+                  multiply, 64 channels each.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>
#include <utility>

#include "cuda/common/launch.cuh"
#include "cuda/sm90/int8_stream_block.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::int8 {

inline constexpr int kPrefetch = 2;  // chunks, sent for to L2 before the kernel may read

template <int kTokens>
__device__ inline void multiply_add(int32_t (&sums)[kTokens / 2], uint64_t weight,
                                    uint64_t tokens) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    Mma<kTokens>::fma(weight, tokens, reinterpret_cast<uint32_t&>(sums[I])...,
                      cute::SM90::GMMA::ScaleOut::One);
  }(std::make_index_sequence<kTokens / 2>{});
}

// Sends for the tile's elements of a matrix operand to L2, token by token: those that lie in one of
// the `sharers` blocks' share of the tile.
template <class Block, class End>
__device__ void prefetch_matrix(const StreamParams& p, int row, const End& end, int col, int share,
                                int sharers, int thread) {
  constexpr int kLine = 128;  // bytes
  const EpilogueOperand& of = p.operands[static_cast<int>(Operand::residual)];
  const int size = of.dtype == DType::float32 ? 4 : 2, tokens = min(p.rows, end() - row);
  const int lines = (min(Block::kChannels, p.n - col) * size + kLine - 1) / kLine;
  for (int i = share * Block::kConsumers + thread; i < tokens * lines;
       i += sharers * Block::kConsumers) {
    const int64_t at = (row + i / lines) * of.row_stride + col;
    const char* const from = static_cast<const char*>(of.data) + at * size + i % lines * kLine;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
}

// Copies chunk `chunk` of rows of A, rows 4 i + lane / 8 being those that source[i] names (-1:
// none, zeros), to where TMA's swizzle has them. A whole warp: eight lanes copy the 128 bytes of a
// row.
template <int kCopies>
__device__ inline void copy_rows(const int8_t* a, int64_t a_stride, int k, int chunk,
                                 const int (&source)[kCopies], uint8_t* to, int lane) {
  const int piece = lane % 8;  // of 16 bytes
  const int at = chunk * kChunk + 16 * piece, there = min(max(k - at, 0), 16);
  const int8_t* const from = a + (there > 0 ? at : 0);
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int token = 4 * i + lane / 8;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     cute::cast_smem_ptr_to_uint(to + token * kChunk + (piece ^ token % 8) * 16)),
                 "l"(from + max(source[i], 0) * a_stride), "r"(source[i] < 0 ? 0 : there)
                 : "memory");
  }
}

// The loader of a grouped product: a whole warp.
template <class Block, class SendWeight>
__device__ void load_rows(const GroupedParams& p, const ExpertTile& place, int first, int last,
                          uint8_t* ring, typename Block::Fixed& fixed, int lane,
                          const SendWeight& send_weight) {
  constexpr int kCopies = Block::kTokens / 4;            // of a lane, in a chunk
  constexpr int kTogether = kCopies > 12 ? 8 : kCopies;  // or registers would spill
  int stage = 0, phase = 1;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    cutlass::arch::ClusterBarrier::wait(&fixed.empty[stage], phase);
    if (lane == 0) send_weight(chunk, stage);
    uint8_t* const to = ring + stage * Block::kStageBytes + Block::kWeightBytes;
#pragma unroll 1
    for (int begin = 0; begin < kCopies; begin += kTogether) {
      int source[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = place.row + 4 * (begin + i) + lane / 8;
        source[i] = row < place.end ? p.groups.source(row) : -1;
      }
      copy_rows(p.a, p.a_stride, p.k, chunk, source, to + 4 * begin * kChunk, lane);
    }
    cutlass::arch::cpasync_barrier_arrive_noinc(&fixed.full[stage]);
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

template <class Block, class E, class Params>
__global__ __launch_bounds__(Block::kThreads) void stream_gemm(const __grid_constant__ Params p) {
  constexpr bool kGrouped = std::is_same_v<Params, GroupedParams>;
  constexpr int kTokens = Block::kTokens, kGroups = Block::kGroups;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  extern __shared__ __align__(1024) uint8_t ring[];
  auto& fixed = *reinterpret_cast<typename Block::Fixed*>(ring + Block::ring_bytes(p.stages));

  // --- which tile, which slice of K ---
  const int split = static_cast<int>(cute::cluster_shape().x);
  const int slice = static_cast<int>(cute::block_rank_in_cluster());
  const int tile = static_cast<int>(blockIdx.x) / split;
  [[maybe_unused]] ExpertTile place = {};
  if constexpr (kGrouped) {  // tokens and offsets may be the kernel before's
    launch_dependents();
    wait_for_dependencies();
    place = find_tile<kTokens>(p.groups, tile % p.token_tiles, threadIdx.x % 32);
    if (place.expert < 0) return;  // all blocks of the cluster do
    if (place.expert == p.groups.experts) {
      const int channel = tile / p.token_tiles * Block::kChannels;
      clear<E>(p.to, place.row, min(place.row + kTokens, place.end), channel,
               min(Block::kChannels, p.n - channel), threadIdx.x, Block::kThreads);
      return;
    }
  }
  const int row = kGrouped ? place.row : tile % p.token_tiles * p.rows;  // first token
  const auto end = [&] { return kGrouped ? place.end : p.m; };           // behind the last
  const int col = tile / p.token_tiles * Block::kChannels;               // first channel
  const int first = p.chunks * slice / split;
  const int last = p.chunks * (slice + 1) / split;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;

  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&fixed.full[s], kGrouped ? 1 + 32 : 1);
      Empty::init(&fixed.empty[s], 4 * kGroups);  // warps
    }
    if (Block::kSends) {
      Full::init(&fixed.arrived, 1);
      Full::arrive_and_expect_tx(&fixed.arrived, (split - 1) * kTokens * Block::kChannels * 4);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const bool sends = Block::kSends && split > 1, finishes = !sends || slice == 0;
  if (sends) cute::cluster_arrive_relaxed();
  // Programmatic dependent launch: the next kernel may start now, and wait where this one waits for
  // the kernel before it. Before that, nothing in memory is written, and nothing read but a weight
  // that no kernel still running writes (Weight::settled): the ring is filled with it. Any other
  // weight may be on its way into L2, which is right even if the kernel before writes to it: L2 is
  // what it writes to.
  if constexpr (!kGrouped) launch_dependents();
  const int ahead = min(last, first + p.early);
  const auto once = cute::TMA::CacheHintSm90::EVICT_FIRST;
  const auto often = cute::TMA::CacheHintSm90::EVICT_LAST;
  const auto send_weight = [&](int chunk, int stage) {
    const bool is_read_once = kGrouped ? place.alone : p.token_tiles == 1;
    const auto hint = static_cast<uint64_t>(is_read_once ? once : often);
    const int token_bytes = kGrouped ? 0 : p.rows * kChunk;
    Full::arrive_and_expect_tx(&fixed.full[stage], Block::kWeightBytes + token_bytes);
    cute::SM90_TMA_LOAD_2D::copy(&p.weight, &fixed.full[stage], hint,
                                 ring + stage * Block::kStageBytes, chunk * kChunk,
                                 kGrouped ? place.expert * p.n + col : col);
  };
  if (!kGrouped && warp == Block::kConsumers / 32 && thread % 32 == 0) {
    for (int chunk = first; chunk < ahead; ++chunk) send_weight(chunk, chunk - first);
    for (int chunk = first; p.early == 0 && chunk < min(last, first + kPrefetch); ++chunk) {
      cute::SM90_TMA_LOAD_2D::PREFETCH::copy(&p.weight, chunk * kChunk, col);
    }
  }
  if constexpr (!kGrouped) wait_for_dependencies();
  if (sends) cute::cluster_wait();  // `arrived` is ready in every block

  const uint32_t sums_address = cute::cast_smem_ptr_to_uint(ring);
  if (warp == Block::kConsumers / 32) {
    // --- the loader ---
    if constexpr (kGrouped) {
      load_rows<Block>(p, place, first, last, ring, fixed, thread % 32, send_weight);
    } else if (thread % 32 == 0) {
      int stage = 0, phase = 1;
      for (int chunk = first; chunk < last; ++chunk) {
        if (chunk >= ahead) {
          Empty::wait(&fixed.empty[stage], phase);
          send_weight(chunk, stage);
        }
        cute::SM90_TMA_LOAD_2D::copy(&p.tokens, &fixed.full[stage], static_cast<uint64_t>(often),
                                     ring + stage * Block::kStageBytes + Block::kWeightBytes,
                                     chunk * kChunk, row);
        if (++stage == p.stages) stage = 0, phase ^= 1;
      }
    }
    __syncwarp();
  } else {
    // --- a multiplier ---
    if constexpr (kGrouped) {
      if (finishes) {
        fixed.operands.load(p.operands, row, col, end(), p.n, thread, Block::kConsumers,
                            ExpertElements{p.groups, place.expert});
      }
    } else {
      if (finishes) {
        fixed.operands.load(SCALED_MM_OPERANDS_OF(p), row, col, p.m, p.n, thread,
                            Block::kConsumers);
      }
    }
    if constexpr (Block::kHasMatrix) {
      if (finishes) {
        prefetch_matrix<Block>(p, row, end, col, sends ? 0 : slice, sends ? 1 : split, thread);
      }
    }
    int32_t sums[kTokens / 2] = {};
    int stage = 0, phase = 0, before = -1;  // before: the stage whose wgmma may still be reading
    for (int chunk = first; chunk < last; ++chunk) {
      Full::wait(&fixed.full[stage], phase);
      if constexpr (kGrouped) cutlass::arch::fence_view_async_shared();  // what lanes have copied
      const uint8_t* weight = ring + stage * Block::kStageBytes;
      const uint64_t rows = descriptor(weight + thread / 128 * 64 * kChunk);
      const uint64_t tokens = descriptor(weight + Block::kWeightBytes);
      cute::warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < kChunk / 32; ++k) {
        multiply_add<kTokens>(sums, rows + 2 * k, tokens + 2 * k);  // 32 bytes further
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<1>();
      if (before >= 0 && thread % 32 == 0) Empty::arrive(&fixed.empty[before]);
      before = stage;
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    cute::warpgroup_wait<0>();
    cutlass::arch::NamedBarrier::sync(Block::kConsumers, 1);  // all have done with the ring

    // A thread holds channels 16 * warp + lane / 4 (+ 8) of tokens 8 * i + 2 * (lane % 4) (+ 1).
    const int first_word = 16 * warp + thread % 32 / 4 + thread % 4 * 2 * Block::kSumsPitch;
    const auto for_each_sum = [&](const auto& put) {
#pragma unroll
      for (int i = 0; i < kTokens / 8; ++i) {
        const int word = first_word + 8 * i * Block::kSumsPitch;
        put(word, sums[4 * i]);
        put(word + Block::kSumsPitch, sums[4 * i + 1]);
        put(word + 8, sums[4 * i + 2]);
        put(word + Block::kSumsPitch + 8, sums[4 * i + 3]);
      }
    };
    if (!finishes) {
      const uint32_t inbox = cute::cast_smem_ptr_to_uint(fixed.inbox[slice - 1]);
      const uint32_t arrived = cute::cast_smem_ptr_to_uint(&fixed.arrived);
      for_each_sum([&](int word, int32_t sum) {
        cute::store_shared_remote(static_cast<uint32_t>(sum), inbox + 4 * word, arrived, 0);
      });
      return;
    }
    for_each_sum([&](int word, int32_t sum) { reinterpret_cast<int32_t*>(ring)[word] = sum; });
    if (split == 1 || sends) cutlass::arch::NamedBarrier::sync(Block::kConsumers, 1);
    if (sends) Full::wait(&fixed.arrived, 0);
  }
  if (split > 1 && !sends) cluster_sync();

  // --- this block's share of the tile: four channels of a token at a time, always the same ---
  if (warp < Block::kConsumers / 32) {
    constexpr int kQuads = Block::kChannels / 4, kTogether = Block::kTogether;
    static_assert(Block::kConsumers % kQuads == 0);
    const int channel = thread % kQuads * 4, inside = p.n - col - channel;
    const int tokens = min(p.rows, end() - row);
    const int sharers = Block::kSends ? 1 : split, step = sharers * Block::kConsumers / kQuads;
    struct Batch {
      alignas(16) int32_t sums[kTogether][4];
      float matrix[kTogether][4];  // elements of a matrix operand
    };
    const auto read = [&](int begin) {
      Batch batch;
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int token = min(begin + t * step, tokens - 1);
        const int word = token * Block::kSumsPitch + channel;
        int4 sum = sharers == 1 ? *reinterpret_cast<const int4*>(ring + 4 * word)
                                : load_remote<int4>(sums_address + 4 * word, 0);
#pragma unroll
        for (int s = 1; s < kMaxSplit; ++s) {
          if (s >= split) break;
          int4 part;
          if constexpr (Block::kSends) {
            part = *reinterpret_cast<const int4*>(&fixed.inbox[s - 1][word]);
          } else {
            part = load_remote<int4>(sums_address + 4 * word, s);
          }
          sum = int4{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
        }
        *reinterpret_cast<int4*>(batch.sums[t]) = sum;
      }
      if constexpr (Block::kHasMatrix) {
        cuda::load_rows<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)],
                                            row + begin, tokens - begin, step, col + channel,
                                            inside, batch.matrix);
      }
      return batch;
    };
    int begin = ((Block::kSends ? 0 : slice) * Block::kConsumers + thread) / kQuads;
    // The next is under way while one is ended, but for a matrix: its elements would be waited for.
    Batch next;
    if constexpr (!Block::kHasMatrix) next = read(begin);
    for (; begin < tokens; begin += kTogether * step) {
      const Batch now = Block::kHasMatrix ? read(begin) : next;
      if constexpr (!Block::kHasMatrix) next = read(begin + kTogether * step);
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int token = begin + t * step;
        if (token >= tokens) break;
        const auto get = [&](auto leaf, int e) {
          using L = decltype(leaf);
          if constexpr (L::axis == epilogue::Axis::Full) {
            static_assert(L::id == Operand::residual);
            return now.matrix[t][e];
          } else {
            return fixed.operands.at(leaf, token, channel + e);
          }
        };
#ifdef SCALED_MM_COMPILED
        finish_four(p.ending, p.of_program, now.sums[t], row + token, col + channel, inside, get);
#else
        finish_four<E>(p.to, now.sums[t], row + token, col + channel, inside, get);
#endif
      }
    }
  }
  if (split > 1 && !sends) cluster_sync();  // a block's sums stay until all have read them
}

}  // namespace scaled_mm::cuda::sm90::int8
