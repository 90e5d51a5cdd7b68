// Units of a packed int4 weight (docs/lowbit.md, "The packed form"): what a lane finds where, and
// how its words become the A operand of mma.m16n8k16 or, four warps together, of wgmma.m64k16.
#pragma once

#include "cuda/common/convert.cuh"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

// Where the words of a lane are: four steps of 16 rows side by side, of one half of a unit's rows.
__device__ inline const uint4* unit_words(const uint8_t* unit, int half, int warp, int lane) {
  return reinterpret_cast<const uint4*>(unit + half * (kUnitWordBytes / 2)) + 32 * warp + lane;
}

// Scales and zero points of a lane's two channels, 16 warp + 2 (lane / 4) and the next one. read()
// and lift() make it; between them its words may be on their way.
template <class T>
struct UnitGroup {
  Pair base[2];  // of each channel, in both halves: what subtract_base() takes away
  Pair scale;    // of both

  __device__ void read(const uint8_t* unit, int set, int warp, int lane) {
    const uint8_t* from = unit + kUnitWordBytes + set * kUnitSetBytes;
    const int pair = 8 * warp + lane / 4;
    scale = *reinterpret_cast<const uint32_t*>(from + 4 * pair);
    base[0] = from[2 * kUnitChannels + pair];
  }
  __device__ void lift() {
    const uint32_t both = __byte_perm(base[0], 0, 0x1010);
    if constexpr (std::is_same_v<T, __half>) {
      base[0] = and_or(both, 0x000f000f, 0x64006400);
      base[1] = and_or(both, 0x00f000f0, 0xd400d400);  // -(64 + z): z counts in sixteenths there
    } else {
      base[0] = and_or(both, 0x000f000f, 0x43004300);
      base[1] = and_or(both >> 4, 0x000f000f, 0x43004300);
    }
  }
  // The 16 x 16 weights of a word: w[2 i + h] is channel h in rows 8 i + 2 (lane % 4) and the next.
  __device__ void weights(Pair (&w)[4], uint32_t word) const {
    Nibbles<T>::lift(word, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = Pairs<T>::multiply(Nibbles<T>::subtract_base(w[i], base[i % 2], i),
                                Pairs<T>::both(scale, i % 2));
    }
  }
};

}  // namespace scaled_mm::cuda
