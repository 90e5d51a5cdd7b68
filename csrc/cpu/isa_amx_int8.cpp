// AMX: tiles of 16 rows by 64 bytes, and a product of two of them in one instruction. A packed
// panel's run of 16 groups is such a tile as it lies, with the weight as the unsigned side.
//
// Four tiles of sums, two rows of tiles of A by two panels:
//
//                panel 0   panel 1            tile registers
//                  6         7                4, 5: A   6, 7: B   0..3: sums
//   rows  0..15  4  0        1
//   rows 16..31  5  2        3
#include "cpu/isa_headers.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// g++ 12 does not define __FMA__ and its kin for a target pragma.
#define SCALED_MM_HAS_FMA_F16C
#define SCALED_MM_HAS_AVX512_BF16  // used where the machine has it: lowbit_pairs.h asks
#pragma GCC push_options
#pragma GCC target(                                                                             \
    "amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c," \
    "prefer-vector-width=512")

namespace scaled_mm::cpu::amx_int8 {

#include "cpu/avx512_vectors.h"
#include "cpu/vnni_micro.h"

// g++'s tile intrinsics do not say that they read memory: this makes what was written to it, and
// to everything else, be there.
inline void written(const void* memory) { asm volatile("" ::"r"(memory) : "memory"); }

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Rows, padding and products with a plain weight are those of AVX512-VNNI.
class Micro : public VnniMicro {
 public:
  static constexpr int kRows = 32, kPanels = 2;
  static constexpr int kFetchingRows = 0;

  Micro() = default;
  Micro(const Micro&) = delete;
  Micro& operator=(const Micro&) = delete;
  ~Micro() {
    if (configured_rows_) _tile_release();
  }

  void tile(int rows, int panels, const ARows& a, const uint8_t* b, int64_t panel_stride, int64_t k,
            int32_t* acc, const uint8_t*) {
    if (rows <= kFewRows || k < kGroup * kTileGroups) {
      return small_tile(rows, panels, a, b, panel_stride, k, acc);
    }
    if (rows != configured_rows_) configure(rows);
    for (int r = 0; r < rows; ++r) std::fill_n(acc + r * kColBlock, kPanels * kPanel, a.init[r]);
    if (rows > 16 && panels > 1) {
      multiply<true, true>(a, b, panel_stride, k, acc);
    } else if (rows > 16) {
      multiply<true, false>(a, b, panel_stride, k, acc);
    } else if (panels > 1) {
      multiply<false, true>(a, b, panel_stride, k, acc);
    } else {
      multiply<false, false>(a, b, panel_stride, k, acc);
    }
  }
  template <class End>
  void tile_to(int rows, int panels, const ARows& a, const uint8_t* b, int64_t panel_stride,
               int64_t k, const End& end) {
    alignas(64) int32_t acc[kRows][kColBlock];
    tile(rows, panels, a, b, panel_stride, k, acc[0], nullptr);
    panels == 2 ? from_memory<2>(end, acc[0], kColBlock, rows, 2)
                : from_memory<1>(end, acc[0], kColBlock, rows, 1);
  }

 private:
  static constexpr int kTileGroups = 16;

  static constexpr int kFewRows = 2;  // measured: faster without tiles, at every size

  // Of few rows, or of so few k that no tile of B is whole.
  static void small_tile(int rows, int panels, const ARows& a, const uint8_t* b,
                         int64_t panel_stride, int64_t k, int32_t* acc) {
    for (int r = 0; r < rows; r += VnniMicro::kRows) {
      const ARows some = {a.row<char>(r), a.stride, a.init + r};
      VnniMicro::tile(std::min(VnniMicro::kRows, rows - r), panels, some, b, panel_stride, k,
                      acc + r * kColBlock);
    }
  }

  int configured_rows_ = 0;  // a configuration takes as long as a small tile: keep it

  void configure(int rows) {
    const int upper = std::min(rows, 16), lower = rows - upper;
    const int tile_rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    alignas(64) TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = tile_rows[t] ? 64 : 0;
      config.rows[t] = static_cast<uint8_t>(tile_rows[t]);
    }
    written(&config);
    _tile_loadconfig(&config);
    configured_rows_ = rows;
  }

  template <bool Lower, bool Right>
  static void multiply(const ARows& a, const uint8_t* b, int64_t panel_stride, int64_t k,
                       int32_t* acc) {
    constexpr int kStride = kColBlock * sizeof(int32_t);
    int32_t *const right = acc + kPanel, *const below = acc + 16 * kColBlock;
    written(acc);
    _tile_loadd(0, acc, kStride);
    if constexpr (Right) _tile_loadd(1, right, kStride);
    if constexpr (Lower) _tile_loadd(2, below, kStride);
    if constexpr (Lower && Right) _tile_loadd(3, below + kPanel, kStride);

    const auto step = [&](const uint8_t* b0, const uint8_t* b1, int64_t first) {
      _tile_loadd(6, b0, kGroupBytes);
      _tile_loadd(4, a.row<char>(0) + first, a.stride);
      _tile_dpbsud(0, 4, 6);
      if constexpr (Right) {
        _tile_loadd(7, b1, kGroupBytes);
        _tile_dpbsud(1, 4, 7);
      }
      if constexpr (Lower) {
        _tile_loadd(5, a.row<char>(16) + first, a.stride);
        _tile_dpbsud(2, 5, 6);
        if constexpr (Right) _tile_dpbsud(3, 5, 7);
      }
    };
    const uint8_t* next = b + panel_stride;
    int64_t g = 0;
    for (; g + kTileGroups <= groups(k); g += kTileGroups) {
      step(b + g * kGroupBytes, next + g * kGroupBytes, g * kGroup);
    }
    if (g < groups(k)) {  // a tile of B that ends within the panel; A is zero there
      alignas(64) uint8_t tail[2][kTileGroups * kGroupBytes] = {};
      std::memcpy(tail[0], b + g * kGroupBytes, (groups(k) - g) * kGroupBytes);
      if (Right) std::memcpy(tail[1], next + g * kGroupBytes, (groups(k) - g) * kGroupBytes);
      written(tail);
      step(tail[0], tail[1], g * kGroup);
    }

    _tile_stored(0, acc, kStride);
    if constexpr (Right) _tile_stored(1, right, kStride);
    if constexpr (Lower) _tile_stored(2, below, kStride);
    if constexpr (Lower && Right) _tile_stored(3, below + kPanel, kStride);
  }
};

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

}  // namespace scaled_mm::cpu::amx_int8
#pragma GCC pop_options

namespace scaled_mm::cpu {

// Linux hands out the tile state to processes that ask for it (arch_prctl, ARCH_REQ_XCOMP_PERM).
static bool available() {
  constexpr unsigned kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAmxTile) && (edx & kAmxInt8) &&
         runs_avx512_vnni() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constinit const InstructionSet amx_int8_isa = amx_int8::table("amx_int8", available);

}  // namespace scaled_mm::cpu
#endif
