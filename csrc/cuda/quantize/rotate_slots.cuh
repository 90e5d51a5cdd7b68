// A warp's rotation of 2048 columns, of which each lane has 64, so that few stages meet other
// lanes.
//
// The columns are 256 groups of eight. A lane's slots 0 to 7 have eight of them. The bits of a
// group's number are at first three of the slot (the lowest, from o = 0 on), then of the lane. A
// stage of the slots' bit o is a butterfly within the lane. A stage r beyond them takes one of the
// lane's bits, 4 - r: each lane keeps half of its values and sends the others to the lane that
// differs in that bit, which sends as many; from then on the slots' bit r is that stage's.
//
// Nothing is moved within a lane for it, nor for shared memory's banks: a lane's slots may lie in
// an order of their own (slot ^ some bits of the lane), since a butterfly of lo + g hi, lo - g hi
// gives them in either order, by g = 1 or -1. What comes out negated by that is known from the lane
// alone, and the factor at the end has that sign. Each sum and difference is that of
// docs/numerics.md, or its negative.
#pragma once

#include "problems/produce.h"
#include "problems/quantize.h"

namespace scaled_mm::cuda {

constexpr int kSlots = 8, kSlotBits = 3;

// Within a group: strides 1, 2 and 4.
__device__ __forceinline__ void rotate_group(float (&v)[kSumGroup]) {
#pragma unroll
  for (int stride = 1; stride < kSumGroup; stride *= 2) {
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) {
      if (e & stride) continue;
      const float sum = v[e] + v[e + stride];
      v[e + stride] = v[e] - v[e + stride];
      v[e] = sum;
    }
  }
}

// x, of which the compiler keeps nothing from one row to the next: registers are for values.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Which groups a lane's slots have, in which order, and negated or not.
template <int kBlock>
class Slots {
  static constexpr int log2(int x) { return x <= 1 ? 0 : 1 + log2(x / 2); }
  static constexpr int kStages = log2(kBlock / kSumGroup);  // beyond a group's own
  static constexpr int kSent = kStages > kSlotBits ? kStages - kSlotBits : 0;

 public:
  // The group that a slot has, f(slot), at first and at last.
  __device__ __forceinline__ auto first() const {
    return [at = anew(from_ ^ order_)](int slot) { return at ^ slot; };
  }
  __device__ __forceinline__ auto last() const {
    return [at = anew(to_)](int slot) { return at ^ moved(slot); };
  }

  __device__ explicit Slots(int lane) {
    const auto bit = [&](int b) { return (lane >> b & 1) != 0; };
    order_ = lane & (kSent == 3 ? 3 : 7);
    bool last[kSlotBits], negated[kSlotBits], all = false;
    last[0] = bit(kSent == 0 ? 3 : 0);
    last[1] = kSent < 3 && bit(kSent == 2 ? 2 : 1);
    last[2] = kSent < 3 && bit(kSent == 2 ? 1 : 2);
#pragma unroll
    for (int o = 0; o < kSlotBits; ++o) {
      const bool is_stage = o < kStages, keeps = o < kSent ? bit(4 - o) : last[o];
      minus_ |= keeps << (kWithin + o) | last[o] << (kAfter + o);
      if (!is_stage) last[o] = order_ >> o & 1;
      negated[o] = is_stage && (order_ >> o & 1);
      to_ ^= last[o] << place(o);
    }
#pragma unroll
    for (int r = 0; r < kSent; ++r) {
      all ^= bit(4 - r) && negated[r];
      negated[r] = bit(4 - r);
    }
#pragma unroll
    for (int b = 0; b < 5; ++b) {
      const bool is_sent = 4 - b < kSent;
      from_ |= bit(b) << (is_sent ? kSlotBits + 4 - b : kSlotBits + kSent + b);
      to_ ^= bit(b) << (is_sent ? 4 - b : kSlotBits + kSent + b);
    }
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      bool sign = all;
#pragma unroll
      for (int o = 0; o < kSlotBits; ++o) sign ^= negated[o] && ((i >> o & 1) != last[o]);
      minus_ |= sign << i;
    }
  }

  __device__ __forceinline__ void rotate(float (&v)[kSlots][kSumGroup]) const {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) rotate_group(v[i]);
    if constexpr (kStages > 0) butterfly<1>(v, signed_by(kWithin));
    if constexpr (kStages > 1) butterfly<2>(v, signed_by(kWithin + 1));
    if constexpr (kStages > 2) butterfly<4>(v, signed_by(kWithin + 2));
    if constexpr (kSent > 0) send<0>(v);
    if constexpr (kSent > 1) send<1>(v);
    if constexpr (kSent > 2) send<2>(v);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const float factor = rotation_factor(kBlock) * signed_by(i);
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) v[i][e] *= factor;
    }
  }

 private:
  // Bits of minus_: of a slot at last, of g in stages within the lane, of g behind sent values.
  static constexpr int kWithin = kSlots, kAfter = kWithin + kSlotBits;
  int minus_ = 0;
  int from_ = 0, order_, to_ = 0;

  __device__ __forceinline__ float signed_by(int bit) const {
    return anew(minus_) >> bit & 1 ? -1.0f : 1.0f;
  }

  // Where the slots' bit o is in a group's number, at last.
  static constexpr int place(int o) { return o < kSent ? kSlotBits + o : o; }
  static constexpr int moved(int slot) {
    int group = 0;
    for (int o = 0; o < kSlotBits; ++o) group |= (slot >> o & 1) << place(o);
    return group;
  }

  template <int kBit>
  static __device__ __forceinline__ void butterfly(float (&v)[kSlots][kSumGroup], float g) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i & kBit) continue;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const float lo = v[i][e], hi = v[i | kBit][e];
        v[i][e] = __fmaf_rn(hi, g, lo);
        v[i | kBit][e] = __fmaf_rn(hi, -g, lo);
      }
    }
  }
  template <int kStage>
  __device__ __forceinline__ void send(float (&v)[kSlots][kSumGroup]) const {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (!(i & 1 << kStage)) continue;
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e)
        v[i][e] = __shfl_xor_sync(~0u, v[i][e], 1 << (4 - kStage));
    }
    butterfly<1 << kStage>(v, signed_by(kAfter + kStage));
  }
};

}  // namespace scaled_mm::cuda
