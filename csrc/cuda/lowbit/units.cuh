// Units of a packed weight (docs/lowbit.md, "The packed form"): what a lane finds where, and how
// its words become the A operand of mma.m16n8k16 or, four warps together, of wgmma.m64k16.
#pragma once

#include "cuda/lowbit/convert.cuh"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// A unit's words lie in parts: 16 bytes for each lane of four warps. One has four steps of 16 rows
// of four bits, or two of eight.
inline constexpr int kUnitPartBytes = 4 * 32 * 16;

__device__ inline const uint4* unit_words(const uint8_t* unit, int part, int warp, int lane) {
  return reinterpret_cast<const uint4*>(unit + part * kUnitPartBytes) + 32 * warp + lane;
}

// How a unit's weights are written.
template <int kBits_, ZeroPoint kZero_>
struct UnitFormat {
  static constexpr int kBits = kBits_;
  static constexpr ZeroPoint kZero = kZero_;
  static constexpr int kWordBytes = unit_word_bytes(kBits), kParts = kWordBytes / kUnitPartBytes;
  static constexpr int kSetBytes = unit_set_bytes(kBits, kZero);
  static constexpr int kStepWords = kBits / 4;  // of a lane: 16 rows of two channels
  static constexpr int kPartSteps = 4 / kStepWords;
  // Kernels for large groups of its own: the others are rare, and served by those for small ones.
  static constexpr bool kUsual = kZero == (kBits == 4 ? ZeroPoint::integer : ZeroPoint::none);
};

// Two rows of a channel, from what Nibbles or Bytes make of the values without their zero point.
template <class T, class Format>
__device__ Pair scaled_weight(Pair value, Pair scale, Pair zero) {
  if constexpr (Format::kZero == ZeroPoint::real) {
    return Half2Ops<T>::fma(value, scale, zero);
  } else {
    return Half2Ops<T>::multiply(value, scale);
  }
}

// Scales and zero points of a lane's two channels, 16 warp + 2 (lane / 4) and the next one. read()
// and lift() make it; between them its words may be on their way. weights() makes the 16 x 16
// weights of a step: w[2 i + h] is channel h in rows 8 i + 2 (lane % 4) and the next.
template <class T, class Format, int = Format::kBits>
struct UnitGroup;

template <class T, class Format>
struct UnitGroup<T, Format, 4> {
  static constexpr bool kReal = Format::kZero == ZeroPoint::real;
  Pair base[kReal ? 1 : 2];  // of each channel, in both halves: what subtract_base() takes away
  Pair scale;                // of both
  Pair zero;                 // of both, of floats

  __device__ void read(const uint8_t* unit, int set, int warp, int lane) {
    const uint8_t* from = unit + Format::kWordBytes + set * Format::kSetBytes;
    const int pair = 8 * warp + lane / 4;
    scale = *reinterpret_cast<const uint32_t*>(from + 4 * pair);
    from += 2 * kUnitChannels;
    if constexpr (kReal) {
      zero = *reinterpret_cast<const uint32_t*>(from + 4 * pair);
    } else {
      base[0] = from[pair];
    }
  }
  __device__ void lift() {
    if constexpr (kReal) return;
    const uint32_t both = __byte_perm(base[0], 0, 0x1010);
    if constexpr (std::is_same_v<T, __half>) {
      base[0] = and_or(both, 0x000f000f, 0x64006400);
      base[1] = and_or(both, 0x00f000f0, 0xd400d400);  // -(64 + z): z counts in sixteenths there
    } else {
      base[0] = and_or(both, 0x000f000f, 0x43004300);
      base[1] = and_or(both >> 4, 0x000f000f, 0x43004300);
    }
  }
  __device__ void weights(Pair (&w)[4], const uint32_t* words) const {
    Nibbles<T>::lift(words[0], w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Pair of_zero;
      if constexpr (kReal) {
        of_zero = Nibbles<T>::fixed(true, i);
      } else {
        of_zero = base[i % 2];
      }
      w[i] =
          scaled_weight<T, Format>(Nibbles<T>::subtract_base(w[i], of_zero, i),
                                   Half2Ops<T>::both(scale, i % 2), Half2Ops<T>::both(zero, i % 2));
    }
  }
};

template <class T, class Format>
struct UnitGroup<T, Format, 8> {
  static constexpr ZeroPoint kZero = Format::kZero;
  Pair base[2];  // of each channel, in both halves: its zero point, lifted
  Pair scale;    // of both
  Pair zero;     // of both, of floats

  __device__ void read(const uint8_t* unit, int set, int warp, int lane) {
    const uint8_t* from = unit + Format::kWordBytes + set * Format::kSetBytes;
    const int pair = 8 * warp + lane / 4;
    scale = *reinterpret_cast<const uint32_t*>(from + 4 * pair);
    from += 2 * kUnitChannels;
    if constexpr (kZero == ZeroPoint::real) {
      zero = *reinterpret_cast<const uint32_t*>(from + 4 * pair);
    } else if constexpr (kZero == ZeroPoint::integer) {
      base[0] = *reinterpret_cast<const uint16_t*>(from + 2 * pair);
    }
  }
  __device__ void lift() {
    if constexpr (kZero == ZeroPoint::integer) {
      Bytes<T>::lift(__byte_perm(base[0], 0, 0x1010), base);  // bytes 0 and 2, 1 and 3
    }
  }
  __device__ void weights(Pair (&w)[4], const uint32_t* words) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Pair lifted[2];
      Bytes<T>::lift(words[i], lifted);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (kZero == ZeroPoint::integer) {
          lifted[h] = Half2Ops<T>::subtract(lifted[h], base[h]);
        } else if constexpr (Bytes<T>::kOf128 != 0) {
          lifted[h] = Half2Ops<T>::subtract(lifted[h], Bytes<T>::kOf128);
        }
        w[2 * i + h] = scaled_weight<T, Format>(lifted[h], Half2Ops<T>::both(scale, h),
                                                Half2Ops<T>::both(zero, h));
      }
    }
  }
};

// f(UnitFormat), of the weight's bits and zero points: four bits without zero points are as those
// with integer ones.
template <class F>
decltype(auto) with_unit_format(int bits, ZeroPoint zero, const F& f) {
  if (bits == 4) {
    if (zero == ZeroPoint::real) return f(UnitFormat<4, ZeroPoint::real>{});
    return f(UnitFormat<4, ZeroPoint::integer>{});
  }
  switch (zero) {
    case ZeroPoint::none: return f(UnitFormat<8, ZeroPoint::none>{});
    case ZeroPoint::integer: return f(UnitFormat<8, ZeroPoint::integer>{});
    default: return f(UnitFormat<8, ZeroPoint::real>{});
  }
}

}  // namespace scaled_mm::cuda
