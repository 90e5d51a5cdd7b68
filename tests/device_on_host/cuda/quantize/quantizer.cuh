// The real header, but for pack(), which is one instruction of PTX.
#pragma once

#include <algorithm>
#include <cstdint>

namespace scaled_mm::cuda {

inline uint32_t pack(int32_t q0, int32_t q1, int32_t q2, int32_t q3) {
  const auto byte = [](int32_t q) {
    return static_cast<uint32_t>(static_cast<uint8_t>(std::clamp(q, -128, 127)));
  };
  return byte(q0) | byte(q1) << 8 | byte(q2) << 16 | byte(q3) << 24;
}

}  // namespace scaled_mm::cuda

#define pack pack_by_assembly
#include_next "cuda/quantize/quantizer.cuh"
#undef pack
