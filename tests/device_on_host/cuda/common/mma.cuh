// What the real header has as instructions, played: lanes of a warp lay out what they have.
#pragma once

#include "block.h"

namespace scaled_mm::cuda {

inline uint32_t played_lanes[32][32][6];  // warp, lane
inline const uint8_t* played_rows[32][32];

inline void load_matrices(uint32_t (&to)[4], const uint8_t* from) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  played_rows[warp][lane] = from;
  Block::meet(warp, 32);
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&to[i], played_rows[warp][8 * i + lane / 4] + lane % 4 * 4, 4);
  }
  Block::meet(warp, 32);
}

inline void multiply_add(int32_t (&sums)[4], const uint32_t (&w)[4], uint32_t x0, uint32_t x1) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto& lanes = played_lanes[warp];
  const uint32_t mine[6] = {w[0], w[1], w[2], w[3], x0, x1};
  std::copy(mine, mine + 6, lanes[lane]);
  Block::meet(warp, 32);
  const auto products = [](uint32_t x, uint32_t y) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += int8_t(x >> 8 * i) * int8_t(y >> 8 * i);
    return sum;
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, token = lane % 4 * 2 + e % 2;
    for (int t = 0; t < 4; ++t) {
      const auto& of_row = lanes[4 * row + t];
      const auto& of_token = lanes[4 * token + t];
      sums[e] += products(of_row[e / 2], of_token[4]) + products(of_row[2 + e / 2], of_token[5]);
    }
  }
  Block::meet(warp, 32);
}

}  // namespace scaled_mm::cuda
