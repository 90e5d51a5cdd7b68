// The microkernel of the instruction sets that have vpdpbusd: sum += four products u8 x s8 in each
// 32-bit lane, at full width. The weight is the u8 side, b ^ 0x80, so A needs no preparation but
// padding.
//
// No include guard: an isa_*.cpp includes this inside its own namespace, after its vector type V
// with load, store, broadcast, dpbusd, flip_sign, horizontal_sum, and the constants kTileRows,
// kTilePanels, kDotTileRows, kDotTileCols that fill its register file.

// Ahead in each of a tile's panels, of those that memory brings: 8 KiB in all.
inline constexpr int kPrefetchBytes = 8192 / kTilePanels;

#define SCALED_MM_HAS_DPBUSD

#include "cpu/tile_sums.h"

struct VnniMicro {
  static constexpr int kRows = kTileRows, kPanels = kTilePanels;
  static constexpr int kDotRows = kDotTileRows, kDotCols = kDotTileCols;
  static constexpr int kValueBytes = 1;
  static constexpr int kFetchingRows = 12;  // measured: from so many on it is faster
  static constexpr int64_t row_bytes(int64_t k) { return round_up(k, 64); }

  static void load_row(const int8_t* a, int64_t stride, int64_t k, char* row) {
    if (stride == 1) {
      std::copy_n(reinterpret_cast<const char*>(a), k, row);  // k may be 0, and a null with it
    } else {
      for (int64_t i = 0; i < k; ++i) row[i] = static_cast<char>(a[i * stride]);
    }
    std::memset(row + k, 0, row_bytes(k) - k);
  }

  static void tile(int rows, int panels, const ARows& a, const uint8_t* b, int64_t panel_stride,
                   int64_t k, int32_t* acc, const uint8_t* fetched = nullptr) {
    with_constant<kTileRows>(rows, [&](auto r) {
      with_constant<kTilePanels>(panels, [&](auto p) {
        const ToMemory end{acc};
        fetched ? fixed_tile<r, p, true>(a, b, panel_stride, k, end, fetched)
                : fixed_tile<r, p, false>(a, b, panel_stride, k, end, b);
      });
    });
  }
  template <class End>
  static void tile_to(int rows, int panels, const ARows& a, const uint8_t* b, int64_t panel_stride,
                      int64_t k, const End& end) {
    with_constant<kTileRows>(rows, [&](auto r) {
      with_constant<kTilePanels>(
          panels, [&](auto p) { fixed_tile<r, p, false>(a, b, panel_stride, k, end, b); });
    });
  }
  static void dot(int rows, int cols, const ARows& a, const int8_t* b, int64_t col_stride,
                  int64_t k, int32_t* acc) {
    with_constant<kDotRows>(rows, [&](auto r) {
      with_constant<kDotCols>(cols, [&](auto c) { fixed_dot<r, c>(a, b, col_stride, k, acc); });
    });
  }

 private:
  // Lanes are columns: a group of four k of one row is broadcast to all of them.
  template <int R, int P, bool kFetches, class End>
  static void fixed_tile(const ARows& a, const uint8_t* b, int64_t panel_stride, int64_t k,
                         const End& end, const uint8_t* fetched) {
    TileSums<R, P> sum;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVectors; ++v) sum[r][p][v] = broadcast(a.init[r]);
      }
    }
    for (int64_t g = 0; g < groups(k); ++g) {
      V w[P][kPanelVectors];
      if constexpr (kFetches) _mm_prefetch(fetched + g * kGroupBytes, _MM_HINT_T0);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const uint8_t* group = b + p * panel_stride + g * kGroupBytes;
        if constexpr (!kFetches) _mm_prefetch(group + kPrefetchBytes, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVectors; ++v) w[p][v] = load(group + v * sizeof(V));
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, a.row<char>(r) + g * kGroup, sizeof four);
        const V x = broadcast(four);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
          for (int v = 0; v < kPanelVectors; ++v) sum[r][p][v] = dpbusd(sum[r][p][v], w[p][v], x);
        }
      }
    }
    end(sum, 0, 0);
  }

  // Lanes are values of k, added together at the end.
  template <int R, int C>
  static void fixed_dot(const ARows& a, const int8_t* b, int64_t col_stride, int64_t k,
                        int32_t* acc) {
    V sum[R][C] = {};
    const auto step = [&](const int8_t* from, int64_t stride, int64_t first) {
      V w[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) w[c] = flip_sign(load(from + c * stride));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V x = load(a.row<char>(r) + first);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sum[r][c] = dpbusd(sum[r][c], w[c], x);
      }
    };
    constexpr int64_t kStep = sizeof(V);
    int64_t first = 0;
    for (; first + kStep <= k; first += kStep) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {  // of the columns behind these
        _mm_prefetch(b + (C + c) * col_stride + first, _MM_HINT_T0);
      }
      step(b + first, col_stride, first);
    }
    if (first < k) {
      alignas(64) int8_t tail[C][kStep] = {};
      for (int c = 0; c < C; ++c) std::memcpy(tail[c], b + c * col_stride + first, k - first);
      step(tail[0], kStep, first);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        acc[r * kColBlock + c] =
            static_cast<int32_t>(static_cast<uint32_t>(a.init[r]) + horizontal_sum(sum[r][c]));
      }
    }
  }
};
