// Loads of several bytes at any address. Each reads aligned words (or vectors) that hold at least
// one of the bytes asked for, and so never touches memory that is not there.
#pragma once

#include <cstdint>

namespace scaled_mm::cuda {

// `count` bytes (up to 4; none if it is 0 or less) at any address. The constructor loads and
// `value` shifts, so that a thread can have many of these in flight.
struct Bytes4 {
  uint32_t low = 0, high = 0;
  int skip = 0;  // bytes of `low` before the first

  Bytes4() = default;
  __device__ Bytes4(const int8_t* from, int count)
      : skip(static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4)) {
    const auto* words = reinterpret_cast<const uint32_t*>(from - skip);
    if (count > 0) low = __ldg(words);
    if (skip + count > 4) high = __ldg(words + 1);
  }
  // The first byte in the low bits; above the last, anything (0 if there is none).
  __device__ uint32_t value() const { return __funnelshift_r(low, high, 8 * skip); }
};

// The same of up to 16 bytes.
struct Bytes16 {
  uint4 low = {}, high = {};
  int skip = 0;

  Bytes16() = default;
  __device__ Bytes16(const int8_t* from, int count)
      : skip(static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16)) {
    const auto* vectors = reinterpret_cast<const uint4*>(from - skip);
    if (count > 0) low = __ldg(vectors);
    if (skip + count > 16) high = __ldg(vectors + 1);
  }
  __device__ uint4 value() const {
    if (skip == 0) return low;
    uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = skip & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = skip & 4 ? words[i + 1] : words[i];
    const int shift = 8 * (skip % 4);
    return {__funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
            __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift)};
  }
};

// A word's first `count` bytes, the others 0; any count.
__device__ inline uint32_t first_bytes(uint32_t word, int count) {
  if (count >= 4) return word;
  return count <= 0 ? 0 : word & ((1u << 8 * count) - 1);
}

// A vector's bytes [begin, end), the others 0.
__device__ inline uint4 only_bytes(uint4 v, int begin, int end) {
  const auto cut = [&](uint32_t word, int at) {
    return first_bytes(word, end - at) & ~first_bytes(~0u, begin - at);
  };
  return {cut(v.x, 0), cut(v.y, 4), cut(v.z, 8), cut(v.w, 12)};
}

}  // namespace scaled_mm::cuda
