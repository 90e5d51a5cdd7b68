// The tensor cores by mma.sync: loads of their operands from shared memory, and products of int8.
#pragma once

#include <cstdint>

namespace scaled_mm::cuda {

// Four matrices of eight rows of 16 bytes; a lane gives the address of one row. Lane 4 g + t gets
// bytes [4 t, 4 t + 4) of row g of each.
__device__ inline void load_matrices(uint32_t (&to)[4], const uint8_t* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
}

// sums += 16 channels x 32 rows of a weight times 32 rows x 8 tokens. Lane 4 g + t has bytes
// [4 t, 4 t + 4) and [16 + 4 t, 16 + 4 t + 4) of the weight's rows g (w[0], w[2]) and g + 8 (w[1],
// w[3]) and of token g (x0, x1); and the sums of row g with tokens 2 t and 2 t + 1, then those of
// row g + 8.
__device__ inline void multiply_add(int32_t (&sums)[4], const uint32_t (&w)[4], uint32_t x0,
                                    uint32_t x1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
#else
  const auto mma = [](int32_t& c0, int32_t& c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  };
  mma(sums[0], sums[1], w[0], x0);
  mma(sums[2], sums[3], w[1], x0);
  mma(sums[0], sums[1], w[2], x1);
  mma(sums[2], sums[3], w[3], x1);
#endif
}

}  // namespace scaled_mm::cuda
