// AVX-VNNI: vpdpbusd on 32-byte vectors. With 16 registers, a tile of 6 rows by 1 panel holds 12
// sums.
#include "cpu/isa_headers.h"

#if defined(__x86_64__)
// g++ 12 does not define __FMA__ and its kin for a target pragma.
#define SCALED_MM_HAS_FMA_F16C
#pragma GCC push_options
#pragma GCC target("avxvnni,avx2,fma,f16c")

namespace scaled_mm::cpu::avx_vnni {

#include "cpu/avx2_vectors.h"

inline constexpr int kTileRows = 6, kTilePanels = 1, kDotTileRows = 6, kDotTileCols = 2;
inline V dpbusd(V sum, V u8, V s8) { return _mm256_dpbusd_avx_epi32(sum, u8, s8); }

#include "cpu/vnni_micro.h"
using Micro = VnniMicro;

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

}  // namespace scaled_mm::cpu::avx_vnni
#pragma GCC pop_options

namespace scaled_mm::cpu {

static bool available() {
  return __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

constinit const InstructionSet avx_vnni_isa = avx_vnni::table("avx_vnni", available);

}  // namespace scaled_mm::cpu
#endif
