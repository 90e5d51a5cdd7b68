// No instruction set in particular: plain loops, for every machine that C++ reaches.
#include "cpu/isa_headers.h"

namespace scaled_mm::cpu::portable {

struct ARows;

struct Micro {
  using Cell = int16_t;
  static constexpr int kRows = 4, kPanels = 1, kDotRows = 4, kDotCols = 1;
  static constexpr int64_t cells(int64_t k) { return round_up(k, kGroup); }

  static void load_row(const int8_t* a, int64_t stride, int64_t k, Cell* cells) {
    for (int64_t i = 0; i < Micro::cells(k); ++i) cells[i] = i < k ? a[i * stride] : 0;
  }

  template <int R, int P>
  static void tile(const ARows& a, const uint8_t* b, int64_t panel_stride, int64_t groups,
                   int32_t* acc);
  template <int R, int C>
  static void dot(const ARows& a, const int8_t* b, int64_t col_stride, int64_t k, int32_t* acc);
};

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/gemm_loop.h"

// Sums are unsigned: with the weight offset to u8 they may pass 2^31 on the way to a result that
// fits int32.
template <int R, int P>
void Micro::tile(const ARows& a, const uint8_t* b, int64_t, int64_t groups, int32_t* acc) {
  for (int r = 0; r < R; ++r) {
    const int16_t* x = a.cells + r * a.stride;
    uint32_t sum[kPanel];
    std::fill(sum, sum + kPanel, static_cast<uint32_t>(a.init[r]));
    for (int64_t g = 0; g < groups; ++g) {
      for (int n = 0; n < kPanel; ++n) {
        const uint8_t* w = b + g * kGroupBytes + n * kGroup;
        const int16_t* y = x + g * kGroup;
        sum[n] += static_cast<uint32_t>(w[0] * y[0] + w[1] * y[1] + w[2] * y[2] + w[3] * y[3]);
      }
    }
    std::memcpy(acc + r * kColBlock, sum, sizeof sum);
  }
}

template <int R, int C>
void Micro::dot(const ARows& a, const int8_t* b, int64_t col_stride, int64_t k, int32_t* acc) {
  for (int c = 0; c < C; ++c) {
    uint32_t sum[R];
    for (int r = 0; r < R; ++r) sum[r] = static_cast<uint32_t>(a.init[r]);
    const int8_t* w = b + c * col_stride;
    for (int r = 0; r < R; ++r) {
      const int16_t* x = a.cells + r * a.stride;
      for (int64_t i = 0; i < k; ++i) sum[r] += static_cast<uint32_t>(x[i] * (w[i] + 128));
    }
    for (int r = 0; r < R; ++r) acc[r * kColBlock + c] = static_cast<int32_t>(sum[r]);
  }
}

inline bool available() { return true; }

}  // namespace scaled_mm::cpu::portable

namespace scaled_mm::cpu {
constinit const Kernels portable_kernels = portable::table("portable", portable::available);
}
