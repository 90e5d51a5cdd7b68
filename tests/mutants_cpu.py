"""Bugs for mutants.py. The CPU besides products: packing, quantisers, formats."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cpu/float16.h",
        "test_scaled_mm",
        {
            "bfloat16-half-away": ("bits + 0x7fff + ((bits >> 16) & 1)", "bits + 0x8000"),
            "bfloat16-truncated": ("bits + 0x7fff + ((bits >> 16) & 1)", "bits"),
            "bfloat16-nan-overflows": ("(bits & 0x7fffffff) > 0x7f800000 ? nan", "false ? nan"),
            "float16-half-away": (
                "magnitude + 0xfff + ((magnitude >> 13) & 1)",
                "magnitude + 0x1000",
            ),
            "float16-subnormals-late": (
                "if (magnitude >= 0x38800000)",
                "if (magnitude >= 0x38000000)",
            ),
            "float16-overflow-early": (
                "if (magnitude >= 0x477ff000)",
                "if (magnitude >= 0x477fe000)",
            ),
            "float16-bias-nan-is-infinite": ("| ((magnitude & 0x3ff) << 13));", ");"),
            "float16-toward-zero": (
                "_mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT)",
                "_mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_ZERO)",
            ),
            "widened-stride-ignored": ("from[(first + i) * stride]", "from[first + i]"),
        },
    ),
    *of(
        "csrc/cpu/float_env.h",
        "test_environment",
        {
            "rounding-mode-of-the-caller": ("_mm_setcsr(0x1f80)", "_mm_setcsr(saved_ & ~0x8040u)"),
            "denormals-flushed": ("_mm_setcsr(0x1f80)", "_mm_setcsr(saved_ & ~0x6000u)"),
            "mode-not-restored": ("{ _mm_setcsr(saved_); }", "{}"),
        },
    ),
    *of(
        "csrc/cpu/isa.cpp",
        "test_environment",
        {
            "unknown-isa-accepted": (
                "if (*forced == isa->name) return",
                "if (*forced != isa->name) return",
            ),
        },
    ),
    *of(
        "csrc/cpu/quantize.cpp",
        "test_quantize",
        {
            "nan-elsewhere-forgotten": ("whole.finite &= range.finite;", ""),
            "range-of-the-last-piece": ("std::min(whole.lo, range.lo)", "range.lo"),
            "last-piece-of-rows-forgotten": (
                "std::min((i + 1) * step, p.rows)",
                "std::min((i + 1) * step, p.rows - 1)",
            ),
            "scale-of-a-tensor-not-written": ("*p.scale = all.scale;", "*p.scale = 1.0f;"),
        },
    ),
    *of(
        "csrc/cpu/quantize_rows.h",
        "test_quantize",
        {
            "half-away-from-zero": ("__builtin_rintf(x)", "__builtin_roundf(x)"),
            "half-away-in-the-portable-path": ("(x + shift) - shift : x", "std::round(x) : x"),
            "reciprocal-of-the-scale": ("x[k] / by.scale", "x[k] * (1.0f / by.scale)"),
            "infinity-in-a-range": ("largest < 0x7f800000", "largest <= 0x7f800000"),
            "wide-range-overflows": ("if (std::isinf(scale))", "if (false)"),
            "scale-of-zeros-is-zero": ("scale = std::max(scale, FLT_MIN);", ""),
            "minus-128-when-symmetric": ("? -127.0f : -128.0f", "? -128.0f : -128.0f"),
            "nan-clamps": ("value = value == value ? value : 0.0f;", ""),
            "azp-sign-of-the-quantiser": (
                "-128.0f - range.lo / scale",
                "-128.0f + range.lo / scale",
            ),
            "scale-of-the-first-token": ("p.scale[row * p.scale_stride]", "p.scale[0 * row]"),
            "wraps-instead-of-clamping": ("value = value < 127.0f ? value : 127.0f;", ""),
            "range-of-a-negative-row-without-zero": (
                "hi = ordered(range.hi);",
                "hi = std::numeric_limits<int32_t>::min();",
            ),
        },
    ),
    *of(
        "csrc/cpu/quantize_rows.h",
        "test_quantize test_environment",
        {
            "quantised-in-the-caller-s-mode": (
                (
                    "inline void quantize_rows(const QuantizeProblem& p, int64_t begin, "
                    "int64_t end) {\n  const FloatEnvironment environment;"
                ),
                (
                    "inline void quantize_rows(const QuantizeProblem& p, int64_t begin, "
                    "int64_t end) {"
                ),
            ),
            "azp-of-the-first-token": ("p.azp[row * p.azp_stride]", "p.azp[0 * row]"),
            "range-without-zero": (
                "int32_t lo = ordered(range.lo), hi",
                "int32_t lo = 0x7fffffff, hi",
            ),
        },
    ),
    *of(
        "csrc/cpu/weight.cpp",
        "test_weight",
        {
            "sums-of-the-offset": (
                "static_cast<uint32_t>(128 * b.k)",
                "static_cast<uint32_t>(127 * b.k)",
            ),
            "zero-point-left-out": ("factor * sums[i]", "sums[i]"),
            "four-groups-out-of-order": (
                "{__builtin_shufflevector(low01, low23, 0, 1, 4, 5)",
                "{__builtin_shufflevector(low01, low23, 0, 1, 5, 4)",
            ),
            "not-offset-by-128": ("column[i * stride] ^ 0x80", "column[i * stride] ^ 0"),
            "rows-of-b-swapped": (
                "uint32_t{row[2][n]} << 16 | uint32_t{row[3][n]} << 24",
                "uint32_t{row[3][n]} << 16 | uint32_t{row[2][n]} << 24",
            ),
        },
    ),
    *of(
        "csrc/cpu/weight.cpp",
        "test_guard_pages",
        {
            "tail-of-k-packed-past-its-end": ("b.k - g * kGroup)", "b.k - g * kGroup + 2)"),
        },
    ),
    *of(
        "csrc/cpu/weight.cpp",
        "test_guards_int8 test_weight",
        {
            "skew-not-cleared": (
                "std::memset(group + g * kPanel, 0, kGroupBytes);  // the skew",
                "",
            ),
            "expanded-rows-taken-for-dense": (
                "if (b.plain.row_stride == 1) {\n      for",
                "if (b.plain.row_stride <= 1) {\n      for",
            ),
            "expanded-columns-taken-for-dense": (
                "if (b.col_stride == 1) {  // columns",
                "if (b.col_stride <= 1) {  // columns",
            ),
            "padded-columns-not-zero": (
                "b.k - g * kGroup)\n                                        : 0;",
                "b.k - g * kGroup)\n                                        : 0x80808080u;",
            ),
            "expanded-rows-summed-as-dense": (
                "if (plain.row_stride == 1) {",
                "if (plain.row_stride <= 1) {",
            ),
        },
    ),
    *of(
        "csrc/cpu/widen.cpp",
        "test_widen",
        {
            "widened-sign-of-nibbles": (
                "p.is_signed ? 1 << (bits - 1) : 0",
                "p.is_signed && bits == 8 ? 1 << (bits - 1) : 0",
            ),
            "widened-high-lane-first": (">> bits * lane &", ">> bits * (lanes - 1 - lane) &"),
        },
    ),
]
