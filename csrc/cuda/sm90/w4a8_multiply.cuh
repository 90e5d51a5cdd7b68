// The products of the kernel for int8 activations and weights of 4 bits: words to bytes in
// registers, bytes times tokens, and sums of groups to floats.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <utility>

#include "cuda/sm90/w4a8_block.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::k_scales {

template <int kTokens>
struct Mma;
template <>
struct Mma<8> : cute::SM90::GMMA::MMA_64x8x32_S32S8S8_RS_TN {};
template <>
struct Mma<16> : cute::SM90::GMMA::MMA_64x16x32_S32S8S8_RS_TN {};
template <>
struct Mma<32> : cute::SM90::GMMA::MMA_64x32x32_S32S8S8_RS_TN {};
template <>
struct Mma<64> : cute::SM90::GMMA::MMA_64x64x32_S32S8S8_RS_TN {};
template <>
struct Mma<128> : cute::SM90::GMMA::MMA_64x128x32_S32S8S8_RS_TN {};

// A warpgroup's part of every stage: 64 channels, 16 of them a warp's.
//
// While a warpgroup makes weights of words, sends sums of groups on to floats, or ends a tile,
// others' products (wgmma) run. Where a block has few of them, each reads its next words while its
// own products run. Sums of slices wait in shared memory.
template <class Block>
class Multiplier {
 public:
  __device__ Multiplier(const Params& p, const uint8_t* tokens, const uint8_t* words,
                        typename Block::Fixed& fixed)
      : p_(p), tokens_(tokens), fixed_(fixed) {
    // From one lane, so that ptxas knows it to be the warp's.
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    warp_ = warp % 4, lane_ = static_cast<int>(threadIdx.x) % 32, panel_ = warp / 4;
    words_ = words + panel_ * unit_bytes(4, ZeroPoint::integer, p.sets);
    channel_ = (Block::kAlongK ? 0 : panel_ * kUnitChannels) + warp_ * 16 + lane_ / 4 * 2;
    if (Block::kAlongK) tokens_ += panel_ * Block::kBoxBytes;
  }

  // Chunks [chunk, last) of a tile; the first begins a slice. Sums to `sums` in shared memory: of
  // slices, or of all where they are one group, as integers where other parts of K are added to
  // them.
  __device__ __forceinline__ void run(int chunk, int last, bool is_part, float* sums) {
    sums_ = sums, first_slice_ = true, fresh_ = true;
    row_ = chunk * kUnitRows;
    group_end_ = row_ + p_.group, slice_end_ = (row_ / p_.slice + 1) * p_.slice;
    clear();
    read();
#pragma unroll 1
    for (; chunk < last; ++chunk) multiply_chunk(chunk + 1 < last);
    if constexpr (kOne) put_all(last * kUnitRows - p_.k, is_part);
  }

  // Chunks that other warpgroups multiply.
  __device__ void skip(int chunks) {
    for (; chunks > 0; --chunks) {
      wait(at_);
      Empty::arrive(&fixed_.empty[at_.stage]);
      at_.advance(p_.stages);
    }
  }

 private:
  static constexpr int kTokens = Block::kTokens;
  static constexpr bool kOne = Block::kGroups == Grouping::one;
  static constexpr bool kOfSteps = Block::kGroups == Grouping::of_steps;
  // Of four warpgroups that do so products wait longer for each other than for words.
  static constexpr bool kReadsAhead = Block::kConsumers <= (kOne ? 384 : 256);
  static constexpr int kSums = kTokens / 2;                                     // of a lane
  static constexpr int kSteps = kUnitRows / 32, kSets = kOfSteps ? kSteps : 1;  // of a chunk

  // What a chunk has: words, and the zero points of its sets.
  struct LaneWords {
    uint4 words[2];
    uint32_t zeros[kSets];
  };
  // What it multiplies.
  struct LaneWeights {
    uint32_t step[kSteps][4];  // bytes
    uint32_t scale, zeros;     // of the lane's two channels, where all of K is a group
    uint32_t sixteenfold;      // a bit a set: weights are 16 times theirs, their zero points 8
  };

  const Params& p_;
  const uint8_t *tokens_, *words_;
  typename Block::Fixed& fixed_;
  int warp_, lane_, panel_, channel_;
  Cursor at_;
  int row_;  // those that follow what has been multiplied
  int group_end_, slice_end_;
  bool fresh_;  // a group begins
  bool first_slice_;
  float* sums_;
  LaneWords next_;
  LaneWeights weights_;
  // Channels 2 g (elements 4 i and 4 i + 1) and 2 g + 1 of tokens 8 i + 2 t (4 i and 4 i + 2) and
  // the next: sums of groups; of a slice.
  uint32_t acc_[kSums];
  float chain_[kOne ? 1 : kSums];
  int32_t ones_[2];  // of both channels' weights, in a lane's rows

