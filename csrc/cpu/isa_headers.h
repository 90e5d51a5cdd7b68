// Every header that the code of an instruction set needs, included before its target pragma: a
// standard template instantiated under the pragma would be merged by the linker into the baseline
// and crash older machines.
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
#endif
