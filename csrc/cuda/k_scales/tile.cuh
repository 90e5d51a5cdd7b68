// A tile of a product with scales along K (docs/numerics.md, section 8), for any GPU with tensor
// cores for int8: 64 channels x kTokens tokens, all groups of K or those of one slice.
//
// Channels lie on the M side of mma.sync, tokens on its N side: a warp has 16 channels and all
// tokens. Steps have 32 rows of K. Their int32 sums are exact, in whatever order the tensor cores
// take K; where a group ends they go to the chain of its slice by one fma, where a slice ends that
// to the sum.
//
// A weight of 4 bits comes from memory as units, whose words are what registers hold, and tokens'
// columns are arranged to their order (units_int8.cuh). The weight of a product in blocks comes by
// shared memory, as tokens do, and both keep their order.
#pragma once

#include "cuda/common/mma.cuh"
#include "cuda/common/unaligned.cuh"
#include "cuda/k_scales/end.cuh"
#include "cuda/k_scales/units_int8.cuh"
#include "integers.h"

namespace scaled_mm::cuda {

struct GroupsParams {
  const int8_t* tokens;  // A [M, columns], rows aligned to 16 bytes; of 4 bits: arranged
  int64_t tokens_stride;
  int columns;  // of a token that may be read: K; arranged, kUnitRows times the chunks
  int m;
  int n;
  int k;
  int group;           // rows of K that share scales
  int slice;           // slice_columns(K)
  int token_tiles;     // tiles of D along M
  const int32_t* azp;  // of a weight of 4 bits: a zero point of each token, or null
  int64_t azp_stride;
  const uint8_t* units;  // [chunks][panels]
  int panels;
  int sets;              // of a unit
  DType dtype;           // of its scales
  const int8_t* weight;  // in blocks: B^T [N, K], rows aligned to 16 bytes
  int64_t weight_stride;
  EpilogueOperand row_scales, scales;  // in blocks
  int slices;                          // of K, where each is a block's own; else 1
  float* partials;                     // then: [slices, M, N]
  GroupsEnd end;
};

// --- weights -------------------------------------------------------------------------------------

// A lane's part of a chunk of 128 rows of a weight of 4 bits: channels 2 g and 2 g + 1 of its warp.
struct Nibbles128 {
  static constexpr int kSharedBytes = 0;
  uint32_t of_part[2][4];
  uint32_t scales[4], zeros[4];  // by set, of both channels

  __device__ void load(const GroupsParams& p, int panel, int chunk, int warp, int lane) {
    const int unit_size = unit_bytes(4, ZeroPoint::integer, p.sets);
    const uint8_t* unit = p.units + (int64_t{chunk} * p.panels + panel) * unit_size;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t* const from = unit + 2048 * i + 512 * warp + 16 * lane;
      const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
      of_part[i][0] = words.x, of_part[i][1] = words.y;
      of_part[i][2] = words.z, of_part[i][3] = words.w;
    }
    const int pair = 8 * warp + lane / 4;
    const uint8_t* set = unit + unit_word_bytes(4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= p.sets) break;
      scales[i] = __ldg(reinterpret_cast<const uint32_t*>(set) + pair);
      zeros[i] = __ldg(set + 2 * kUnitChannels + pair);
      set += unit_set_bytes(4, ZeroPoint::integer);
    }
  }
  __device__ void store(uint8_t*, int) const {}
  // What a step of 32 rows multiplies.
  __device__ void weights(uint32_t (&w)[4], const GroupsParams& p, const uint8_t*, int step, int,
                          int) const {
    const uint32_t* const words = of_part[step / 2] + step % 2 * 2;
    NibbleZeros(pick(zeros, step * p.sets / 4)).subtract(w, words[0], words[1]);
  }
  // The group's scale of channel 2 g + h.
  __device__ float scale(const GroupsParams& p, int step, int h) const {
    return half_of(p.dtype, pick(scales, step * p.sets / 4), h);
  }

 private:
  __device__ static uint32_t pick(const uint32_t (&of)[4], int set) {
    return set == 0 ? of[0] : set == 1 ? of[1] : set == 2 ? of[2] : of[3];
  }
};

// 16 bytes of a row, of which `available` are there.
__device__ inline uint4 load_piece(const int8_t* from, int available) {
  if (available >= 16) return __ldg(reinterpret_cast<const uint4*>(from));
  return available > 0 ? load_first(from, available) : uint4{};
}

// kRows rows of 128 bytes on their way to shared memory by kThreads threads. kPitch: from one row
// to the next there; eight rows of 16 bytes are in different banks.
template <int kRows, int kThreads>
struct Rows128 {
  static constexpr int kPitch = 128 + 16, kSharedBytes = kRows * kPitch;
  static constexpr int kPieces = kRows * 8 / kThreads;
  static_assert(kRows * 8 % kThreads == 0);
  uint4 pieces[kPieces];

