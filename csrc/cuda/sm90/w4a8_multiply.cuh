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

// A warpgroup's part of every stage: kPanels panels of 64 channels, 16 channels of each for a warp.
//
// A chunk is taken in items: kItemSteps steps of 32 rows of a panel. The products of an item
// (wgmma) run while the words of the next come from shared memory and its weights are made and,
// with two panels, while the sums of the other's group go on to floats. Those of slices wait in
// shared memory: registers are for products, and for many sums to go on to floats at a time.
template <class Block>
class Multiplier {
 public:
  static constexpr int kTokens = Block::kTokens, kPanels = Block::kPanels;
  static constexpr int kSums = kTokens / 2;  // of a lane and panel
  static constexpr bool kOne = Block::kGroups == Groups::one;

  __device__ Multiplier(const Params& p, const uint8_t* tokens, const uint8_t* words,
                        typename Block::Fixed& fixed)
      : p_(p), tokens_(tokens), fixed_(fixed) {
    // From one lane, so that ptxas knows it to be the warp's.
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    warp_ = warp % 4, lane_ = static_cast<int>(threadIdx.x) % 32;
    unit_size_ = unit_bytes(4, ZeroPoint::integer, p.sets);
    words_ = words + warp / 4 * kPanels * unit_size_;
    channel_ = warp / 4 * kPanels * kUnitChannels + warp_ * 16 + lane_ / 4 * 2;
  }

  // Chunks [chunk, last) of a tile; the first begins a slice. Sums to shared memory: of slices, or
  // of all where they are one group, as integers where other parts of K are added to them.
  __device__ __forceinline__ void run(int chunk, int last, bool is_part) {
    first_slice_ = true;
#pragma unroll
    for (int j = 0; j < kPanels; ++j) clear(j);
    before_ = -1;
    row_ = chunk * kUnitRows, left_ = p_.group;
    fresh_ = true, pending_ = false;
    begin_stage(at_);
#pragma unroll 1
    for (; chunk < last; ++chunk) multiply_chunk(chunk + 1 == last);
    cute::warpgroup_wait<0>();
    fence();
#pragma unroll
    for (int j = 0; j < kPanels; ++j) {
      if constexpr (kOne) {
        leave_out(j, last * kUnitRows - p_.k);
        divide(j);
        if (p_.azp != nullptr) subtract_azp(j);
        put_all(j, is_part);
      } else {
        if (pending_) promote(j);
        end_slice(j);
      }
    }
    if (before_ >= 0) release(before_);
  }

 private:
  static constexpr int kItemSteps = Block::kGroups == Groups::of_steps ? 1 : 2;
  static constexpr int kItems = 4 / kItemSteps * kPanels;  // of a chunk

  const Params& p_;
  const uint8_t *tokens_, *words_;
  typename Block::Fixed& fixed_;
  int warp_, lane_, unit_size_, channel_;
  Cursor at_;
  int stored_ = 1;  // phase: what is in shared memory has been done with
  int before_;      // the stage before, whose last products may still run
  int row_, left_;  // the first row of the step or chunk; rows of its group from there on
  bool fresh_;      // a group begins with it
  bool pending_;    // and one has ended before it
  bool new_slice_;  // and a slice
  bool first_slice_;
  // Channels 2 g (elements 4 i and 4 i + 1) and 2 g + 1 of tokens 8 i + 2 t (4 i and 4 i + 2) and
  // the next: sums of groups; of a slice.
  uint32_t acc[kPanels][kSums];
  float chain[kOne ? 1 : kPanels][kOne ? 1 : kSums];
  int32_t ones[kPanels][2];  // of both channels' weights, in a lane's rows
  // Of the sums: a set's scales; whether weights are 16 times theirs, with all zero points 8, as
  // those without have.
  uint32_t scale[kPanels];
  bool sixteenfold[kPanels];
  // Of what comes next.
  uint32_t w_[2][kItemSteps][4];
  uint4 words_of_[kPanels];  // 64 rows
  uint32_t next_scale_[kPanels], zeros_[kPanels];
  bool next_sixteenfold_[kPanels];

  __device__ int token_of(int i) const { return i / 4 * 8 + lane_ % 4 * 2 + i % 2; }
  // Where sums i and i + 2 of a panel, i % 4 < 2, are in a tile.
  template <class T>
  __device__ T& sums_of(int j, int i) const {
    return *reinterpret_cast<T*>(&fixed_.sums[token_of(i)][channel_ + j * kUnitChannels]);
  }

