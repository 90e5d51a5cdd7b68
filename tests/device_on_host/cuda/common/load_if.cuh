// Stands for csrc's file of that name: loads without PTX.
#pragma once

#include <cstdint>
#include <cstring>

namespace scaled_mm::cuda {

template <int kBytes>
inline void load_if(bool wanted, const void* from, uint32_t* to) {
  if (!wanted) return;
  if constexpr (kBytes == 2) *to = 0;
  std::memcpy(to, from, kBytes);
}

}  // namespace scaled_mm::cuda
