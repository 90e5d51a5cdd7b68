// Units of a weight of 4 bits (docs/lowbit.md, "The packed form") as the int8 operand of tensor
// cores: mma.m16n8k32 or, four warps together, wgmma.m64k32.
//
// A lane's word of a step of 16 rows has four rows of two channels,
//
//   word & 0x0f0f0f0f          rows 2 t, 2 t + 8, 2 t + 1, 2 t + 9 of channel 2 g
//   word >> 4 & 0x0f0f0f0f     the same of channel 2 g + 1
//
// where the tensor cores want rows 4 t to 4 t + 3. A sum of integers may take K in any order that
// both operands share, so the tokens' columns are put into that order.
#pragma once

#include "cuda/common/formats.cuh"

namespace scaled_mm::cuda {

// 16 columns of a token in the order in which lanes of a weight of 4 bits have its rows.
__device__ inline uint4 arrange_columns(uint4 x) {
  return {__byte_perm(x.x, x.z, 0x5140), __byte_perm(x.x, x.z, 0x7362),
          __byte_perm(x.y, x.w, 0x5140), __byte_perm(x.y, x.w, 0x7362)};
}
// The column that `place` of 16 has then.
constexpr int arranged_column(int place) { return place / 4 * 2 + place % 2 * 8 + place / 2 % 2; }

// Bytes of a token of ones, at places [4 t, 4 t + 4) of 16 columns of which `there` are in K.
__device__ inline uint32_t arranged_ones(int t, int there) {
  if (there >= 16) return 0x01010101;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= uint32_t{arranged_column(4 * t + i) < there} << 8 * i;
  return word;
}

// The zero points of a lane's two channels.
struct NibbleZeros {
  uint32_t base[2];  // 128 less the zero point, in every byte

  NibbleZeros() = default;
  // From the byte that a set has of them.
  __device__ explicit NibbleZeros(uint32_t both)
      : base{0x80808080 - (both & 15) * 0x01010101, 0x80808080 - (both >> 4) * 0x01010101} {}
  // What a step of 32 rows multiplies, from the words of two steps of 16: values less zero points.
  __device__ void subtract(uint32_t (&w)[4], uint32_t first, uint32_t second) const {
    w[0] = less(first, base[0]), w[1] = less(first >> 4, base[1]);
    w[2] = less(second, base[0]), w[3] = less(second >> 4, base[1]);
  }

 private:
  // No byte overflows: it is 128 and at most 15 more or less.
  __device__ static uint32_t less(uint32_t nibbles, uint32_t base) {
    return ((nibbles & 0x0f0f0f0f) + base) ^ 0x80808080;
  }
};

// The byte of a set that has both zero points 8.
inline constexpr uint32_t kEights = 0x88;
// As NibbleZeros of these, times 16: fewer instructions.
__device__ inline void sixteen_times_less_eight(uint32_t (&w)[4], uint32_t first, uint32_t second) {
  const auto less = [](uint32_t nibbles) {
    uint32_t bytes = (nibbles & 0xf0f0f0f0) ^ 0x80808080;
#ifdef __CUDA_ARCH__  // as one instruction, which compilers make two of
    asm("lop3.b32 %0, %1, 0xf0f0f0f0, 0x80808080, 0x6a;" : "=r"(bytes) : "r"(nibbles));
#endif
    return bytes;
  };
  w[0] = less(first << 4), w[1] = less(first), w[2] = less(second << 4), w[3] = less(second);
}

// One of two 16-bit floats of a word.
__device__ inline float half_of(DType dtype, uint32_t word, int part) {
  return dtype == DType::float16 ? Format<DType::float16>::widen(word, part)
                                 : Format<DType::bfloat16>::widen(word, part);
}

}  // namespace scaled_mm::cuda