  // Rows from `row` on, of `rows`; columns from `column` on, of `columns`.
  __device__ void load(const int8_t* data, int64_t stride, int row, int rows, int column,
                       int columns, int thread) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = i * kThreads + thread, r = row + at / 8, c = column + at % 8 * 16;
      pieces[i] = r < rows ? load_piece(data + r * stride + c, columns - c) : uint4{};
    }
  }
  __device__ void store(uint8_t* to, int thread) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = i * kThreads + thread;
      *reinterpret_cast<uint4*>(to + at / 8 * kPitch + at % 8 * 16) = pieces[i];
    }
  }
};

// The same of an int8 weight whose scales are those of blocks.
struct Bytes128 : Rows128<kUnitChannels, 128> {
  float of_block;  // the scale

  __device__ void load(const GroupsParams& p, int panel, int chunk, int warp, int lane) {
    const int channel = panel * kUnitChannels;
    Rows128::load(p.weight, p.weight_stride, channel, p.n, chunk * 128, p.k, 32 * warp + lane);
    of_block = load_float(p.scales, chunk, channel / int{kBlock});
  }
  __device__ void weights(uint32_t (&w)[4], const GroupsParams&, const uint8_t* shared, int step,
                          int warp, int lane) const {
    // Matrices: channels 2 g, channels 2 g + 1, and both of the 16 rows behind.
    const int channel = 16 * warp + lane % 8 * 2 + lane / 8 % 2;
    load_matrices(w, shared + channel * kPitch + 32 * step + lane / 16 * 16);
  }
  __device__ float scale(const GroupsParams&, int, int) const { return of_block; }
};

// --- a tile --------------------------------------------------------------------------------------

template <class WeightChunk_, int kTokens_, bool kAzp_>
struct GroupsBlock {
  using WeightChunk = WeightChunk_;
  static constexpr int kTokens = kTokens_, kThreads = 128;
  static constexpr bool kAzp = kAzp_, kBlocks = std::is_same_v<WeightChunk, Bytes128>;
  using Tokens = Rows128<kTokens, kThreads>;
  static constexpr int kSumsPitch = kUnitChannels + 4;
  struct alignas(16) Stage {
    uint8_t tokens[Tokens::kSharedBytes];
    uint8_t weights[std::max(WeightChunk::kSharedBytes, 16)];
    float scales[kTokens];  // of the tokens, in blocks
  };
  struct Shared {
    union {
      Stage stages[2];
      float sums[kTokens][kSumsPitch];
    };
    int32_t azp[kTokens];
  };
};

// The groups that a block multiplies, as rows of K: all, or those that begin in its slice.
struct GroupRows {
  int begin, end;
  __device__ GroupRows(const GroupsParams& p, int slice) : begin(0), end(p.k) {
    if (p.slices == 1) return;
    const auto first = [&](int64_t row) {
      return static_cast<int>(min(int64_t{p.k}, round_up(row, p.group)));
    };
    begin = first(int64_t{slice} * p.slice), end = first((slice + 1) * int64_t{p.slice});
  }
};

template <class Block>
class GroupsTile {
 public:
  __device__ GroupsTile(const GroupsParams& p, typename Block::Shared& shared, int tile, int slice)
      : p_(p),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        row_(tile % p.token_tiles * kTokens),
        panel_(tile / p.token_tiles),
        slice_(slice) {}

  __device__ void run() {
    if constexpr (Block::kAzp) {
      if (thread_ < kTokens) {
        shared_.azp[thread_] = row_ + thread_ < p_.m ? p_.azp[(row_ + thread_) * p_.azp_stride] : 0;
      }
    }
    const GroupRows rows(p_, slice_);
    multiply(rows.begin, rows.end);
    store();
  }

 private:
  static constexpr int kTokens = Block::kTokens, kTiles = kTokens / 8;
  using WeightChunk = typename Block::WeightChunk;
  using Tokens = typename Block::Tokens;

  const GroupsParams& p_;
  typename Block::Shared& shared_;
  int thread_, warp_, lane_, row_, panel_, slice_;
  // Of channels 2 g (elements 0 and 1) and 2 g + 1 and tokens 8 i + 2 t (0 and 2) and the next.
  float sum_[kTiles][4], chain_[kTiles][4];
  int32_t acc_[kTiles][4], ones_[4];

  __device__ void load(Tokens& tokens, WeightChunk& weights, float& scale, int chunk) const {
    tokens.load(p_.tokens, p_.tokens_stride, row_, p_.m, chunk * 128, p_.columns, thread_);
    weights.load(p_, panel_, chunk, warp_, lane_);
    if constexpr (Block::kBlocks) {
      const bool there = thread_ < kTokens && row_ + thread_ < p_.m;
      scale = there ? load_float(p_.row_scales, row_ + thread_, chunk) : 0.0f;
    }
  }
  __device__ void keep(const Tokens& tokens, const WeightChunk& weights, float scale,
                       typename Block::Stage& stage) const {
    tokens.store(stage.tokens, thread_);
    weights.store(stage.weights, thread_);
    if (Block::kBlocks && thread_ < kTokens) stage.scales[thread_] = scale;
  }

