"""Bugs for mutants.py. The CPU besides the int8 product: packing, quantisers, int4, formats."""

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
        "csrc/cpu/lowbit_rows.h",
        "test_awq",
        {
            "scale-of-the-first-group": (
                "w.scales.data + group * w.scales.row_stride + col, scale, columns",
                "w.scales.data + 0 * group * w.scales.row_stride + col, scale, columns",
            ),
            "int4-bias-of-the-first-block": (
                "widen_columns(p.bias, 0, col, bias, count)",
                "widen_columns(p.bias, 0, 0 * col, bias, count)",
            ),
            "int4-bias-dropped": ("sum[i] += bias[i];", "sum[i] += 0 * bias[i];"),
            "int4-sums-of-the-span-before": (
                ("std::fill_n(scratch.sums.data(), span.blocks * span.rows * kLowbitCols, 0.0f);"),
                "",
            ),
            "int4-group-not-advanced": (
                "group.load(w, k / w.group, col, columns_at(w, col));",
                "group.load(w, 0, col, columns_at(w, col));",
            ),
            "int4-column-stride-of-x-ignored": (
                "widen_strided<Of>(from, p.x.col_stride,",
                "widen_strided<Of>(from, 1,",
            ),
        },
    ),
    *of(
        "csrc/cpu/lowbit_rows.h",
        "test_guards_int4 test_awq",
        {
            "int4-mode-of-the-caller": (
                (
                    "const FloatEnvironment environment;\n  with_lowbit_types(p.w, "
                    "[&](auto format, auto weights) {\n    multiply_of"
                ),
                ("with_lowbit_types(p.w, [&](auto format, auto weights) {\n    multiply_of"),
            ),
            "int4-dequantised-in-the-caller-s-mode": (
                (
                    "const FloatEnvironment environment;\n  with_lowbit_types(p.w, "
                    "[&](auto format, auto weights) {\n    dequantize_rows_of"
                ),
                ("with_lowbit_types(p.w, [&](auto format, auto weights) {\n    dequantize_rows_of"),
            ),
            "int4-last-columns-unwritten": (
                "col < w.n; col += kLowbitCols) {\n    const int columns",
                "col + kLowbitCols <= w.n; col += kLowbitCols) {\n    const int columns",
            ),
            "int4-group-of-the-piece": (
                "const int64_t left = w.group - k % w.group;",
                "const int64_t left = kLowbitDepth;",
            ),
            "int4-zeros-of-the-first-group": (
                "w.zeros.data + group * w.zeros.row_stride + col * w.bits / 32;\n        W::",
                "w.zeros.data + 0 * group + col * w.bits / 32;\n        W::",
            ),
            "int4-rows-of-the-last-span": (
                "p.d + (span.row + r) * p.w.n + col, count",
                "p.d + r * p.w.n + col, count",
            ),
        },
    ),
    *of(
        "csrc/cpu/lowbit_rows.h",
        "test_guard_pages",
        {
            "int4-words-behind-the-last-column": (
                "if (columns == kLowbitCols) return",
                "if (true) return",
            ),
        },
    ),
    *of(
        "csrc/cpu/lowbit_words.h",
        "test_awq",
        {
            "nibbles-of-two-columns-swapped": (
                "{0, 16, 4, 20, 8, 24, 12, 28}",
                "{0, 16, 4, 20, 8, 24, 28, 12}",
            ),
            "zero-point-ignored": ("& 15, Eight) - zero;", "& 15, Eight);"),
            "int4-bit-31-is-a-sign": ("(all >> kNibble) & 15", "(all >> kNibble) & ~0x70"),
        },
    ),
    *of(
        "csrc/cpu/lowbit_group.h",
        "test_guards_int4 test_awq",
        {
            "int4-overflow-split": (
                "least = 0x1p-14f, most = 0x1p11f",
                "least = 0x1p-14f, most = 0x1p15f",
            ),
            "int4-overflow-of-bfloat16-split": (
                "least = 0x1p-100f, most = 0x1p100f",
                "least = 0x1p-100f, most = 0x1p127f",
            ),
            "int4-subnormals-of-float16-split": (
                "high = 0x1p13f, least = 0x1p-14f",
                "high = 0x1p13f, least = 0x1p-30f",
                (
                    "a product of a small integer and a subnormal float16 is exact as long as "
                    "it is subnormal"
                ),
            ),
            "int4-zero-scale-not-plain": (
                "fit &= none | ((size >= kLeast)",
                "fit &= ((size >= kLeast)",
                "the other path computes the same, slower",
            ),
            "int4-split-by-a-bit-less": ("high = 0x1p13f, least", "high = 0x1p12f, least"),
        },
    ),
    *of(
        "csrc/cpu/lowbit_words.h",
        "test_guards_int4 test_awq",
        {
            "int4-unshifted-nibbles": (
                "static_cast<float>(1 << 4 * (v / 2 % 4))",
                "static_cast<float>(1 << 4 * (v / 2 % 3))",
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
