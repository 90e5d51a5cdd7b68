// Copies of memory that lies in one piece.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>
#include <cstdint>

namespace scaled_mm::cuda::sm90 {

// Multiples of 16 bytes to shared memory; `full` counts them. hint: for L2, a CacheHintSm90.
__device__ inline void bulk_copy(uint8_t* to, const uint8_t* from, int bytes, uint64_t* full,
                                 uint64_t hint) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(cute::cast_smem_ptr_to_uint(to)),
      "l"(from), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(full)), "l"(hint)
      : "memory");
}

// Sends for them to L2.
__device__ inline void bulk_prefetch(const uint8_t* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace scaled_mm::cuda::sm90
