// The quantiser's arithmetic (docs/numerics.md, section 4) on the device: the range of
// some elements, the quantiser that a range makes, and what that does to an element.
// float32, one rounding per operation, subnormals kept: the bits of cpu/quantize_rows.h.
#pragma once

#include <cfloat>
#include <cstdint>

namespace scaled_mm::cuda {

// The range of some elements, and of zero. Minima, maxima and a NaN that stays need no order, so
// however the elements are shared out the result is the same.
struct Range {
  float lo = 0.0f;
  float hi = 0.0f;
  float poison = 0.0f;  // 0, or NaN once an element was NaN or infinite (fmin and fmax drop NaN)

  __device__ void extend(float x) {
    lo = fminf(lo, x);
    hi = fmaxf(hi, x);
    poison = __fmaf_rn(x, 0.0f, poison);
  }
  __device__ void extend(const Range& other) {
    lo = fminf(lo, other.lo);
    hi = fmaxf(hi, other.hi);
    poison += other.poison;
  }
};

// The range of all lanes, in every lane.
__device__ inline Range range_of_warp(Range range) {
  for (int distance = 16; distance > 0; distance /= 2) {
    range.extend(Range{__shfl_xor_sync(~0u, range.lo, distance),
                       __shfl_xor_sync(~0u, range.hi, distance),
                       __shfl_xor_sync(~0u, range.poison, distance)});
  }
  return range;
}

// The range of all threads of a block of whole warps, in the first of them. Once per kernel: the
// shared memory is not guarded against a second use.
__device__ inline Range range_of_block(Range range) {
  __shared__ float lo[32], hi[32], poison[32];
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  range = range_of_warp(range);
  if (thread % 32 == 0) {
    lo[thread / 32] = range.lo;
    hi[thread / 32] = range.hi;
    poison[thread / 32] = range.poison;
  }
  __syncthreads();
  if (thread >= 32) return range;
  const bool there = thread < blockDim.x * blockDim.y / 32;
  return range_of_warp(there ? Range{lo[thread], hi[thread], poison[thread]} : Range{});
}

// q = clamp(round(x / scale) + azp), in one of two ways with the same result.
//
// `exact` follows the formula, for any scale and zero point. `quick` is for scales (and, if given,
// zero points) that are not extreme, which `is_quick` says; it divides without branches, with
// r = RN(1/s):
//
//   q0 = RN(x r)                  is less than 1.5 ulp from x/s
//   q1 = RN(q0 + r RN(x - q0 s))  is less than 1 ulp from it
//   q2 = RN(q1 + r (x - q1 s))    is RN(x/s): Markstein's theorem (1990), as x - q1 s is exact
//
// The theorem asks that nothing underflows. A remainder is a multiple of ulp(q) ulp(s); where
// |x/s| >= 1/4 and |s| >= 2^-100 that is at least 2^-25 2^-123. Where |x/s| < 1/4 whatever is lost
// is below 2^-149 / s, and q2 rounds to 0 as x/s does.
struct Quantizer {
  float scale;
  int32_t azp;
  float divisor;     // the scale, or 1 where all elements are 0
  float reciprocal;  // RN(1 / divisor)
  float lowest;      // of q
  float limit;       // |x| from which on q does not change, or more
  float for_nan;     // an x that makes q = 0 (given scales)
  bool is_quick;

  __device__ float quotient(float x) const {
    float q = x * reciprocal;
    q = __fmaf_rn(__fmaf_rn(-q, divisor, x), reciprocal, q);
    return __fmaf_rn(__fmaf_rn(-q, divisor, x), reciprocal, q);
  }

  // For x within the range that made the quantiser. What comes out may be off int8 by a few on
  // either side, where pack() saturates it.
  __device__ int32_t quick(float x) const {
    constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
    constexpr int32_t kShiftBits = 0x4b400000;
    return __float_as_int(quotient(x) + kShift) + (azp - kShiftBits);
  }

  // The same of a symmetric quantiser, whose q is within int8: in the lowest byte.
  __device__ uint32_t low_byte(float x) const { return __float_as_uint(quotient(x) + 12582912.0f); }

  // For any x.
  __device__ int32_t quick_limited(float x) const {
    x = x == x ? x : for_nan;
    return quick(fminf(fmaxf(x, -limit), limit));
  }

  __device__ int8_t exact(float x) const {
    float value = rintf(__fdiv_rn(x, divisor)) + static_cast<float>(azp);
    value = value == value ? value : 0.0f;  // NaN
    value = fminf(fmaxf(value, lowest), 127.0f);
    return static_cast<int8_t>(static_cast<int32_t>(value));
  }

