// Every header that the code of an instruction set needs, included before its target pragma: a
// standard template instantiated under the pragma would be merged by the linker into the baseline
// and crash older machines. What asks whether a machine runs the instruction set stands behind the
// pragma for the same reason: it runs on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#include "cpu/buffer.h"
#include "cpu/float_env.h"
#include "cpu/isa.h"
#include "cpu/packed.h"
#include "epilogue/registry.h"
#include "functions.h"
#include "problems/program.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace scaled_mm::cpu {

inline bool runs_avx512_vnni() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

inline bool runs_avx512_bf16() {
  return runs_avx512_vnni() && __builtin_cpu_supports("avx512bf16");
}

}  // namespace scaled_mm::cpu
#endif