  // Rows of zeros behind K have counted as values less zero points.
  __device__ void leave_out(int j, int rows) {
    if (rows <= 0 || lane_ % 4 != 0) return;
    const int times = sixteenfold[j] ? 16 : 1;
    ones[j][0] += rows * times * static_cast<int>(zeros_[j] & 15);
    ones[j][1] += rows * times * static_cast<int>(zeros_[j] >> 4);
  }
  // No sum of 16 times its weights leaves int32: K is below 2^17.
  __device__ void divide(int j) {
    if (!sixteenfold[j]) return;
#pragma unroll
    for (uint32_t& t : acc[j]) t = static_cast<uint32_t>(static_cast<int32_t>(t) >> 4);
    ones[j][0] /= 16, ones[j][1] /= 16;
    sixteenfold[j] = false;
  }
  // The sum over all of a group in the lane's rows, of the channel 2 g + h.
  __device__ int32_t ones_of(int j, int h) const {
    int32_t all = ones[j][h];
    all += __shfl_xor_sync(~0u, all, 1);
    return all + __shfl_xor_sync(~0u, all, 2);
  }
  // The products of the tokens' zero points go.
  __device__ __forceinline__ void subtract_azp(int j) {
    const auto one = static_cast<uint32_t>(ones_of(j, 0)),
               two = static_cast<uint32_t>(ones_of(j, 1));
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      acc[j][i] -= static_cast<uint32_t>(fixed_.azp[token_of(i)]) * (i % 4 < 2 ? one : two);
    }
  }

  __device__ void release(int stage) const { Empty::arrive(&fixed_.empty[stage]); }

  __device__ void clear(int j) {
    ones[j][0] = ones[j][1] = 0;
    if constexpr (!kOne) {
#pragma unroll
      for (float& x : chain[j]) x = -0.0f;
    }
  }
  __device__ void fence(int j) {
#pragma unroll
    for (uint32_t& x : acc[j]) cute::warpgroup_fence_operand(x);
  }
  __device__ void fence() {
#pragma unroll
    for (int j = 0; j < kPanels; ++j) fence(j);
  }

  __device__ __forceinline__ void promote(int j) {
    if (p_.azp != nullptr) {
      divide(j);
      subtract_azp(j);
    }
    const float part = sixteenfold[j] ? 0.0625f : 1.0f;  // of subnormal scales, too, exact
    const float s[2] = {__fmul_rn(half_of(p_.dtype, scale[j], 0), part),
                        __fmul_rn(half_of(p_.dtype, scale[j], 1), part)};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float t = __int2float_rn(static_cast<int32_t>(acc[j][i]));
      chain[j][i] = __fmaf_rn(s[i % 4 / 2], t, chain[j][i]);
    }
    ones[j][0] = ones[j][1] = 0;
  }
  // Before the first sums of a part.
  __device__ void wait_for_room(int j) {
    if (!Block::kEnds || j > 0) return;
    Empty::wait(&fixed_.stored, stored_);
    stored_ ^= 1;
  }
  __device__ __forceinline__ void end_slice(int j) {
    if (first_slice_) {  // -0 and its sum: that
      wait_for_room(j);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i % 4 < 2) sums_of<float2>(j, i) = {chain[j][i], chain[j][i + 2]};
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i % 4 >= 2) continue;
        float2& sums = sums_of<float2>(j, i);
        sums = {__fadd_rn(sums.x, chain[j][i]), __fadd_rn(sums.y, chain[j][i + 2])};
      }
    }
    clear(j);
    if (j == kPanels - 1) first_slice_ = false;
  }
  __device__ __forceinline__ void put_all(int j, bool is_part) {
    wait_for_room(j);
    if (is_part) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        if (i % 4 < 2) sums_of<uint2>(j, i) = {acc[j][i], acc[j][i + 2]};
      }
      return;
    }
    const float s[2] = {half_of(p_.dtype, scale[j], 0), half_of(p_.dtype, scale[j], 1)};
    const auto scaled = [&](int h, uint32_t t) {
      return __fmul_rn(s[h], __int2float_rn(static_cast<int32_t>(t)));
    };
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % 4 < 2) sums_of<float2>(j, i) = {scaled(0, acc[j][i]), scaled(1, acc[j][i + 2])};
    }
  }

  // What an item's weights are made of. A set's scales are kept until its group's sums are.
  template <int kItem>
  __device__ __forceinline__ void load(int stage) {
    constexpr int kStep = kItem / kPanels * kItemSteps, j = kItem % kPanels;
    const uint8_t* const unit = words_ + stage * Block::kWordBytes + j * unit_size_;
    if constexpr (kStep % 2 == 0) words_of_[j] = *unit_words(unit, kStep / 2, warp_, lane_);
    if constexpr (kStep == 0 || kItemSteps == 1) {
      const int pair = 8 * warp_ + lane_ / 4;
      const uint8_t* const set =
          unit + unit_word_bytes(4) + kStep * p_.sets / 4 * unit_set_bytes(4, ZeroPoint::integer);
      next_scale_[j] = reinterpret_cast<const uint32_t*>(set)[pair];
      zeros_[j] = set[2 * kUnitChannels + pair];
    }
  }
  template <int kItem>
  __device__ __forceinline__ void make() {
    constexpr int kStep = kItem / kPanels * kItemSteps, j = kItem % kPanels;
    if constexpr (kStep == 0 || kItemSteps == 1) {
      next_sixteenfold_[j] = __all_sync(~0u, zeros_[j] == kEights);
    }
    const uint4& of = words_of_[j];
    const uint32_t words[4] = {of.x, of.y, of.z, of.w};
    if (next_sixteenfold_[j]) {
#pragma unroll
      for (int s = 0; s < kItemSteps; ++s) {
        const int at = 2 * ((kStep + s) % 2);
        sixteen_times_less_eight(w_[kItem % 2][s], words[at], words[at + 1]);
      }
    } else {
      const NibbleZeros zero(zeros_[j]);
#pragma unroll
      for (int s = 0; s < kItemSteps; ++s) {
        const int at = 2 * ((kStep + s) % 2);
        zero.subtract(w_[kItem % 2][s], words[at], words[at + 1]);
      }
    }
#pragma unroll
    for (int s = 0; s < kItemSteps; ++s) {
#pragma unroll
      for (uint32_t& w : w_[kItem % 2][s]) cute::warpgroup_fence_operand(w);  // here, not later
    }
  }

  template <int kItem>
  __device__ __forceinline__ void multiply_item(uint32_t tokens, const Cursor& next, bool is_last) {
    constexpr int kStep = kItem / kPanels * kItemSteps, j = kItem % kPanels, kBuffer = kItem % 2;
    make<kItem>();
    // Groups of chunks begin with a chunk.
    constexpr bool kMayBegin = kStep == 0 || Block::kGroups == Groups::of_steps;
    if constexpr (!kOne && kMayBegin) {
      if (fresh_ && pending_) {
        cute::warpgroup_wait<0>();
        fence(j);
        promote(j);
        if (new_slice_) end_slice(j);
      }
    }
    if constexpr (kStep == 0 || kItemSteps == 1) {
      scale[j] = next_scale_[j], sixteenfold[j] = next_sixteenfold_[j];
    }
    if (p_.azp != nullptr) {
#pragma unroll
      for (int s = 0; s < kItemSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ones[j][i % 2] = __dp4a(static_cast<int>(w_[kBuffer][s][i]), 0x01010101, ones[j][i % 2]);
        }
      }
    }
    if constexpr (kItem == 0) {
      if (!p_.arranged) Empty::wait(&fixed_.ready[at_.stage], at_.phase);
    }
    cute::warpgroup_arrive();