  // use(bytes), where bytes(v) makes a word of four values' q. `given`: it is no range's, of which
  // the values are.
  template <class Use>
  __device__ __forceinline__ void with_bytes(bool given, bool symmetric, const Use& use) const;
};

// What `quick` wants of a divisor.
__device__ inline bool is_moderate(float divisor) {
  return fabsf(divisor) >= 0x1p-100f && fabsf(divisor) <= 0x1p100f;  // not NaN
}

// RN(x / kBy) of x >= 0; below FLT_MIN, something that is no larger than that. One step of the
// theorem above is enough for either divisor, with every float.
template <int kBy>
__device__ inline float divided(float x) {
  static_assert(kBy == 127 || kBy == 255);
  constexpr float kReciprocal = 1.0f / kBy;
  const float q = x * kReciprocal;
  return __fmaf_rn(__fmaf_rn(-q, kBy, x), kReciprocal, q);
}

// The quantiser of a whole range, for elements of that range.
__device__ inline Quantizer quantizer_of(const Range& range, bool symmetric) {
  Quantizer by = {};
  by.lowest = symmetric ? -127.0f : -128.0f;
  if (range.poison != 0.0f) {  // NaN
    by.scale = by.divisor = __int_as_float(0x7fc00000);
    return by;
  }
  if (symmetric) {
    by.scale = fmaxf(divided<127>(fmaxf(range.hi, -range.lo)), FLT_MIN);
  } else {
    const float width = range.hi - range.lo;
    by.scale =
        fmaxf(isinf(width) ? __fdiv_rn(range.hi / 2 - range.lo / 2, 127.5f) : divided<255>(width),
              FLT_MIN);
    const float azp = rintf(-128.0f - __fdiv_rn(range.lo, by.scale));
    by.azp = static_cast<int32_t>(fminf(fmaxf(azp, -128.0f), 127.0f));
  }
  by.limit = __int_as_float(0x7f800000);  // the range is the limit
  by.divisor = range.lo < range.hi ? by.scale : 1.0f;
  by.is_quick = is_moderate(by.divisor);
  by.reciprocal = __frcp_rn(by.divisor);
  return by;
}

// The first thread's quantiser, in every thread of the block. Once per kernel, as range_of_block.
__device__ inline Quantizer share(const Quantizer& by) {
  __shared__ Quantizer shared;
  if (threadIdx.x == 0 && threadIdx.y == 0) shared = by;
  __syncthreads();
  return shared;
}

// The quantiser of a given scale and zero point, whatever they are, for any elements. Symmetric,
// all from 127 scales on is 127. Else, with |azp| <= 512, all from 1024 scales on saturates.
__device__ inline Quantizer quantizer_given(float scale, int32_t azp, bool symmetric) {
  Quantizer by = {};
  by.scale = by.divisor = scale;
  by.azp = azp;
  by.lowest = symmetric ? -127.0f : -128.0f;
  by.is_quick = is_moderate(scale) && azp >= -512 && azp <= 512;
  by.reciprocal = __frcp_rn(scale);
  by.limit = fabsf(scale) * (symmetric ? 127.0f : 1024.0f);
  by.for_nan = static_cast<float>(-azp) * scale;
  return by;
}

// Four integers as int8, saturated, the first in the low bits.
__device__ inline uint32_t pack(int32_t q0, int32_t q1, int32_t q2, int32_t q3) {
  uint32_t high, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(high) : "r"(q3), "r"(q2));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(q1), "r"(q0), "r"(high));
  return all;
}

// q of four values: of any, of those of a range that made the quantiser, of those of a symmetric
// one.
struct AnyBytes {
  const Quantizer& by;
  __device__ uint32_t operator()(const float* v) const {
    return pack(by.exact(v[0]), by.exact(v[1]), by.exact(v[2]), by.exact(v[3]));
  }
};
struct LimitedBytes {
  const Quantizer& by;
  __device__ uint32_t operator()(const float* v) const {
    return pack(by.quick_limited(v[0]), by.quick_limited(v[1]), by.quick_limited(v[2]),
                by.quick_limited(v[3]));
  }
};
struct QuickBytes {
  const Quantizer& by;
  __device__ uint32_t operator()(const float* v) const {
    return pack(by.quick(v[0]), by.quick(v[1]), by.quick(v[2]), by.quick(v[3]));
  }
};
struct SymmetricBytes {
  const Quantizer& by;
  __device__ uint32_t operator()(const float* v) const {
    return __byte_perm(__byte_perm(by.low_byte(v[0]), by.low_byte(v[1]), 0x0040),
                       __byte_perm(by.low_byte(v[2]), by.low_byte(v[3]), 0x0040), 0x5410);
  }
};

template <class Use>
__device__ __forceinline__ void Quantizer::with_bytes(bool given, bool symmetric,
                                                      const Use& use) const {
  if (!is_quick) {
    use(AnyBytes{*this});
  } else if (given) {
    use(LimitedBytes{*this});
  } else if (symmetric) {
    use(SymmetricBytes{*this});
  } else {
    use(QuickBytes{*this});
  }
}

}  // namespace scaled_mm::cuda
