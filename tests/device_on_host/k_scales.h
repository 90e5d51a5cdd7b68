// Products with scales along K, and what their sums over groups are (docs/numerics.md, section 8).
#pragma once

#include "cuda_runtime.h"

#include <cstring>
#include <random>

#include "integers.h"
#include "problems/lowbit.h"

namespace {

using namespace scaled_mm;

std::mt19937 random_bits(0);
int below(int end) { return static_cast<int>(random_bits() % static_cast<unsigned>(end)); }
int cases = 0, faults = 0;
float number() { return static_cast<float>(below(1 << 20) - (1 << 19)) / 777777.0f; }

struct Product {
  int m, n, k, group;
  bool blocks, azp;
  std::vector<int8_t> a, b;      // [M, K], [N, K]; of 4 bits values less their zero points
  std::vector<uint8_t> q, z;     // [K, N], [K / G, N]
  std::vector<uint16_t> scales;  // bfloat16 [K / G, N]
  std::vector<float> row_scales, block_scales;
  std::vector<int32_t> zero_points;

  Product(int m, int n, int k, int group, bool blocks, bool azp)
      : m(m), n(n), k(k), group(group), blocks(blocks), azp(azp), a(m * k), b(n * k) {
    for (int8_t& x : a) x = static_cast<int8_t>(random_bits());
    const int groups = ceil_div(k, group), across = ceil_div(n, 128);
    for (int i = 0; i < m; ++i) zero_points.push_back(static_cast<int32_t>(random_bits()));
    for (int i = 0; i < m * groups; ++i) row_scales.push_back(number());
    for (int i = 0; i < groups * across; ++i) block_scales.push_back(number());
    for (int i = 0; i < groups * n; ++i) {
      // Of some panels all are 8.
      z.push_back(static_cast<uint8_t>((i % n / 64 + i / n) % 3 == 0 ? 8 : below(16)));
      scales.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(number()) >> 16));
    }
    for (int i = 0; i < k * n; ++i) q.push_back(static_cast<uint8_t>(below(16)));
    for (int i = 0; i < k; ++i) {
      for (int j = 0; j < n; ++j) {
        const int value = q[i * n + j] - z[i / group * n + j];
        b[j * k + i] = static_cast<int8_t>(blocks ? random_bits() : value);
      }
    }
  }

  int slice() const { return std::max(1024, ceil_div(k, 1024) * 128); }
  float scale(int row, int column, int g) const {
    if (!blocks) return std::bit_cast<float>(uint32_t{scales[g * n + column]} << 16);
    return row_scales[row * ceil_div(k, group) + g] *
           block_scales[g * ceil_div(n, 128) + column / 128];
  }
  float expected(int row, int column) const {
    float sum = -0.0f, chain = -0.0f;
    for (int first = 0, g = 0; first < k; first += group, ++g) {
      uint32_t t = 0;
      for (int i = first; i < std::min(first + group, k); ++i) {
        const uint32_t value = static_cast<uint32_t>(int32_t{b[column * k + i]});
        t += static_cast<uint32_t>(int32_t{a[row * k + i]}) * value;
        if (azp) t -= static_cast<uint32_t>(zero_points[row]) * value;
      }
      chain = std::fma(scale(row, column, g), static_cast<float>(static_cast<int32_t>(t)), chain);
      const int next = first + group;
      if (next >= k || next / slice() != first / slice()) sum += chain, chain = -0.0f;
    }
    return sum;
  }

  // As docs/lowbit.md has units.
  std::vector<uint8_t> units() const {
    const int sets = unit_sets(k, group), size = unit_bytes(4, ZeroPoint::integer, sets);
    const int panels = ceil_div(n, 64);
    std::vector<uint8_t> all(ceil_div(k, 128) * panels * size + 16);
    auto* const begin =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(all.data()) + 15) / 16 * 16);
    const auto put = [&](uint8_t* at, int nibble, int value) {
      at[nibble / 2] = static_cast<uint8_t>(at[nibble / 2] | value << nibble % 2 * 4);
    };
    for (int row = 0; row < k; ++row) {
      for (int column = 0; column < n; ++column) {
        uint8_t* const unit = begin + (row / 128 * panels + column / 64) * size;
        const int w = column % 64 / 16, g = column % 16 / 2, h = column % 2;
        const int p = row % 128 / 64, step = row % 64 / 16, i = row % 16 / 8, t = row % 8 / 2;
        uint8_t* const word = unit + 2048 * p + 512 * w + 16 * (4 * g + t) + 4 * step;
        put(word, 2 * i + h + 4 * (row % 2), q[row * n + column]);
        uint8_t* const set = unit + 4096 + row % 128 * sets / 128 * 160;
        const int of = row / group * n + column;
        std::memcpy(set + column % 64 * 2, &scales[of], 2);
        set[128 + column % 64 / 2] =
            static_cast<uint8_t>((set[128 + column % 64 / 2] & (h ? 0x0f : 0xf0)) | z[of] << 4 * h);
      }
    }
    std::rotate(all.begin(), all.begin() + (begin - all.data()), all.end());
    return all;
  }
};

// Bytes at a multiple of 16.
struct Aligned {
  std::vector<uint4> of;
  explicit Aligned(int64_t bytes) : of(bytes / 16 + 1) {}
  template <class T = uint8_t>
  T* data() {
    return reinterpret_cast<T*>(of.data());
  }
};

}  // namespace
