"""Bugs for mutants.py. What is asked of operands: csrc/problems, csrc/rules.cpp."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/problems/int8.cpp",
        "test_scaled_mm",
        {
            "column-stride-of-b-ignored": ("b.stride(0), b.stride(1)}", "b.stride(0), b.size(0)}"),
        },
    ),
    *of(
        "csrc/problems/int8.cpp",
        "test_refusals",
        {
            "scale-per-token-taken-for-one": (
                "if (Leaf::scalar_ok && t.numel() == 1) return;",
                "if (Leaf::scalar_ok && (t.numel() == 1 || t.size(0) == 1)) return;",
            ),
            "k-of-131072": ("if (k > kMaxK)", "if (k > kMaxK + 1)"),
            "bias-of-one-element": (
                "if (Leaf::scalar_ok && t.numel() == 1) return;",
                "if (t.numel() == 1) return;",
            ),
            "too-many-columns-of-a": (
                "if (a.size(a.dim() - 1) != p.size.k)",
                "if (a.size(a.dim() - 1) < p.size.k)",
            ),
            "packed-buffer-of-any-size": (
                "b.dim() != 1 || b.numel() != bytes ||",
                "b.dim() != 1 ||",
            ),
            "odd-number-of-columns-in-pairs": (
                "if (size.n % epilogue::entry(size.epilogue).columns())",
                "if (false)",
            ),
            "residual-of-any-shape": (
                "if (t.sizes().equals(wanted)) return;",
                "if (t.numel()) return;",
            ),
            "residual-of-half-an-output": (
                "sizes_with_last(a, size.n);\n      if",
                "sizes_with_last(a, size.n / 2);\n      if",
            ),
            "unknown-activation-is-none": (
                'refuse("activation", "be None or one of " + names, *wanted);',
                "return kActivations[0];",
            ),
            "unknown-out-dtype-is-bfloat16": (
                "if (known) return *known;",
                "return known.value_or(DType::bfloat16);",
            ),
        },
    ),
    *of(
        "csrc/problems/int8.cpp",
        "test_guards_int8 test_refusals",
        {
            "k-of-a-packed-weight": (
                '  check_k(weight.k);\n  must_be("b", b, ScalarType::Byte);',
                '  must_be("b", b, ScalarType::Byte);',
            ),
            "n-of-a-packed-weight": (
                '|| weight.n > kMaxPackedN) {\n    refuse("b_shape"',
                ') {\n    refuse("b_shape"',
            ),
            "n-of-a-weight-to-pack": ("if (checked.problem.n > kMaxPackedN) {", "if (false) {"),
            "packed-limit-off-by-one": (
                "checked.problem.n > kMaxPackedN",
                "checked.problem.n > kMaxPackedN + 1",
            ),
            "negative-k-of-a-packed-weight": (
                "if (weight.k < 0 || weight.n < 0",
                "if (weight.n < 0",
            ),
            "packed-slice-taken-whole": (
                "b.numel() != bytes || !b.is_contiguous()",
                "b.numel() != bytes",
            ),
            "azp-of-many-elements": ("if (azp->numel() != 1)", "if (false)"),
        },
    ),
    *of(
        "csrc/problems/int8.h",
        "test_epilogues",
        {
            "pairs-are-as-wide-as-b": (
                "return n / epilogue::entry(epilogue).columns();",
                "return n;",
            ),
        },
    ),
    *of(
        "csrc/problems/lowbit.cpp",
        "test_awq",
        {
            "int4-scales-of-any-dtype": ("if (dtype != x.scalar_type())", "if (false)"),
            "int4-columns-of-x-unchecked": ("if (x.size(x.dim() - 1) != p.w.k)", "if (false)"),
            "int4-zeros-of-any-shape": ("if (qzeros.size(0) != groups ||", "if (false &&"),
        },
    ),
    *of(
        "csrc/problems/lowbit.cpp",
        "test_guards_int4::test_an_expanded_operand test_awq",
        {
            "int4-words-of-stride-0": (
                "t.stride(1) == 1 || t.size(1) <= 1",
                "t.stride(1) <= 1 || t.size(1) <= 1",
            ),
            "int4-group-size-floored": ("|| w.k % groups != 0)", "|| false)"),
            "int4-columns-of-the-scales": ("if (scales.size(1) != w.n) {", "if (false) {"),
            "int4-bias-of-any-shape": ("if (!is_per_column(*bias, p.w.n)) {", "if (false) {"),
        },
    ),
    *of(
        "csrc/problems/quantize.cpp",
        "test_quantize",
        {
            "static-scale-of-the-first-row": ("return by_row.row_stride;", "return 0;"),
        },
    ),
    *of(
        "csrc/problems/quantize.cpp",
        "test_quantize test_refusals",
        {
            "static-scale-of-any-length": (
                "if (t.numel() != 1 && !is_per_row(t, x)) {",
                "if (false) {",
            ),
            "static-azp-of-the-scale-s-stride": (
                "if (azp) p.azp_stride = check_given",
                "if (azp) p.azp_stride = 0 * check_given",
            ),
            "weight-scale-per-tensor-always": (
                "per_channel ? w.size(0) : 1}, true, per_channel",
                "per_channel ? w.size(0) : 1}, true, false",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_scaled_mm",
        {
            "stride-of-one-element-used": ("if (sizes[i] == 1) continue;", ""),
            "two-strides-taken-for-one": (
                "if (stride && strides[i] != next) return",
                "if (false) return",
            ),
            "vector-of-two-strides-in-place": (
                "data = copies.emplace_back(row_major_copy(t)).const_data_ptr();",
                "",
            ),
            "folded-rows-contiguous": (
                "*row_stride, strides[last]}",
                "sizes[last], strides[last]}",
            ),
            "residual-rows-contiguous": (
                "{matrix.data, dtype, matrix.row_stride, 1}",
                "{matrix.data, dtype, t.size(t.dim() - 1), 1}",
            ),
            "residual-of-any-stride-in-place": (
                "side_by_side ? t : copies.emplace_back(row_major_copy(t))",
                "side_by_side ? t : t",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_memory",
        {
            "out-of-memory-of-another-type": ("throw OutOfMemory(", "throw std::runtime_error("),
            "bytes-of-one-element": (
                "if (__builtin_mul_overflow(bytes, size, &bytes))",
                "if (false && size)",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_guards_int8 test_scaled_mm test_awq",
        {
            "stride-of-the-last-dimension-alone": (
                "next = strides[i] * sizes[i];",
                "next = strides[i];",
            ),
            "copy-of-an-operand-not-kept": (
                "data = copies.emplace_back(row_major_copy(t)).const_data_ptr();\n    stride",
                "data = row_major_copy(t).const_data_ptr();\n    stride",
            ),
        },
    ),
    *of(
        "csrc/rules.cpp",
        "test_out test_fakes",
        {
            "out-over-an-operand": ("written.end <= read.begin || read.end", "true || read.end"),
            "out-over-the-end-of-an-operand": ("(last + 1) * t.element_size()", "t.element_size()"),
            "out-with-gaps": ("if (!out->is_contiguous())", "if (false)"),
            "out-of-any-shape": ("if (!out->sizes().equals(sizes))", "if (false)"),
            "out-not-written": ("  return *out;", "  return new_empty(like, sizes, dtype);"),
        },
    ),
    *of(
        "csrc/rules.cpp",
        "test_refusals",
        {
            "bias-of-any-dtype": ("t.scalar_type() != dtype &&", "false &&"),
            "vector-of-any-dtype": ("if (t.scalar_type() != dtype) refuse(", "if (false) refuse("),
            "device-of-an-operand-unchecked": (
                "if (t.is_cpu() != other.is_cpu() ||",
                "if (false &&",
            ),
            "row-of-scales-on-the-wrong-side": (
                "return sizes.slice(0, sizes.size() - column).equals(rows);",
                (
                    "return t.numel() == matrix.numel() / std::max<int64_t>(1, "
                    "matrix.size(matrix.dim() - 1));"
                ),
            ),
        },
    ),
]
