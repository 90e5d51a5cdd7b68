// Of the real header, what is no arithmetic of 16-bit floats.
#pragma once

#include "block.h"
#include "problems/lowbit.h"

namespace scaled_mm::cuda {

inline const uint4* unit_words(const uint8_t* unit, int part, int warp, int lane) {
  return reinterpret_cast<const uint4*>(unit + 2048 * part) + 32 * warp + lane;
}

}  // namespace scaled_mm::cuda
