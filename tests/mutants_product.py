"""Bugs for mutants.py. The int8 product on the CPU, and the epilogues that both devices share."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cpu/avx2_vectors.h",
        "test_scaled_mm",
        {
            "horizontal-sum-of-half": (
                "_mm_shuffle_epi32(sum, 0xb1)",
                "_mm_shuffle_epi32(sum, 0x4e)",
            ),
        },
        isa="avx2",
    ),
    *of(
        "csrc/cpu/gemm_loop.h",
        "test_scaled_mm",
        {
            "row-sum-factor": ("-128 * sum_row(row)", "-127 * sum_row(row)"),
            "row-of-the-first-tile": ("= rows.first() + first + r;", "= rows.first() + r;"),
            "first-panel-packed-four-times": (
                "pack_panel(p.b, col / kPanel + i,",
                "pack_panel(p.b, col / kPanel,",
            ),
            "row-stride-stale": ("(first_ + r) * p_.a.row_stride", "(first_ + r) * p_.size.k"),
            "column-stride-of-a-ignored": ("row[k * p_.a.col_stride]", "row[k]"),
            "rows-past-the-last": ("std::min(block_rows_, p_.size.m - first_)", "block_rows_"),
            "rest-of-tiles-dropped": ("ceil_div(rows - first, tiles - t)", "rows / tiles"),
            "row-block-loaded-once": ("if (index == index_) return;", "if (index_ >= 0) return;"),
            "plain-weight-of-any-stride-in-place": (
                "(plain.row_stride == 1 || p.size.k == 1) &&",
                "true &&",
            ),
            "packed-block-of-columns": (
                "p.b.packed + col / kPanel * panel_bytes(p.size.k)",
                "p.b.packed",
            ),
            "pairs-of-the-first-block": (
                "col / columns * p.size.out_bytes()",
                "col * p.size.out_bytes()",
            ),
        },
    ),
    *of(
        "csrc/cpu/gemm_loop.h",
        "test_guards_int8 test_scaled_mm",
        {
            "expanded-weight-in-place": (
                "(plain.row_stride == 1 || p.size.k == 1) &&",
                "(plain.row_stride <= 1 || p.size.k == 1) &&",
            ),
            "expanded-row-summed-as-dense": (
                "if (p_.a.col_stride == 1) {",
                "if (p_.a.col_stride <= 1) {",
            ),
            "operands-of-the-first-block": (
                "finish.load(operands, p, col, count);",
                "finish.load(operands, p, 0 * col, count);",
            ),
        },
    ),
    *of(
        "csrc/cpu/int8.cpp",
        "test_scaled_mm",
        {
            "empty-output-launched": ("if (p.size.m == 0 || p.size.n == 0) return;", ""),
        },
    ),
    *of(
        "csrc/cpu/isa_amx_int8.cpp",
        "test_scaled_mm",
        {
            "amx-weight-signed": ("_tile_dpbsud(0, 4, 6)", "_tile_dpbssd(0, 4, 6)"),
            "amx-rest-of-k-dropped": ("if (g < groups(k)) {", "if (false) {"),
        },
        isa="amx_int8",
    ),
    *of(
        "csrc/cpu/isa_amx_int8.cpp",
        "test_guards_int8::test_calls_in_between_leave_nothing test_scaled_mm",
        {
            "amx-tiles-of-the-call-before": (
                "int configured_rows_ = 0;  // a",
                "static thread_local inline int configured_rows_ = 0;  // a",
            ),
            "amx-lower-tile-of-the-upper-s-height": (
                "{upper, upper, lower, lower, upper, lower, 16, 16}",
                "{upper, upper, upper, upper, upper, upper, 16, 16}",
                "the rows too many are read behind the last one, from scratch memory, and their "
                "sums stored in lines of acc that nothing reads",
            ),
            "amx-sums-of-the-tile-before": ("_tile_loadd(0, acc, kStride);", "_tile_zero(0);"),
        },
        isa="amx_int8",
    ),
    *of(
        "csrc/cpu/isa_amx_int8.cpp",
        "test_guards_int8::test_a_taller_tile_after_a_shorter",
        {
            "amx-tiles-configured-once": (
                "if (rows != configured_rows_) configure(rows);",
                "if (!configured_rows_) configure(rows);",
            ),
        },
        isa="amx_int8",
    ),
    *of(
        "csrc/cpu/isa_avx2.cpp",
        "test_scaled_mm",
        {
            "saturating-int16-pairs": (
                "multiply_add(multiply_add(sum[r][c], even[c], x), odd[c], y)",
                (
                    "multiply_add(sum[r][c], _mm256_adds_epi16(_mm256_mullo_epi16(even[c], x), "
                    "_mm256_mullo_epi16(odd[c], y)), _mm256_set1_epi16(1))"
                ),
            ),
            "odd-bytes-signed": (
                "return _mm256_srli_epi16(x, 8);",
                "return _mm256_srai_epi16(x, 8);",
            ),
            "planes-of-a-row": ("pair += g % 8 ? 1 : 9", "pair += g % 8 ? 1 : 8"),
            "tile-starts-at-zero": (
                "sum[r][0] = sum[r][1] = broadcast(a.init[r])",
                "sum[r][0] = sum[r][1] = broadcast(0)",
            ),
        },
        isa="avx2",
    ),
    *of(
        "csrc/cpu/isa_avx2.cpp",
        "test_guard_pages",
        {
            "tail-of-b-read-past-its-end": (
                "col_stride + first, k - first)",
                "col_stride + first, 32)",
            ),
            "tail-of-a-read-past-its-end": (
                "if (stride != 1 || first + 32 > k)",
                "if (stride != 1)",
            ),
        },
        isa="avx2",
    ),
    *of(
        "csrc/cpu/isa_portable.cpp",
        "test_scaled_mm",
        {
            "fourth-of-a-group-dropped": (" + w[3] * x[3])", ")"),
            "weight-not-offset": ("x[i] * (w[i] + 128)", "x[i] * w[i]"),
            "last-of-k-dropped": ("i < k ? a[i * stride] : 0", "i + 1 < k ? a[i * stride] : 0"),
        },
    ),
    *of(
        "csrc/cpu/lower.h",
        "test_scaled_mm",
        {
            "bias-not-fused": ("return __builtin_fmaf(x, y, z);", "return x * y + z;"),
            "fma-rounds-twice": ("if (error != 0.0 && error == error &&", "if (error > 1e300 &&"),
            "azp-sign": (
                "static_cast<uint32_t>(x) - static_cast<uint32_t>(y)",
                "static_cast<uint32_t>(x) + static_cast<uint32_t>(y)",
            ),
            "scale-a-of-the-first-row": ("[row.m * operand.row_stride]", "[0 * row.m]"),
            "scale-b-of-the-first-block": (
                "widen_columns(operand, row, col, to, count)",
                "widen_columns(operand, row, 0 * col, to, count)",
            ),
            "azp-adj-of-the-first-block": (
                "static_cast<const T*>(operand.data) + col * operand.col_stride",
                "static_cast<const T*>(operand.data) + 0 * col",
            ),
            "azp-adj-stride-ignored": (
                "to[i] = from[i * operand.col_stride]",
                "to[i] = from[i * (operand.col_stride != 0)]",
            ),
            "residual-dropped": (
                "float x, float y) { return x + y; }",
                "float x, float) { return x; }",
            ),
            "residual-of-the-first-row": (
                "row.cols.load<L>(row.p, row.m, row.col, row.count);",
                "row.cols.load<L>(row.p, 0 * row.m, row.col, row.count);",
            ),
            "residual-of-the-first-block": (
                "row.cols.load<L>(row.p, row.m, row.col, row.count);",
                "row.cols.load<L>(row.p, row.m, 0 * row.col, row.count);",
            ),
        },
    ),
    *of(
        "csrc/cpu/lower.h",
        "test_guards_int8::test_exact_ties_go_to_even test_scaled_mm",
        {
            "rounded-to-odd-always": (
                "if (error != 0.0 && error == error &&",
                "if (error == error &&",
            ),
            "rounded-to-odd-the-wrong-way": (
                "((error > 0.0) == (sum > 0.0)) ? 1 : -1",
                "((error > 0.0) == (sum > 0.0)) ? -1 : 1",
            ),
        },
    ),
    *of(
        "csrc/cpu/tiling.h",
        "test_scaled_mm",
        {
            "rest-of-the-rows-dropped": (
                "t.row_blocks = ceil_div(m, t.block_rows);",
                "t.row_blocks = m / t.block_rows;",
            ),
        },
    ),
    *of(
        "csrc/cpu/vnni_micro.h",
        "test_scaled_mm",
        {
            "vnni-row-not-padded": ("std::memset(row + k, 0, row_bytes(k) - k);", ""),
            "vnni-strided-row-as-dense": (
                "row[i] = static_cast<char>(a[i * stride])",
                "row[i] = static_cast<char>(a[i])",
            ),
            "vnni-rest-of-k-dropped": (
                "if (first < k) {\n      alignas(64)",
                "if (first + 1 < k) {\n      alignas(64)",
            ),
        },
        isa="avx512_vnni",
    ),
    *of(
        "csrc/epilogue/epilogues.h",
        "test_scaled_mm",
        {
            "scales-multiplied-first": (
                "using ScaledEpilogue = Apply<Mul, ScaleA, Rescaled<Acc>>;",
                (
                    "using ScaledEpilogue = Apply<Mul, Apply<Mul, ScaleA, ScaleB>, "
                    "Apply<ToFloat, Acc>>;"
                ),
            ),
        },
        breaks_build=True,
    ),
    *of(
        "csrc/epilogue/epilogues.h",
        "test_scaled_mm",
        {
            "azp-per-token-dropped": (
                "Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>;",
                "Apply<Sub, Acc, AzpAdj>;",
            ),
        },
    ),
    *of(
        "csrc/epilogue/expr.h",
        "test_properties",
        {
            "absent-bias-is-plus-zero": (
                "Neutral<Operand::bias> {\n  static constexpr float value = -0.0f;",
                "Neutral<Operand::bias> {\n  static constexpr float value = 0.0f;",
            ),
        },
    ),
    *of(
        "csrc/epilogue/identity.h",
        "test_epilogues",
        {
            "azp-with-adj-stands-in-for-nothing": (
                "return stands_in ? Operand::azp_with_adj : id;",
                "return stands_in ? id : id;",
            ),
            "any-instance-will-do": (
                "std::is_same_v<detail::Reduced<",
                "true || std::is_same_v<detail::Reduced<",
            ),
        },
        breaks_build=True,
    ),
    *of(
        "csrc/cpu/endings.h",
        "test_epilogues test_scaled_mm",
        {
            "gate-and-value-swapped": (
                "function_of<f>(gates[n]) * values[n]",
                "function_of<f>(values[n]) * gates[n]",
            ),
            "last-column-unwritten": (
                "out, rounded, count * sizeof(S)",
                "out, rounded, (count & ~1) * sizeof(S)",
            ),
            "last-sum-unwritten": (
                "out, row.acc, row.count * sizeof(int32_t)",
                "out, row.acc, (row.count & ~1) * sizeof(int32_t)",
            ),
            "e4m3-not-saturated": ("x = x > 448.0f ? 448.0f : x;", ""),
            "e4m3-divides": ("d[n] * reciprocal", "d[n] / scale"),
            "e4m3-subnormals-by-truncation": ("+ 16384.0f)", "+ 16383.999f)"),
            "int8-without-azp-down-to-128": ("azp ? -128.0f : -127.0f", "-128.0f"),
            "output-scale-of-the-first-row": ("return data[row.m * stride];", "return data[0];"),
        },
    ),
    *of(
        "csrc/epilogue/registry.def",
        "test_epilogues",
        {
            "instance-without-zero-point": (
                "ScaledEpilogueAzp,                  ScaledEpilogueAzpPerToken)",
                "ScaledEpilogueAzp,                  ScaledEpilogueBias)",
            ),
            "instance-without-residual": (
                "ScaledEpilogueAzpResidual,          ScaledEpilogueAzpPerTokenResidual)",
                "ScaledEpilogueAzpResidual,          ScaledEpilogueAzpPerToken)",
            ),
            "instance-without-pairs": (
                "ScaledEpilogueGated,                ScaledEpilogueAzpPerTokenGated)",
                "ScaledEpilogueGated,                ScaledEpilogueAzpPerTokenActivated)",
            ),
            "instance-without-quantiser": (
                "ScaledEpilogueQuantised,            ScaledEpilogueAzpPerTokenActivated)",
                "ScaledEpilogueQuantised,            ScaledEpilogueAzpPerToken)",
            ),
        },
        breaks_build=True,
    ),
    *of(
        "csrc/epilogue/registry.h",
        "test_epilogues",
        {
            "operand-given-and-not-read": ("if (!unread && !lacking)", "if (!lacking)"),
            "operand-needed-and-not-given": ("if (!unread && !lacking)", "if (!unread)"),
            "activation-not-asked-for": (
                "if (entry.form != activation.form || entry.accepted == 0)",
                "if (entry.accepted == 0)",
            ),
        },
    ),
]
