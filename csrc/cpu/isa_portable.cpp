// No instruction set in particular: plain loops, for every machine that C++ reaches.
#include "cpu/isa_headers.h"

namespace scaled_mm::cpu::portable {

// 16 bytes, for weights of 4 bits (k_scales.h).
using V = int64_t __attribute__((vector_size(16)));
inline V load(const void* from) {
  V x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(void* to, V x) { std::memcpy(to, &x, sizeof x); }
inline V broadcast(int32_t x) {
  const int32_t four[4] = {x, x, x, x};
  return load(four);
}
// The lower or the upper halves of both, by turns.
template <class T, bool kUpper>
inline V halves(V x, V y) {
  constexpr int kCount = 16 / sizeof(T);
  T from[2][kCount], to[kCount];
  store(from[0], x);
  store(from[1], y);
  for (int i = 0; i < kCount; ++i) to[i] = from[i % 2][i / 2 + (kUpper ? kCount / 2 : 0)];
  return load(to);
}
inline V low_bytes(V x, V y) { return halves<uint8_t, false>(x, y); }
inline V high_bytes(V x, V y) { return halves<uint8_t, true>(x, y); }
inline V low_pairs(V x, V y) { return halves<uint16_t, false>(x, y); }
inline V high_pairs(V x, V y) { return halves<uint16_t, true>(x, y); }

#include "cpu/tile_sums.h"

struct Micro {
  static constexpr int kRows = 4, kPanels = 1, kDotRows = 4, kDotCols = 1, kValueBytes = 2;
  static constexpr int kFetchingRows = 0;
  static constexpr int64_t row_bytes(int64_t k) { return 2 * round_up(k, kGroup); }

  static void load_row(const int8_t* a, int64_t stride, int64_t k, char* row) {
    int16_t* values = reinterpret_cast<int16_t*>(row);
    for (int64_t i = 0; i < round_up(k, kGroup); ++i) values[i] = i < k ? a[i * stride] : 0;
  }

  static void tile(int rows, int, const ARows& a, const uint8_t* b, int64_t, int64_t k,
                   int32_t* acc, const uint8_t*) {
    tile_to(rows, 1, a, b, 0, k, ToMemory{acc});
  }
  template <class End>
  static void tile_to(int rows, int, const ARows& a, const uint8_t* b, int64_t, int64_t k,
                      const End& end) {
    for (int r = 0; r < rows; ++r) {
      uint32_t sum[kPanel];
      std::fill(sum, sum + kPanel, static_cast<uint32_t>(a.init[r]));
      for (int64_t g = 0; g < groups(k); ++g) {
        const int16_t* x = a.row<int16_t>(r) + g * kGroup;
        for (int n = 0; n < kPanel; ++n) {
          const uint8_t* w = b + g * kGroupBytes + n * kGroup;
          sum[n] += static_cast<uint32_t>(w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]);
        }
      }
      TileSums<1, 1> sums;
      std::memcpy(sums, sum, sizeof sums);
      end(sums, r, 0);
    }
  }

  static void dot(int rows, int cols, const ARows& a, const int8_t* b, int64_t col_stride,
                  int64_t k, int32_t* acc) {
    for (int c = 0; c < cols; ++c) {
      const int8_t* w = b + c * col_stride;
      for (int r = 0; r < rows; ++r) {
        const int16_t* x = a.row<int16_t>(r);
        uint32_t sum = static_cast<uint32_t>(a.init[r]);
        for (int64_t i = 0; i < k; ++i) sum += static_cast<uint32_t>(x[i] * (w[i] + 128));
        acc[r * kColBlock + c] = static_cast<int32_t>(sum);
      }
    }
  }
};

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

inline bool available() { return true; }

}  // namespace scaled_mm::cpu::portable

namespace scaled_mm::cpu {
constinit const InstructionSet portable_isa = portable::table("portable", portable::available);
}