#pragma unroll
    for (int s = 0; s < kItemSteps; ++s) {  // 32 rows: 32 bytes of a token
      const uint64_t of_step = with_address(tokens + 2 * (kStep + s));
      const bool begins = s == 0 && kMayBegin && fresh_;
      multiply_add(acc[j], w_[kBuffer][s], of_step, begins);
    }
    cute::warpgroup_commit_batch();
    if constexpr (kItem + kPanels < kItems) {
      load<kItem + kPanels>(at_.stage);
    } else {
      if (kItem + kPanels == kItems && !is_last) wait(next);
      load<kItem + kPanels - kItems>(is_last ? at_.stage : next.stage);  // the last ones: of none
    }
    cute::warpgroup_wait<1>();
    if (kItem == 0 && before_ >= 0) release(before_);
    if constexpr (Block::kGroups == Groups::of_steps ? j == kPanels - 1 : kItem == kItems - 1) {
      next_rows();
    }
  }
  __device__ void next_rows() {
    if constexpr (kOne) {
      fresh_ = false;
    } else {
      constexpr int kRows = Block::kGroups == Groups::of_steps ? 32 : kUnitRows;
      const int begin = row_ + left_ - p_.group;  // of the group
      row_ += kRows, left_ -= kRows;
      if (fresh_) pending_ = row_ <= p_.k;
      fresh_ = left_ == 0;
      if (!fresh_) return;
      left_ = p_.group;
      new_slice_ = row_ / kSlice != begin / kSlice;
    }
  }

  __device__ void wait(const Cursor& at) const {
    Full::wait(&fixed_.full[at.stage], at.phase);
    asm volatile("" ::: "memory");  // no read of the stage before
  }
  __device__ __forceinline__ void begin_stage(const Cursor& at) {
    wait(at);
    [&]<int... kItem>(std::integer_sequence<int, kItem...>) {
      (load<kItem>(at.stage), ...);
    }(std::make_integer_sequence<int, kPanels>{});
  }

  __device__ __forceinline__ void multiply_chunk(bool is_last) {
    Cursor next = at_;
    next.advance(p_.stages);
    const uint64_t whole = descriptor(tokens_ + at_.stage * Block::kTokenBytes);
    const uint32_t tokens = __shfl_sync(~0u, static_cast<uint32_t>(whole), 0);
    fence();
    [&]<int... kItem>(std::integer_sequence<int, kItem...>) {
      (multiply_item<kItem>(tokens, next, is_last), ...);
    }(std::make_integer_sequence<int, kItems>{});
    fence();
    before_ = at_.stage;
    at_ = next;
  }

  // The lower half of a descriptor is the address; the upper one is the same for all.
  static __device__ uint64_t with_address(uint32_t address) {
    constexpr uint64_t kUpper = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
    return kUpper | address;
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
