"""Bugs for mutants.py. Weights of 4 and 8 bits: the CPU kernels, the check, the packed form."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cpu/lowbit_rows.h",
        "test_awq test_mixed_weights test_mixed_values",
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
                    "inline void lowbit_gemm(const LowbitProblem& p, const Tiling& tiling, "
                    "int64_t begin, int64_t end) {\n  const FloatEnvironment environment;"
                ),
                (
                    "inline void lowbit_gemm(const LowbitProblem& p, const Tiling& tiling, "
                    "int64_t begin, int64_t end) {"
                ),
            ),
            "int4-dequantised-in-the-caller-s-mode": (
                (
                    "inline void lowbit_dequantize(const LowbitProblem& p, int64_t begin, "
                    "int64_t end) {\n  const FloatEnvironment environment;"
                ),
                (
                    "inline void lowbit_dequantize(const LowbitProblem& p, int64_t begin, "
                    "int64_t end) {"
                ),
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
                "w.zeros.data + group * w.zeros.row_stride + col * w.bits / 32;",
                "w.zeros.data + 0 * group + col * w.bits / 32;",
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
        "csrc/cpu/lowbit_rows.h",
        "test_mixed",
        {
            "pre-scale-in-the-order-of-rows": (
                "wide[i] *= factors[source(first + i)];",
                "wide[i] *= factors[first + i];",
            ),
            "order-of-x-forgotten": ("p.order ? int64_t{p.order[k]} : k", "k"),
            "activation-dropped": (
                "      activate(p.activation, sum, count);\n      Of::narrow",
                "      Of::narrow",
            ),
            "gelu-for-its-kind-by-tanh": (
                "return functions::gelu_tanh<Ops>(y);",
                "return functions::gelu<Ops>(y);",
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
            "int4-unshifted-nibbles": ("1 << 4 * (v / 2 % 4)", "1 << 4 * (v / 2 % 3)"),
        },
    ),
    *of(
        "csrc/cpu/lowbit_stream.h",
        "test_mixed test_awq",
        {
            "few-rows-by-the-first-row-of-x": (
                "broadcast_float(x[r * kLowbitXStride + k])",
                "broadcast_float(x[0 * r * kLowbitXStride + k])",
            ),
            "few-rows-by-the-first-row-of-words": (
                "++k, q += tile.stride, next",
                "++k, q += 0 * tile.stride, next",
            ),
            "few-rows-start-from-zero": (
                "sum[r][u] = wide_at(sums + r * kLowbitCols + 8 * v + u * kLanes);",
                "sum[r][u] = Wide{};",
            ),
            "few-rows-by-the-scales-of-other-columns": (
                "less[u] = part(group.less, u)",
                "less[u] = part(group.less, u ^ 1)",
            ),
            "few-rows-leave-the-last-columns": (
                "for (int v = 0; v < tile.vectors; v += 2 * kPairs) {",
                "for (int v = 0; v + 2 * kPairs < tile.vectors; v += 2 * kPairs) {",
            ),
        },
    ),
    *of(
        "csrc/cpu/lowbit_rows.h",
        "test_mixed_small test_mixed",
        {"pairs-of-the-first-group": ("pairs.multiply(w, k / w.group,", "pairs.multiply(w, 0,")},
        isa="avx512_bf16",
    ),
    *of(
        "csrc/cpu/lowbit_pairs.h",
        "test_mixed_small test_mixed",
        {
            "pairs-of-small-x": ("return small == 0;", "return true;"),
            "pairs-of-small-scales": ("kLeastScale = -36", "kLeastScale = -120"),
            "pairs-after-something-small": (
                "    // Sums that something small came into are not for pairs any more.\n",
                "    begin();\n",
            ),
            "pairs-of-rows-swapped": ("pair << 16 | pair >> 16", "pair"),
            "pairs-of-an-odd-group": ("depth % 2 != 0 || ", ""),
            "pairs-without-integer-zeros": ("(integer ? zero[i] : same)", "same"),
            "pairs-by-the-scales-of-the-first-columns": (
                "twice<i>(scales + 8 * part)",
                "twice<i>(scales)",
            ),
            "pairs-into-the-sums-of-the-first-columns": (
                "sums + r * kLowbitCols + 8 * part + 16 * (kFirst + u)",
                "sums + r * kLowbitCols + 16 * (kFirst + u)",
            ),
        },
        isa="avx512_bf16",
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
        "csrc/cpu/lowbit_group.h",
        "test_mixed_weights test_mixed_values",
        {
            "int8-overflow-split": ("kWider = 1 << (Words::kBits - 4)", "kWider = 1"),
            "float-zero-rounded-before-it-is-added": (
                "  const double rest = (sum - double{near}) + error;",
                "  const double rest = 0.0 * error;",
            ),
            "float-zero-s-error-forgotten": (
                "(sum - double{near}) + error;",
                "(sum - double{near}) + 0.0 * error;",
            ),
            "float-zero-of-any-size-taken-for-exact": (
                "fit &= none | absent | (sum <= least * kSpan);",
                "",
            ),
            "offset-of-the-other-width": (
                "Words::unit(v) * static_cast<float>(w.offset())",
                "Words::unit(v) * 8.0f",
            ),
        },
    ),
    *of(
        "csrc/cpu/lowbit.cpp",
        "test_mixed",
        {
            "order-beyond-x": ("order[i] < 0 || order[i] >= k", "order[i] < 0 || order[i] > k"),
            "negative-order": ("order[i] < 0 || order[i] >= k", "order[i] >= k"),
        },
    ),
    *of(
        "csrc/problems/lowbit.cpp",
        "test_mixed",
        {
            "packed-weight-of-any-bits": ("(bits != 4 && bits != 8)", "false"),
            "packed-weight-of-any-alignment": (
                "reinterpret_cast<uintptr_t>(data) % kSectionBytes) {",
                "uintptr_t{0}) {",
            ),
            "out-over-the-packed-weight": (
                "  must_lie_apart(*out, weight, q);\n",
                "",
            ),
            "pre-scale-of-any-length": ("!is_per_column(pre_scale, k)", "false"),
        },
    ),
    *of(
        "scaled_mm/ops/mixed_weight.py",
        "test_mixed_weights test_mixed_values",
        {
            "rows-of-groups-left-scattered": ("q = q[order.long()]", "q = q[:]"),
            "gptq-zeros-left-out": (
                "scales, zeros=zeros, g_idx=g_idx, bits=bits)",
                "scales, g_idx=g_idx, bits=bits)",
            ),
            "any-version-of-the-format": (" or self.version != VERSION:", ":"),
            "values-of-any-size-packed": ('_must_be_in("q", q, low, low + 15)', "pass"),
            "groups-of-unequal-size": (
                "(counts * groups != k).any()",
                "(counts * groups < 0).any()",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/mixed_weight.py",
        "test_arguments",
        {
            "hand-made-layout-of-any-number": ("or value not in known:", "or False:"),
            "hand-made-groups-of-any-size": ("self.k % self.group):", "False):"),
            "hand-made-buffer-of-any-strides": ("whole = data.is_contiguous()", "whole = True"),
            "hand-made-buffer-at-any-place": ("data.storage_offset() % 8 == 0", "True"),
            "hand-made-buffer-of-any-kind": (
                'accept_dense({"data": self.data}, {"order": self.order})',
                "pass",
            ),
            "hand-made-order-of-any-length": ("or order.shape != (k,)", "or False"),
        },
    ),
    *of(
        "scaled_mm/ops/packed_words.py",
        "test_mixed_weights test_mixed_values test_mixed",
        {
            "sections-not-aligned": ("(0, -len(part) % _ALIGNED)", "(0, -len(part) % 2)"),
            "float-zeros-for-integers": (
                "of_zeros = (0, columns * bits // 8, 2 * columns)[zero]",
                "of_zeros = (0, columns * bits // 8, columns * bits // 8)[zero]",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/mixed.py",
        "test_mixed",
        {
            "order-not-handed-on": (
                'given = {"order": w.order, "pre',
                'given = {"order": None, "pre',
            ),
            "fake-of-any-buffer": ('must("packed", packed.shape[0] == size', 'must("packed", True'),
        },
    ),
]
