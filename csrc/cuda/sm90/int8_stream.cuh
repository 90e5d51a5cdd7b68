// D = epilogue(A B) for few tokens, where reading the weight is what takes the time.
//
// The weight's channels lie on the M side of wgmma (64 rows an instruction), the tokens on its N
// side (as few as 8), so no tensor-core work is padded beyond that:
//
//                 kTokens                    A block owns kChannels x kTokens of D^T, over one
//               +---------+  A^T             slice of K. The blocks of a cluster own the slices of
//               |    |    |                  one tile, and take turns to end eight tokens of it:
//            K  |  slice  | of block 1       each sends the others the int32 sums of their tokens,
//               |    |    |                  adds up what it has and is sent, and runs the
//               |    |    |                  epilogue on that.
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

// Four words to where the rank-th block of the cluster has what `to` is here. Its barrier counts
// them by their bytes.
__device__ inline void send_remote(int4 x, const int4* to, const uint64_t* barrier, int rank) {
  const auto there = [&](const void* here) {
    return cute::set_block_rank(cute::cast_smem_ptr_to_uint(here), rank);
  };
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there(to)),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(there(barrier))
      : "memory");
}

// Sends for the tile's elements of a matrix operand to L2, token by token: the share-th of
// `sharers` parts.
template <class Block>
__device__ void prefetch_matrix(const StreamParams& p, int row, int tokens, int col, int share,
                                int sharers, int thread) {
  constexpr int kLine = 128;  // bytes
  const EpilogueOperand& of = p.operands[static_cast<int>(Operand::residual)];
  const int size = of.dtype == DType::float32 ? 4 : 2;
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
  int4* const inbox = reinterpret_cast<int4*>(&fixed + 1);

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
  const int tokens = min(p.rows, end() - row), eights = (tokens + 7) / 8;
  const int turns = (eights - slice + split - 1) / split;  // of this block to end eight tokens

  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&fixed.full[s], kGrouped ? 1 + 32 : 1);
      Empty::init(&fixed.empty[s], 4 * kGroups);  // warps
    }
    Full::init(&fixed.arrived, 1);
    Full::arrive_and_expect_tx(&fixed.arrived, (split - 1) * turns * 8 * Block::kChannels * 4);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (split > 1) cute::cluster_arrive_relaxed();
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
  if (split > 1) cute::cluster_wait();  // `arrived` is ready in every block

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
    if (turns > 0) {
      if constexpr (kGrouped) {
        fixed.operands.load(p.operands, row, col, end(), p.n, thread, Block::kConsumers,
                            ExpertElements{p.groups, place.expert});
      } else {
        fixed.operands.load(SCALED_MM_OPERANDS_OF(p), row, col, p.m, p.n, thread,
                            Block::kConsumers);
      }
      if constexpr (epilogue::is_quantised<E>) {  // a thread reads what it has loaded itself
        for (int i = thread; i < kTokens && is_8_bit(p.to.out.dtype); i += Block::kConsumers) {
          fixed.quantizers[i] = given_quantizer(
              [&](auto leaf, int) { return fixed.operands.at(leaf, i, 0); }, p.to.symmetric);
        }
      }
    }
    if constexpr (Lower<E>::List::has_full) {
      prefetch_matrix<Block>(p, row, tokens, col, slice, split, thread);
    }
    int32_t sums[kTokens / 2] = {};
    int stage = 0, phase = 0, before = -1;  // before: the stage whose wgmma may still be reading
    for (int chunk = first; chunk < last; ++chunk) {
      Full::wait(&fixed.full[stage], phase);
      if constexpr (kGrouped) cutlass::arch::fence_view_async_shared();  // what lanes have copied
      const uint8_t* weight = ring + stage * Block::kStageBytes;
      const uint64_t rows = descriptor(weight + thread / 128 * 64 * kChunk);
      const uint64_t columns = descriptor(weight + Block::kWeightBytes);
      cute::warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < kChunk / 32; ++k) {
        multiply_add<kTokens>(sums, rows + 2 * k, columns + 2 * k);  // 32 bytes further
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<1>();
      if (before >= 0 && thread % 32 == 0) Empty::arrive(&fixed.empty[before]);
      before = stage;
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    cute::warpgroup_wait<0>();
    // A thread holds channels 16 * warp + lane / 4 (+ 8) of tokens 8 * i + 2 * (lane % 4) (+ 1).
    const auto held = [&](int i) {
      return int4{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    };
    static_assert(kMaxSplit == 3);
    const auto owner = [&](int i) { return split == 1 ? 0 : split == 2 ? i % 2 : i % 3; };
    const auto in_inbox = [&](int i, int from) {  // what the from-th of the other blocks sends
      const int turn = split == 2 ? i / 2 : i / 3;
      return inbox + (turn * (split - 1) + from) * Block::kConsumers + thread;
    };
    if (split > 1) {
#pragma unroll
      for (int i = 0; i < Block::kEights; ++i) {
        const int to = owner(i);
        if (to != slice && i < eights) {
          send_remote(held(i), in_inbox(i, slice - (slice > to)), &fixed.arrived, to);
        }
      }
      if (turns == 0) return;
      Full::wait(&fixed.arrived, 0);
    }
    cutlass::arch::NamedBarrier::sync(Block::kConsumers, 1);  // all have done with the ring
    const int first_word = 16 * warp + thread % 32 / 4 + thread % 4 * 2 * Block::kSumsPitch;
#pragma unroll
    for (int i = 0; i < Block::kEights; ++i) {
      if (owner(i) != slice) continue;
      int4 sum = held(i);
#pragma unroll
      for (int from = 0; from < kMaxSplit - 1; ++from) {
        if (from >= split - 1) break;
        const int4 part = *in_inbox(i, from);
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      int32_t* const to = reinterpret_cast<int32_t*>(ring) + first_word + 8 * i * Block::kSumsPitch;
      to[0] = sum.x;
      to[Block::kSumsPitch] = sum.y;
      to[8] = sum.z;
      to[Block::kSumsPitch + 8] = sum.w;
    }
    cutlass::arch::NamedBarrier::sync(Block::kConsumers, 1);

    // --- this block's turns: a thread has four channels of a token in each ---
    constexpr int kQuads = Block::kChannels / 4, kTogether = Block::kTogether;
    static_assert(Block::kConsumers / kQuads == 8, "so that a step is a turn");
    const int channel = thread % kQuads * 4, inside = p.n - col - channel, step = 8 * split;
    for (int begin = 8 * slice + thread / kQuads; begin < tokens; begin += kTogether * step) {
      const auto token = [&](int t) { return min(begin + t * step, tokens - 1); };
      alignas(16) int32_t four[kTogether][4];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const int word = token(t) * Block::kSumsPitch + channel;
        *reinterpret_cast<int4*>(four[t]) = *reinterpret_cast<const int4*>(ring + 4 * word);
      }
      float matrix[kTogether][4];  // elements of a matrix operand
      if constexpr (Lower<E>::List::has_full) {
        cuda::load_rows<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)],
                                            row + begin, tokens - begin, step, col + channel,
                                            inside, matrix);
      }
      const auto get = [&](auto leaf, int t, int e) {
        using L = decltype(leaf);
        if constexpr (L::axis == epilogue::Axis::Full) {
          static_assert(L::id == Operand::residual);
          return matrix[t][e];
        } else {
          return fixed.operands.at(leaf, token(t), channel + e);
        }
      };
#ifdef SCALED_MM_COMPILED
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (begin + t * step >= tokens) break;
        finish_four(p.ending, p.of_program, four[t], row + token(t), col + channel, inside,
                    [&](auto leaf, int e) { return get(leaf, t, e); });
      }
#else
      if constexpr (epilogue::is_raw<E>) {
        static_assert(kTogether == 1);
        store_row(p.to.out, (row + begin) * p.to.ldd + col + channel, inside, four[0]);
      } else {
        float value[4 * kTogether];
#pragma unroll
        for (int i = 0; i < 4 * kTogether; ++i) {
          value[i] =
              Lower<E>::at(four[i / 4][i % 4], [&](auto leaf) { return get(leaf, i / 4, i % 4); });
        }
        finish_rows<E>(p.to, row + begin, tokens - begin, step, col + channel, inside, value,
                       [&](int t) -> const Quantizer& { return fixed.quantizers[token(t)]; });
      }
#endif
    }
  }
}

}  // namespace scaled_mm::cuda::sm90::int8