  template <class T>
  __device__ static void clear(T (&of)[kTiles][4], T value) {
#pragma unroll
    for (auto& tile : of) {
#pragma unroll
      for (T& x : tile) x = value;
    }
  }

  __device__ void multiply(int begin, int end) {
    clear(sum_, -0.0f), clear(chain_, -0.0f), clear(acc_, 0);
#pragma unroll
    for (int32_t& x : ones_) x = 0;
    const int last = (end + 127) / 128;
    int chunk = begin / 128, left = p_.group;  // rows of the group that are to come
    int slice_end = (begin / p_.slice + 1) * p_.slice;
    Tokens tokens;
    WeightChunk now, next;
    float scale = 0.0f;
    if (begin < end) {
      load(tokens, now, scale, chunk);
      keep(tokens, now, scale, shared_.stages[chunk % 2]);
    }
    __syncthreads();
#pragma unroll 1
    for (; chunk < last; ++chunk) {
      if (chunk + 1 < last) load(tokens, next, scale, chunk + 1);
      const typename Block::Stage& stage = shared_.stages[chunk % 2];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int row = 128 * chunk + 32 * step;
        if (row < begin || row >= end) continue;
        multiply_step(now, stage, step, p_.k - row);
        left -= 32;
        const bool ends = row + 32 >= end;
        if (left > 0 && !ends) continue;
        promote(now, stage, step);
        left = p_.group;
        if (ends || row + 32 >= slice_end) {
          end_slice();
          while (slice_end <= row + 32) slice_end += p_.slice;
        }
      }
      if (chunk + 1 < last) keep(tokens, next, scale, shared_.stages[(chunk + 1) % 2]);
      now = next;
      __syncthreads();
    }
  }

  // 32 rows, of which `there` are in K.
  __device__ void multiply_step(const WeightChunk& weights, const typename Block::Stage& stage,
                                int step, int there) {
    uint32_t w[4];
    weights.weights(w, p_, stage.weights, step, warp_, lane_);
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      uint32_t x[4];  // of two times eight tokens
      const int token = 8 * i + lane_ / 16 * 8 + lane_ % 8;
      load_matrices(x, stage.tokens + token * Tokens::kPitch + 32 * step + lane_ / 8 % 2 * 16);
      multiply_add(acc_[i], w, x[0], x[1]);
      multiply_add(acc_[i + 1], w, x[2], x[3]);
    }
    if constexpr (Block::kAzp) {
      const int t = lane_ % 4;
      multiply_add(ones_, w, arranged_ones(t, there), arranged_ones(t, there - 16));
    }
  }

  // A group's sums to their chains.
  __device__ void promote(const WeightChunk& weights, const typename Block::Stage& stage,
                          int step) {
    const float scale[2] = {weights.scale(p_, step, 0), weights.scale(p_, step, 1)};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = 8 * i + lane_ % 4 * 2 + e % 2;
        int32_t t = acc_[i][e];
        if constexpr (Block::kAzp) {
          t = apply(epilogue::Sub{}, t,
                    apply(epilogue::Mul{}, shared_.azp[token], ones_[e / 2 * 2]));
        }
        float s = scale[e / 2];
        if constexpr (Block::kBlocks) s = __fmul_rn(stage.scales[token], s);
        chain_[i][e] = __fmaf_rn(s, __int2float_rn(t), chain_[i][e]);
      }
    }
    clear(acc_, 0);
#pragma unroll
    for (int32_t& x : ones_) x = 0;
  }

  __device__ void end_slice() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum_[i][e] = __fadd_rn(sum_[i][e], chain_[i][e]);
    }
    clear(chain_, -0.0f);
  }

  __device__ void store() const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = 8 * i + lane_ % 4 * 2 + e % 2;
        shared_.sums[token][16 * warp_ + lane_ / 4 * 2 + e / 2] = sum_[i][e];
      }
    }
    __syncthreads();
    const int col = panel_ * kUnitChannels;
    if (p_.partials != nullptr) {
      const Output out{p_.partials + int64_t{p_.m} * p_.n * slice_, DType::float32, p_.n % 4 == 0};
      return each_four([&](int token, int channel, const float (&sum)[4], int inside) {
        store_row(out, int64_t{row_ + token} * p_.n + col + channel, inside, sum);
      });
    }
    each_four([&](int token, int channel, const float (&sum)[4], int) {
      finish_groups(p_.end, sum, row_ + token, col + channel);
    });
  }
  template <class F>
  __device__ void each_four(const F& f) const {
    constexpr int kQuads = kUnitChannels / 4;
    const int items = min(kTokens, p_.m - row_) * kQuads;
#pragma unroll 1
    for (int i = thread_; i < items; i += Block::kThreads) {
      const int token = i / kQuads, channel = i % kQuads * 4;
      const int inside = p_.n - panel_ * kUnitChannels - channel;
      if (inside <= 0) continue;
      const float4 four = *reinterpret_cast<const float4*>(&shared_.sums[token][channel]);
      f(token, channel, {four.x, four.y, four.z, four.w}, inside);
    }
  }
};

}  // namespace scaled_mm::cuda