  __device__ int token_of(int i) const { return i / 4 * 8 + lane_ % 4 * 2 + i % 2; }
  // Where sums i and i + 2, i % 4 < 2, are in a tile.
  template <class T>
  __device__ T& sums_of(int i) const {
    return *reinterpret_cast<T*>(sums_ + token_of(i) * Block::kSumsPitch + channel_);
  }
  __device__ void clear() {
    if constexpr (!kOne) {
#pragma unroll
      for (float& x : chain_) x = -0.0f;
    }
  }
  __device__ void fence() {
#pragma unroll
    for (uint32_t& x : acc_) cute::warpgroup_fence_operand(x);
  }

  __device__ void wait(const Cursor& at) const {
    Full::wait(&fixed_.full[at.stage], at.phase);
    asm volatile("" ::: "memory");  // no read of the stage before
  }

  // Of a stage's set: scales and zero points of the lane's two channels.
  __device__ const uint8_t* set_at(int stage, int set) const {
    return words_ + stage * Block::kWordBytes + unit_word_bytes(4) +
           set * p_.sets / kSets * unit_set_bytes(4, ZeroPoint::integer);
  }
  __device__ uint32_t scale_at(int stage, int set) const {
    return reinterpret_cast<const uint32_t*>(set_at(stage, set))[8 * warp_ + lane_ / 4];
  }
  __device__ uint32_t zeros_at(int stage, int set) const {
    return set_at(stage, set)[2 * kUnitChannels + 8 * warp_ + lane_ / 4];
  }

  // The next chunk's words, when they are there.
  __device__ __forceinline__ void read() {
    wait(at_);
    const uint8_t* const unit = words_ + at_.stage * Block::kWordBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) next_.words[i] = *unit_words(unit, i, warp_, lane_);
#pragma unroll
    for (int i = 0; i < kSets; ++i) next_.zeros[i] = zeros_at(at_.stage, i);
  }

  // The weights of these words.
  __device__ __forceinline__ void prepare() {
    weights_.zeros = next_.zeros[0], weights_.scale = scale_at(at_.stage, 0);
    weights_.sixteenfold = 0;
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      constexpr int kEach = kSteps / kSets;
      const auto each_step = [&](const auto& make) {
#pragma unroll
        for (int s = i * kEach; s < (i + 1) * kEach; ++s) {
          const uint4& of = next_.words[s / 2];
          make(weights_.step[s], s % 2 ? of.z : of.x, s % 2 ? of.w : of.y);
        }
#pragma unroll
        for (int s = i * kEach; s < (i + 1) * kEach; ++s) {
#pragma unroll
          for (uint32_t& w : weights_.step[s]) cute::warpgroup_fence_operand(w);  // here, not later
        }
      };
      if (__all_sync(~0u, next_.zeros[i] == kEights)) {
        weights_.sixteenfold |= 1 << i;
        each_step([&](auto& w, uint32_t first, uint32_t second) {
          sixteen_times_less_eight(w, first, second);
        });
      } else {
        const NibbleZeros zero(next_.zeros[i]);
        each_step(
            [&](auto& w, uint32_t first, uint32_t second) { zero.subtract(w, first, second); });
      }
    }
  }

  // The chunk whose words were read; `more`: another follows, whose words are read then.
  __device__ __forceinline__ void multiply_chunk(bool more) {
    constexpr int kEach = kSteps / kSets;  // steps of a set
    const Cursor at = at_;
    prepare();
    if (Block::kArranges && !p_.arranged) Empty::wait(&fixed_.ready[at.stage], at.phase);
    const uint64_t tokens = descriptor(tokens_ + at.stage * Block::kTokenBytes);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      const uint32_t scale = scale_at(at.stage, set);
      issue(tokens, set * kEach, (set + 1) * kEach);
      if (set == kSets - 1) {
        at_.advance(p_.stages);
        if (kReadsAhead && more) read();
      }
      end_rows(set, 32 * kEach, scale, &fixed_.empty[at.stage]);
    }
    if (!kReadsAhead && more) read();
  }

  // The products of steps [begin, end).
  __device__ __forceinline__ void issue(uint64_t tokens, int begin, int end) {
    if (p_.azp != nullptr) {
      if (fresh_) ones_[0] = ones_[1] = 0;
#pragma unroll
      for (int s = begin; s < end; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ones_[i % 2] = __dp4a(static_cast<int>(weights_.step[s][i]), 0x01010101, ones_[i % 2]);
        }
      }
    }
    fence();
    cute::warpgroup_arrive();
