// AVX512-VNNI and AVX512-BF16: vdpbf16ps besides, for products of bfloat16 with weights of few bits
// (lowbit_pairs.h).
#include "cpu/isa_headers.h"

#if defined(__x86_64__)
// g++ 12 does not define __FMA__ and its kin for a target pragma.
#define SCALED_MM_HAS_FMA_F16C
#define SCALED_MM_HAS_AVX512_BF16
#pragma GCC push_options
#pragma GCC target(                                                                  \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c,prefer-" \
    "vector-width=512")

namespace scaled_mm::cpu::avx512_bf16 {

#include "cpu/avx512_vectors.h"
#include "cpu/vnni_micro.h"
using Micro = VnniMicro;

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

}  // namespace scaled_mm::cpu::avx512_bf16
#pragma GCC pop_options

namespace scaled_mm::cpu {

static bool available() { return runs_avx512_bf16() && avx512_bf16::multiplies_pairs_in_order(); }

constinit const InstructionSet avx512_bf16_isa = avx512_bf16::table("avx512_bf16", available);

}  // namespace scaled_mm::cpu
#endif
