// Loads of several bytes at any address, as aligned words or vectors. Of one that reaches beyond
// the bytes there are, only those are read.
#pragma once

#include <cstdint>
#include <cstring>

namespace scaled_mm::cuda {

// The aligned word (or vector) at `at`, of which `available` bytes are there; zeros for the others.
template <class Word>
__device__ Word load_word(const int8_t* at, int available) {
  if (available >= static_cast<int>(sizeof(Word))) return __ldg(reinterpret_cast<const Word*>(at));
  Word word = {};
  uint32_t parts[sizeof(Word) / 4] = {};
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Word)); ++i) {
    if (i < available) parts[i / 4] |= uint32_t{static_cast<uint8_t>(__ldg(at + i))} << 8 * (i % 4);
  }
  memcpy(&word, parts, sizeof(Word));
  return word;
}

// As load_word<uint4>, in few registers, for an address aligned to 4 bytes.
__device__ inline uint4 load_first(const int8_t* at, int available) {
  const auto byte = [&](int i) {
    return i < available ? uint32_t{static_cast<uint8_t>(__ldg(at + i))} : 0;
  };
  const int cut = available < 0 ? -1 : available / 4;  // the word of which only a part is there
  const uint32_t part =
      cut < 0 ? 0 : byte(4 * cut) | byte(4 * cut + 1) << 8 | byte(4 * cut + 2) << 16;
  const auto word = [&](int i) {
    return i < cut ? __ldg(reinterpret_cast<const uint32_t*>(at) + i) : i == cut ? part : 0;
  };
  return {word(0), word(1), word(2), word(3)};
}

// The 4 bytes at any address, the first `available` of them and of those that follow being there.
// The constructor loads and `value` shifts, so that a thread can have many of these in flight.
struct Bytes4 {
  uint32_t low = 0, high = 0;
  int skip = 0;  // bytes of `low` before the first

  Bytes4() = default;
  __device__ Bytes4(const int8_t* from, int available)
      : skip(static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4)) {
    if (available <= 0) return;
    low = load_word<uint32_t>(from - skip, skip + available);
    if (skip > 0 && skip + available > 4) {
      high = load_word<uint32_t>(from - skip + 4, skip + available - 4);
    }
  }
  // The first byte in the low bits; zeros above the last there is.
  __device__ uint32_t value() const { return __funnelshift_r(low, high, 8 * skip); }
};

// The same of 16 bytes.
struct Bytes16 {
  uint4 low = {}, high = {};
  int skip = 0;

  Bytes16() = default;
  __device__ Bytes16(const int8_t* from, int available)
      : skip(static_cast<int>(reinterpret_cast<uintptr_t>(from) % 16)) {
    if (available <= 0) return;
    low = load_word<uint4>(from - skip, skip + available);
    if (skip > 0 && skip + available > 16) {
      high = load_word<uint4>(from - skip + 16, skip + available - 16);
    }
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
