// A block of the streaming int8 kernel (int8_stream.cuh): what it is given, the products that it
// has, and how its shared memory is laid out.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <algorithm>

#include "cuda/epilogue/finish.cuh"
#ifdef SCALED_MM_COMPILED
#include "cuda/epilogue/compiled.cuh"
#endif
#include "cuda/common/expert_rows.cuh"
#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda::sm90::int8 {

static_assert(kChunk == 128, "the width of the swizzle");

struct StreamParams {
  CUtensorMap weight;  // B^T [N, K] in boxes of kChannels x kChunk
  CUtensorMap tokens;  // A [M, K] in boxes of `rows` x kChunk
  int m;
  int n;
  int chunks;       // of K
  int token_tiles;  // tiles of D along M
  int rows;         // tokens of a tile, at most kTokens
  int stages;       // of the ring
  int early;        // chunks of the weight, at most `stages`, sent for before the kernel may read
                    // what others write: those that nobody writes any more
  EpilogueOperand operands[kNumOperands];
  Destination to;
};

#ifdef SCALED_MM_COMPILED
// Of a product that a program ends: its operands and outputs stand in the others' place. Kernels
// that no program ends are compiled without a token of it, so that their code stays as it was.
template <class P>
struct CompiledParams : StreamParams {
  CompiledOperands<P::kOperands> of_program;
  CompiledDestination<P> ending;
};
#define SCALED_MM_OPERANDS_OF(p) (p).of_program
#else
#define SCALED_MM_OPERANDS_OF(p) (p).operands
#endif

// Of a grouped product: the weights of all experts are one matrix [E * N, K], one below the other.
// Tokens come row by row: they may lie anywhere in A.
struct GroupedParams : StreamParams {
  const int8_t* a;  // rows aligned to 16 bytes
  int64_t a_stride;
  int k;
  ExpertRows groups;
};

template <int kTokens>
struct Mma;
template <>
struct Mma<8> : cute::SM90::GMMA::MMA_64x8x32_S32S8S8_SS_TN {};
template <>
struct Mma<16> : cute::SM90::GMMA::MMA_64x16x32_S32S8S8_SS_TN {};
template <>
struct Mma<32> : cute::SM90::GMMA::MMA_64x32x32_S32S8S8_SS_TN {};
template <>
struct Mma<48> : cute::SM90::GMMA::MMA_64x48x32_S32S8S8_SS_TN {};
template <>
struct Mma<64> : cute::SM90::GMMA::MMA_64x64x32_S32S8S8_SS_TN {};
template <>
struct Mma<80> : cute::SM90::GMMA::MMA_64x80x32_S32S8S8_SS_TN {};
template <>
struct Mma<96> : cute::SM90::GMMA::MMA_64x96x32_S32S8S8_SS_TN {};
template <>
struct Mma<128> : cute::SM90::GMMA::MMA_64x128x32_S32S8S8_SS_TN {};
template <>
struct Mma<144> : cute::SM90::GMMA::MMA_64x144x32_S32S8S8_SS_TN {};
template <>
struct Mma<160> : cute::SM90::GMMA::MMA_64x160x32_S32S8S8_SS_TN {};
template <>
struct Mma<176> : cute::SM90::GMMA::MMA_64x176x32_S32S8S8_SS_TN {};
template <>
struct Mma<192> : cute::SM90::GMMA::MMA_64x192x32_S32S8S8_SS_TN {};

// How a block's shared memory is laid out.
template <int kTokens_, int kGroups_, class E>
struct StreamBlock {
  static constexpr int kTokens = kTokens_, kGroups = kGroups_;
  static constexpr int kChannels = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups;  // threads that multiply
  static constexpr int kThreads = kConsumers + 32;  // and the warp that loads
  static constexpr int kWeightBytes = kChannels * kChunk;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kChunk;
  // The sums lie where the stages were, token by token; 4 words apart from the next token, so that
  // the fragments of wgmma fall on different banks.
  static constexpr int kSumsPitch = kChannels + 4;
  static constexpr int kSumsBytes = kTokens * kSumsPitch * 4;

  using Operands = StagedOperands<typename Lower<E>::List, kTokens, kChannels>;
  // The blocks of a cluster take turns to end eight tokens of the tile; the first has most.
  static constexpr int kEights = kTokens / 8;
  static constexpr int most_turns(int split) { return (kEights + split - 1) / split; }
  // Tokens, of as many turns, that a thread ends together (finish_rows).
  static constexpr int kTogether = epilogue::is_raw<E> ? 1
                                   : kEights >= 8      ? 4
                                   : kEights >= 4      ? 2
                                                       : 1;

  struct alignas(16) Fixed {
    Operands operands;
    Quantizer quantizers[epilogue::is_quantised<E> ? kTokens : 1];  // of a D of 8 bits
    alignas(8) uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
    uint64_t arrived;  // what the other blocks send
  };
  // With what is sent behind it: four sums of each thread for eight tokens.
  static constexpr int fixed_bytes(int split) {
    return static_cast<int>(sizeof(Fixed) +
                            (split - 1) * most_turns(split) * kConsumers * sizeof(int4));
  }

  // The depth of the ring of a block that is alone on its multiprocessor, or one of two, with two
  // small blocks beside. There is 1 KiB more than a block may ask for, and each takes 1 KiB.
  static int stages(const Device& device, const StreamPlan& plan) {
    const int alone = device.shared_memory - 2 * kSmallBlock;
    const int bytes = plan.paired ? (alone + 1024) / 2 - 1024 : alone;
    return std::min((bytes - fixed_bytes(plan.split)) / kStageBytes, kMaxStages);
  }
  static constexpr int ring_bytes(int stages) {
    return std::max(stages * kStageBytes, (kSumsBytes + 1023) / 1024 * 1024);
  }
  static constexpr int shared_bytes(int stages, int split) {
    return ring_bytes(stages) + fixed_bytes(split);
  }
};

}  // namespace scaled_mm::cuda::sm90::int8
