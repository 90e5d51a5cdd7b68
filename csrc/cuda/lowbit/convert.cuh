// Small integers into pairs of 16-bit floats without a conversion: bits are put where a float's
// mantissa counts in ones (docs/lowbit.md explains how), and a constant is taken away.
//
//   float16   1024 = 0x6400: 0|11001|00000 00000      0x6400 | v  is 1024 + v       v < 1024
//   bfloat16   128 = 0x4300: 0|10000110|0000000       0x4300 | v  is  128 + v       v <  128
//   float32   2^23 = 0x4B000000                   0x4B000000 | v  is 2^23 + v       v < 2^23
//
// "Lifted" is such a number, the constant still in it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace scaled_mm::cuda {

using Pair = uint32_t;  // two 16-bit floats, the first in the low half

// (a & mask) | value in one instruction: LOP3 with the table (0xF0 & 0xCC) | 0xAA.
__device__ inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t value) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(value));
  return d;
}

// (~a & mask) | value: LOP3 with the table (0x0F & 0xCC) | 0xAA.
__device__ inline uint32_t not_and_or(uint32_t a, uint32_t mask, uint32_t value) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xAE;" : "=r"(d) : "r"(a), "r"(mask), "r"(value));
  return d;
}

// Arithmetic on pairs, each operation rounded by itself.
template <class T>
struct Half2Ops;

template <>
struct Half2Ops<__half> {
  static __device__ __half2 as(Pair x) { return *reinterpret_cast<__half2*>(&x); }
  static __device__ Pair of(__half2 x) { return *reinterpret_cast<Pair*>(&x); }
  // One of the two in both halves; free where the instruction that takes it can select.
  static __device__ Pair both(Pair x, int which) {
    return of(which ? __high2half2(as(x)) : __low2half2(as(x)));
  }
  static __device__ Pair subtract(Pair a, Pair b) { return of(__hsub2(as(a), as(b))); }
  static __device__ Pair multiply(Pair a, Pair b) { return of(__hmul2(as(a), as(b))); }
  static __device__ Pair fma(Pair a, Pair b, Pair c) { return of(__hfma2(as(a), as(b), as(c))); }
};

template <>
struct Half2Ops<__nv_bfloat16> {
  static __device__ __nv_bfloat162 as(Pair x) { return *reinterpret_cast<__nv_bfloat162*>(&x); }
  static __device__ Pair of(__nv_bfloat162 x) { return *reinterpret_cast<Pair*>(&x); }
  static __device__ Pair both(Pair x, int which) {
    return of(which ? __high2bfloat162(as(x)) : __low2bfloat162(as(x)));
  }
  static __device__ Pair subtract(Pair a, Pair b) { return of(__hsub2(as(a), as(b))); }
  static __device__ Pair multiply(Pair a, Pair b) { return of(__hmul2(as(a), as(b))); }
  // Rounded once, too, where there is no instruction: in float32 to odd first, which has enough
  // bits more that the second rounding is that of the exact value.
  static __device__ Pair fma(Pair a, Pair b, Pair c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    const auto one = [](uint32_t x, uint32_t y, uint32_t z) {  // each in the upper half
      const float u = __uint_as_float(x), v = __uint_as_float(y), w = __uint_as_float(z);
      const uint32_t odd = __fmaf_rd(u, v, w) != __fmaf_ru(u, v, w);
      return __float2bfloat16_rn(__uint_as_float(__float_as_uint(__fmaf_rz(u, v, w)) | odd));
    };
    return of(__halves2bfloat162(one(a << 16, b << 16, c << 16),
                                 one(a & 0xffff0000, b & 0xffff0000, c & 0xffff0000)));
#else
    return of(__hfma2(as(a), as(b), as(c)));
#endif
  }
};

// Eight nibbles of a word. Pair i is of nibbles i and i + 4, which AWQ's order makes neighbours:
//
//   nibble    7    6    5    4    3    2    1    0
//   column    7    5    3    1    6    4    2    0       pair i: columns 2 i and 2 i + 1
//
// lift() leaves pair i lifted, of the first two or of all four, by its own constant and factor;
// subtract_base() takes from it a zero point that went through lift() and base() in the same place.
// The difference is exact. fixed() is what base() would be of the zero points 0, or 8 (signed):
// known to the compiler, which does not look into and_or.
template <class T>
struct Nibbles;

