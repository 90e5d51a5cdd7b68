// What the streaming kernels share: operands of wgmma, and clusters.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cstdint>

namespace scaled_mm::cuda::sm90 {

// A wgmma operand in shared memory: rows of 128 bytes, swizzled, eight rows to a group of 1024.
__device__ inline uint64_t descriptor(const uint8_t* tile) {
  constexpr uint64_t swizzle_128b = uint64_t{1} << 62, group = uint64_t{1024 >> 4} << 32;
  return swizzle_128b | group | (cute::cast_smem_ptr_to_uint(tile) >> 4);
}

// All threads of the cluster meet; what they wrote before is seen by all after.
__device__ inline void cluster_sync() {
  __syncwarp();
  asm volatile("" ::: "memory");
  cute::cluster_arrive();
  cute::cluster_wait();
  asm volatile("" ::: "memory");
}

// What the rank-th block of the cluster has at the address of shared memory: four words.
template <class Vector>
__device__ inline Vector load_remote(uint32_t address, int rank) {
  Vector x;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(reinterpret_cast<uint32_t&>(x.x)), "=r"(reinterpret_cast<uint32_t&>(x.y)),
                 "=r"(reinterpret_cast<uint32_t&>(x.z)), "=r"(reinterpret_cast<uint32_t&>(x.w))
               : "r"(cute::set_block_rank(address, rank))
               : "memory");
  return x;
}

}  // namespace scaled_mm::cuda::sm90
