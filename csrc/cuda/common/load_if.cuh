// Loads of which a thread wants some or none.
#pragma once

#include <cstdint>

namespace scaled_mm::cuda {

// Loads 2, 4 or 16 bytes as words, if `wanted`; else `to` keeps what it has. A thread's loads are
// under way together, where of an `if`, a `?:` or a switch compilers make a load and a copy of it,
// which waits, and only then the next load. Like any that is volatile it stays behind
// wait_for_dependencies.
template <int kBytes>
__device__ __forceinline__ void load_if(bool wanted, const void* from, uint32_t* to) {
  const auto condition = static_cast<uint32_t>(wanted);
  if constexpr (kBytes == 2) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted ld.global.u16 %0, [%1];}"
                 : "+r"(to[0])
                 : "l"(from), "r"(condition));
  } else if constexpr (kBytes == 4) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted ld.global.u32 %0, [%1];}"
                 : "+r"(to[0])
                 : "l"(from), "r"(condition));
  } else {
    static_assert(kBytes == 16);
    asm volatile(
        "{.reg .pred wanted; setp.ne.u32 wanted, %5, 0;"
        "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(from), "r"(condition));
  }
}

}  // namespace scaled_mm::cuda
