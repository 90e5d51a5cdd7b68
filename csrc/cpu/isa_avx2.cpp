// AVX2: vpmaddwd on int16, the only exact int8 product of this instruction set (vpmaddubsw
// saturates at int16, which is what makes other AVX2 int8 libraries wrong).
//
// A's row is kept as two planes of int16, so that a 32-bit lane of the weight, bytes k0 k1 k2 k3,
// needs only a mask and a shift to meet it:
//   bytes & 0x00ff  ->  k0 k2   times the even plane   a0 a2 | a4 a6 | ...
//   bytes >> 8      ->  k1 k3   times the odd plane    a1 a3 | a5 a7 | ...
#include "cpu/isa_headers.h"

#if defined(__x86_64__)
// g++ 12 does not define __FMA__ and its kin for a target pragma.
#define SCALED_MM_HAS_FMA_F16C
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace scaled_mm::cpu::avx2 {

#include "cpu/avx2_vectors.h"

inline V even_bytes(V x) { return _mm256_and_si256(x, _mm256_set1_epi16(0xff)); }
inline V odd_bytes(V x) { return _mm256_srli_epi16(x, 8); }
inline V multiply_add(V sum, V x, V y) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)); }

// vpdpbusd of nibbles: products of two fit int16, where vpmaddubsw would saturate.
#define SCALED_MM_HAS_DPBUSD_OF_NIBBLES
inline V dpbusd(V sum, V u4, V s8) {
  return multiply_add(sum, _mm256_maddubs_epi16(u4, s8), _mm256_set1_epi16(1));
}

#include "cpu/tile_sums.h"

struct Micro {
  static constexpr int kRows = 4, kPanels = 1, kDotRows = 4, kDotCols = 2, kValueBytes = 2;
  static constexpr int kFetchingRows = 0;
  static constexpr int64_t row_bytes(int64_t k) { return 2 * round_up(k, 32); }

  // The row in runs of 32 values: 32 bytes of the even plane, 32 of the odd.
  static void load_row(const int8_t* a, int64_t stride, int64_t k, char* row) {
    for (int64_t first = 0; first < round_up(k, 32); first += 32) {
      alignas(32) int8_t padded[32];
      const int8_t* from = a + first;
      if (stride != 1 || first + 32 > k) {
        for (int i = 0; i < 32; ++i) padded[i] = first + i < k ? a[(first + i) * stride] : 0;
        from = padded;
      }
      const V bytes = load(from);
      store(row + 2 * first, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
      store(row + 2 * first + 32, _mm256_srai_epi16(bytes, 8));
    }
  }

  static void tile(int rows, int, const ARows& a, const uint8_t* b, int64_t, int64_t k,
                   int32_t* acc, const uint8_t*) {
    tile_to(rows, 1, a, b, 0, k, ToMemory{acc});
  }
  template <class End>
  static void tile_to(int rows, int, const ARows& a, const uint8_t* b, int64_t, int64_t k,
                      const End& end) {
    with_constant<kRows>(rows, [&](auto r) { fixed_tile<r>(a, b, k, end); });
  }
  static void dot(int rows, int cols, const ARows& a, const int8_t* b, int64_t col_stride,
                  int64_t k, int32_t* acc) {
    with_constant<kDotRows>(rows, [&](auto r) {
      with_constant<kDotCols>(cols, [&](auto c) { fixed_dot<r, c>(a, b, col_stride, k, acc); });
    });
  }

 private:
  // Lanes are columns: a pair of values of one row is broadcast to all of them.
  template <int R, class End>
  static void fixed_tile(const ARows& a, const uint8_t* b, int64_t k, const End& end) {
    TileSums<R, 1> sums;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][0][0] = sums[r][0][1] = broadcast(a.init[r]);

    int64_t pair = 0;  // of the even plane; its odd twin is 8 pairs on
    for (int64_t g = 0; g < groups(k); ++g, pair += g % 8 ? 1 : 9) {
      _mm_prefetch(b + g * kGroupBytes + 8192, _MM_HINT_T0);
      const V w0 = load(b + g * kGroupBytes), w1 = load(b + g * kGroupBytes + 32);
      const V even0 = even_bytes(w0), even1 = even_bytes(w1);
      const V odd0 = odd_bytes(w0), odd1 = odd_bytes(w1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V even = broadcast(a.row<int32_t>(r)[pair]);
        V(&sum)[2] = sums[r][0];
        sum[0] = multiply_add(sum[0], even0, even);
        sum[1] = multiply_add(sum[1], even1, even);
        const V odd = broadcast(a.row<int32_t>(r)[pair + 8]);
        sum[0] = multiply_add(sum[0], odd0, odd);
        sum[1] = multiply_add(sum[1], odd1, odd);
      }
    }
    end(sums, 0, 0);
  }

  // Lanes are values of k, added together at the end.
  template <int R, int C>
  static void fixed_dot(const ARows& a, const int8_t* b, int64_t col_stride, int64_t k,
                        int32_t* acc) {
    V sum[R][C] = {};
    const auto step = [&](const int8_t* from, int64_t stride, int64_t first) {
      V even[C], odd[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const V w = flip_sign(load(from + c * stride));
        even[c] = even_bytes(w);
        odd[c] = odd_bytes(w);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const char* run = a.row<char>(r) + 2 * first;
        const V x = load(run), y = load(run + 32);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          sum[r][c] = multiply_add(multiply_add(sum[r][c], even[c], x), odd[c], y);
        }
      }
    };
    int64_t first = 0;
    for (; first + 32 <= k; first += 32) step(b + first, col_stride, first);
    if (first < k) {
      alignas(32) int8_t tail[C][32] = {};
      for (int c = 0; c < C; ++c) std::memcpy(tail[c], b + c * col_stride + first, k - first);
      step(tail[0], 32, first);
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

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

}  // namespace scaled_mm::cpu::avx2
#pragma GCC pop_options

namespace scaled_mm::cpu {

static bool available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

constinit const InstructionSet avx2_isa = avx2::table("avx2", available);

}  // namespace scaled_mm::cpu
#endif