// A float16's mantissa has room for a nibble in two places, so that only one shift is needed:
//
//   word                  7777 5555 3333 1111  6666 4444 2222 0000     (digits: columns)
//   & 0x000f000f          .... .... .... 1111  .... .... .... 0000     1024 +    v    pair 0
//   & 0x00f000f0          .... .... 3333 ....  .... .... 2222 ....     1024 + 16 v    pair 1
//   >> 8, the same again                                                          pairs 2 and 3
template <>
struct Nibbles<__half> {
  template <int kPairs>
  static __device__ void lift(uint32_t word, Pair (&pair)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pair[i] = and_or(word >> i / 2 * 8, i % 2 ? 0x00f000f0 : 0x000f000f, 0x64006400);
    }
  }
  // 1024 + z stays, 1024 + 16 z becomes -(64 + z).
  static __device__ Pair base(Pair lifted, int i) {
    return i % 2 ? Half2Ops<__half>::multiply(lifted, 0xac00ac00) : lifted;  // -1/16
  }
  static __device__ Pair fixed(bool is_signed, int i) {
    if (i % 2) return is_signed ? 0xd480d480 : 0xd400d400;  // -72, -64
    return is_signed ? 0x64086408 : 0x64006400;             // 1032, 1024
  }
  static __device__ Pair subtract_base(Pair lifted, Pair base, int i) {
    return i % 2 ? Half2Ops<__half>::fma(lifted, 0x2c002c00, base)  // 1/16
                 : Half2Ops<__half>::subtract(lifted, base);
  }
};

// A bfloat16's has room in one: every pair is shifted down there.
template <>
struct Nibbles<__nv_bfloat16> {
  template <int kPairs>
  static __device__ void lift(uint32_t word, Pair (&pair)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) pair[i] = and_or(word >> 4 * i, 0x000f000f, 0x43004300);
  }
  static __device__ Pair base(Pair lifted, int) { return lifted; }
  static __device__ Pair fixed(bool is_signed, int) {
    return is_signed ? 0x43084308 : 0x43004300;  // 136, 128
  }
  static __device__ Pair subtract_base(Pair lifted, Pair base, int) {
    return Half2Ops<__nv_bfloat16>::subtract(lifted, base);
  }
};

// Four bytes of a word, 0 to 255. Pair 0 is of bytes 0 and 2, pair 1 of 1 and 3.
//
// lift() leaves them lifted, by as much in both pairs, so that the difference of two lifted bytes
// is that of the bytes, exactly. kOf128 is the byte 128, lifted: a signed value is stored with 128
// added.
template <class T>
struct Bytes;

// PRMT puts a byte below 0x64: 1024 + v.
template <>
struct Bytes<__half> {
  static constexpr Pair kOf128 = 0x64806480;
  static __device__ void lift(uint32_t word, Pair (&pair)[2]) {
    pair[0] = __byte_perm(word, 0x64646464, 0x5250);
    pair[1] = __byte_perm(word, 0x64646464, 0x5351);
  }
};

// A bfloat16's mantissa has room for 7 bits. Bit 7 of a byte lies where the exponent ends, and
// tells 128 from 256:
//
//   (word & 0x007f007f) | 0x43004300      128 + the lower 7 bits
//   (~word & 0x00800080) | 0x43004300     128 where bit 7 is set, else 256
//
// The difference is v - 128, exactly.
template <>
struct Bytes<__nv_bfloat16> {
  static constexpr Pair kOf128 = 0;
  static __device__ void lift(uint32_t word, Pair (&pair)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bytes = word >> 8 * i;
      pair[i] = Half2Ops<__nv_bfloat16>::subtract(and_or(bytes, 0x007f007f, 0x43004300),
                                                  not_and_or(bytes, 0x00800080, 0x43004300));
    }
  }
};

}  // namespace scaled_mm::cuda
