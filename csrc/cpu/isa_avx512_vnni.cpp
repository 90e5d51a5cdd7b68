// AVX512-VNNI: vpdpbusd on 64-byte vectors.
#include "cpu/isa_headers.h"

#if defined(__x86_64__)
// g++ 12 does not define __FMA__ and its kin for a target pragma.
#define SCALED_MM_HAS_FMA_F16C
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")

namespace scaled_mm::cpu::avx512_vnni {

#include "cpu/avx512_vectors.h"
#include "cpu/vnni_micro.h"
using Micro = VnniMicro;

#include "cpu/float16.h"
#include "cpu/lower.h"
#include "cpu/quantize_rows.h"
#include "cpu/produce_rows.h"
#include "cpu/gemm_loop.h"

}  // namespace scaled_mm::cpu::avx512_vnni
#pragma GCC pop_options

namespace scaled_mm::cpu {
constinit const InstructionSet avx512_vnni_isa =
    avx512_vnni::table("avx512_vnni", runs_avx512_vnni);
}
#endif