#pragma unroll
    for (int s = begin; s < end; ++s) {  // 32 rows: 32 bytes of a token
      multiply_add(acc_, weights_.step[s], tokens + 2 * s, s == begin && fresh_);
    }
    cute::warpgroup_commit_batch();
  }

  // Behind the products of a set's rows: a group may end, and a slice.
  __device__ __forceinline__ void end_rows(int set, int rows, uint32_t scale, uint64_t* empty) {
    row_ += rows;
    cute::warpgroup_wait<0>();
    fence();
    if (set == kSets - 1) Empty::arrive(empty);
    if constexpr (kOne) {
      fresh_ = false;
    } else {
      fresh_ = row_ == group_end_;
      if (fresh_) {
        if (row_ <= p_.k) {
          promote(scale, weights_.sixteenfold >> set & 1);
          if (row_ >= slice_end_ || row_ == p_.k) {
            end_slice();
            while (slice_end_ <= row_) slice_end_ += p_.slice;
          }
        }
        group_end_ += p_.group;
      }
    }
  }

  // No sum of 16 times its weights leaves int32: K is below 2^17.
  __device__ void divide() {
#pragma unroll
    for (uint32_t& t : acc_) t = static_cast<uint32_t>(static_cast<int32_t>(t) >> 4);
  }
  // The products of the tokens' zero points go, of sums that are divided. The sums of weights: over
  // all of a group in the lane's rows.
  __device__ __forceinline__ void subtract_azp(bool sixteenfold) {
    uint32_t ones[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int32_t all = ones_[h];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      ones[h] = static_cast<uint32_t>(sixteenfold ? all / 16 : all);
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int32_t azp = fixed_.azp[panel_][token_of(i)];
      acc_[i] -= static_cast<uint32_t>(azp) * ones[i % 4 / 2];
    }
  }

  __device__ __forceinline__ void promote(uint32_t scale, bool sixteenfold) {
    float times = sixteenfold ? 0.0625f : 1.0f;  // of subnormal scales, too, exact
    if (p_.azp != nullptr) {
      if (sixteenfold) divide();
      times = 1.0f;
      subtract_azp(sixteenfold);
    }
    const float s[2] = {__fmul_rn(half_of(p_.dtype, scale, 0), times),
                        __fmul_rn(half_of(p_.dtype, scale, 1), times)};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float t = __int2float_rn(static_cast<int32_t>(acc_[i]));
      chain_[i] = __fmaf_rn(s[i % 4 / 2], t, chain_[i]);
    }
  }
  __device__ __forceinline__ void end_slice() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % 4 >= 2) continue;
      const float2 slice = {chain_[i], chain_[i + 2]};
      float2& all = sums_of<float2>(i);  // of the first: -0, and the slice's sum is that
      all = first_slice_ ? slice : float2{__fadd_rn(all.x, slice.x), __fadd_rn(all.y, slice.y)};
    }
    first_slice_ = false;
    clear();
  }
  // All of the sums are one group's; so many rows behind K have counted as values less zero points.
  __device__ __forceinline__ void put_all(int behind, bool is_part) {
    if (p_.azp != nullptr && behind > 0 && lane_ % 4 == 0) {
      const int times = behind * (weights_.sixteenfold ? 16 : 1);
      ones_[0] += times * static_cast<int>(weights_.zeros & 15);
      ones_[1] += times * static_cast<int>(weights_.zeros >> 4);
    }
    if (weights_.sixteenfold) divide();
    if (p_.azp != nullptr) subtract_azp(weights_.sixteenfold != 0);
    const float s[2] = {half_of(p_.dtype, weights_.scale, 0), half_of(p_.dtype, weights_.scale, 1)};
    const auto scaled = [&](int h, uint32_t t) {
      return __fmul_rn(s[h], __int2float_rn(static_cast<int32_t>(t)));
    };
    const auto& t = acc_;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % 4 >= 2) continue;
      if (is_part) {
        sums_of<uint2>(i) = {t[i], t[i + 2]};
      } else {
        sums_of<float2>(i) = {scaled(0, t[i]), scaled(1, t[i + 2])};
      }
    }
  }

  static __device__ void multiply_add(uint32_t (&to)[kSums], const uint32_t (&w)[4],
                                      uint64_t tokens, bool begins) {
    using cute::SM90::GMMA::ScaleOut;
    [&]<size_t... I>(std::index_sequence<I...>) {
      Mma<kTokens>::fma(w[0], w[1], w[2], w[3], tokens, to[I]...,
                        begins ? ScaleOut::Zero : ScaleOut::One);
    }(std::make_index_sequence<kSums>{});
  }
};

}  // namespace scaled_mm::cuda::sm90::k_scales
