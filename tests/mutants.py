"""The bugs that tests/mutate.py plants, as data: each is one place of one file and the tests that
must fail. Many have shipped in other libraries, the rest are slips of the hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mutants_more import CUDA, ENGINES, INT4, PYTHON


@dataclass(frozen=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    tests: str  # files of tests/, the first that should notice first
    isa: str = ""  # only where this instruction set runs
    gpu: bool = False  # only where there is a GPU
    breaks_build: bool = False  # a static_assert must notice it, before any test

    @property
    def compiled(self) -> bool:
        return self.path.startswith("csrc")


def _mutants(
    path: str,
    tests: str,
    isa: str = "",
    gpu: bool = False,
    breaks_build: bool = False,
    **bugs: tuple[str, str],
) -> list[Mutant]:
    return [
        Mutant(name.replace("_", "-"), path, old, new, tests, isa, gpu, breaks_build)
        for name, (old, new) in bugs.items()
    ]


def _neutral(operand: str, value: str) -> str:
    """Where csrc/epilogue/expr.h says what an absent operand reads as."""
    return f"Neutral<Operand::{operand}> {{\n  static constexpr float value = {value};"


PRODUCTS = "test_scaled_mm"
MUTANTS = [
    *_mutants(
        "csrc/epilogue/epilogues.h",
        PRODUCTS,
        scales_multiplied_first=(
            "using ScaledEpilogue = Apply<Mul, ScaleA, Rescaled<Acc>>;",
            "using ScaledEpilogue = Apply<Mul, Apply<Mul, ScaleA, ScaleB>, Apply<ToFloat, Acc>>;",
        ),
        azp_per_token_dropped=(
            "Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>;",
            "Apply<Sub, Acc, AzpAdj>;",
        ),
    ),
    *_mutants(
        "csrc/epilogue/expr.h",
        "test_properties",
        absent_bias_is_plus_zero=(_neutral("bias", "-0.0f"), _neutral("bias", "0.0f")),
    ),
    *_mutants(
        "csrc/epilogue/expr.h",
        "test_cuda_rows",
        gpu=True,  # a CPU kernel has no operand of its epilogue that is absent but the bias
        cuda_absent_residual_is_plus_zero=(
            _neutral("residual", "-0.0f"),
            _neutral("residual", "0.0f"),
        ),
    ),
    *_mutants(
        "csrc/epilogue/registry.def",
        "test_epilogues",
        breaks_build=True,
        instance_without_zero_point=(
            "ScaledEpilogueAzp,                 ScaledEpilogueAzpPerToken)",
            "ScaledEpilogueAzp,                 ScaledEpilogueBias)",
        ),
        instance_without_residual=(
            "ScaledEpilogueAzpResidual,         ScaledEpilogueAzpPerTokenResidual)",
            "ScaledEpilogueAzpResidual,         ScaledEpilogueAzpPerToken)",
        ),
        instance_without_pairs=(
            "ScaledEpilogueReGLU,               ScaledEpilogueAzpPerTokenReGLU)",
            "ScaledEpilogueReGLU,               ScaledEpilogueAzpPerTokenResidual)",
        ),
    ),
    *_mutants(
        "csrc/epilogue/identity.h",
        "test_epilogues",
        breaks_build=True,
        azp_with_adj_stands_in_for_nothing=(
            "return stands_in ? Operand::azp_with_adj : id;",
            "return stands_in ? id : id;",
        ),
        any_instance_will_do=(
            "std::is_same_v<detail::Reduced<",
            "true || std::is_same_v<detail::Reduced<",
        ),
    ),
    *_mutants(
        "csrc/epilogue/registry.h",
        "test_epilogues",
        operand_given_and_not_read=("if (!unread && !lacking)", "if (!lacking)"),
        operand_needed_and_not_given=("if (!unread && !lacking)", "if (!unread)"),
        activation_not_asked_for=(
            "if (entry.activation != activation || entry.accepted == 0)",
            "if (entry.accepted == 0)",
        ),
    ),
    *_mutants(
        "csrc/cpu/lower.h",
        PRODUCTS,
        bias_not_fused=("return __builtin_fmaf(x, y, z);", "return x * y + z;"),
        fma_rounds_twice=("if (error != 0.0 && error == error &&", "if (error > 1e300 &&"),
        azp_sign=(
            "static_cast<uint32_t>(x) - static_cast<uint32_t>(y)",
            "static_cast<uint32_t>(x) + static_cast<uint32_t>(y)",
        ),
        scale_a_of_the_first_row=("[row.m * operand.row_stride]", "[0 * row.m]"),
        scale_b_of_the_first_block=(
            "widen_columns(operand, row, col, to, count)",
            "widen_columns(operand, row, 0 * col, to, count)",
        ),
        azp_adj_of_the_first_block=(
            "static_cast<const T*>(operand.data) + col * operand.col_stride",
            "static_cast<const T*>(operand.data) + 0 * col",
        ),
        azp_adj_stride_ignored=(
            "to[i] = from[i * operand.col_stride]",
            "to[i] = from[i * (operand.col_stride != 0)]",
        ),
        last_column_unwritten=(
            "out, rounded, count * sizeof(S)",
            "out, rounded, (count - 1) * sizeof(S)",
        ),
        last_sum_unwritten=(
            "out, row.acc, row.count * sizeof(int32_t)",
            "out, row.acc, (row.count & ~1) * sizeof(int32_t)",
        ),
        residual_dropped=("float x, float y) { return x + y; }", "float x, float) { return x; }"),
        residual_of_the_first_row=(
            "row.cols.load<L>(row.p, row.m, row.col, row.count);",
            "row.cols.load<L>(row.p, 0 * row.m, row.col, row.count);",
        ),
        residual_of_the_first_block=(
            "row.cols.load<L>(row.p, row.m, row.col, row.count);",
            "row.cols.load<L>(row.p, row.m, 0 * row.col, row.count);",
        ),
        gate_and_value_swapped=(
            "apply(Op{}, column[2 * n], column[2 * n + 1])",
            "apply(Op{}, column[2 * n + 1], column[2 * n])",
        ),
        gate_not_clamped=(
            "(gate > 0.0f ? gate : gate == gate ? 0.0f : gate) * value",
            "gate * value",
        ),
        gate_of_nan_is_zero=("gate == gate ? 0.0f : gate) * value", "0.0f) * value"),
        gate_keeps_its_minus_zero=("return (gate > 0.0f ?", "return (gate >= 0.0f ?"),
        last_pair_unwritten=(
            "row.count / epilogue::columns_of<E>;",
            "(row.count - epilogue::columns_of<E> / 2) / epilogue::columns_of<E>;",
        ),
    ),
    *_mutants(
        "csrc/cpu/gemm_loop.h",
        PRODUCTS,
        row_sum_factor=("-128 * sum_row(row)", "-127 * sum_row(row)"),
        row_of_the_first_tile=("= rows.first() + first + r;", "= rows.first() + r;"),
        first_panel_packed_four_times=(
            "pack_panel(p.b, col / kPanel + i,",
            "pack_panel(p.b, col / kPanel,",
        ),
        row_stride_stale=("(first_ + r) * p_.a.row_stride", "(first_ + r) * p_.size.k"),
        column_stride_of_a_ignored=("row[k * p_.a.col_stride]", "row[k]"),
        rows_past_the_last=("std::min(block_rows_, p_.size.m - first_)", "block_rows_"),
        rest_of_tiles_dropped=("ceil_div(rows - first, tiles - t)", "rows / tiles"),
        row_block_loaded_once=("if (index == index_) return;", "if (index_ >= 0) return;"),
        plain_weight_of_any_stride_in_place=(
            "(plain.row_stride == 1 || p.size.k == 1) &&",
            "true &&",
        ),
        packed_block_of_columns=(
            "p.b.packed + col / kPanel * panel_bytes(p.size.k)",
            "p.b.packed",
        ),
        pairs_of_the_first_block=(
            "col / columns * p.size.out_bytes()",
            "col * p.size.out_bytes()",
        ),
    ),
    *_mutants(
        "csrc/cpu/float_env.h",
        "test_environment",
        rounding_mode_of_the_caller=("_mm_setcsr(0x1f80)", "_mm_setcsr(saved_ & ~0x8040u)"),
        denormals_flushed=("_mm_setcsr(0x1f80)", "_mm_setcsr(saved_ & ~0x6000u)"),
        mode_not_restored=("{ _mm_setcsr(saved_); }", "{}"),
    ),
    *_mutants(
        "csrc/cpu/isa_avx2.cpp",
        PRODUCTS,
        isa="avx2",
        saturating_int16_pairs=(
            "multiply_add(multiply_add(sum[r][c], even[c], x), odd[c], y)",
            "multiply_add(sum[r][c], _mm256_adds_epi16(_mm256_mullo_epi16(even[c], x), "
            "_mm256_mullo_epi16(odd[c], y)), _mm256_set1_epi16(1))",
        ),
        odd_bytes_signed=("return _mm256_srli_epi16(x, 8);", "return _mm256_srai_epi16(x, 8);"),
        planes_of_a_row=("pair += g % 8 ? 1 : 9", "pair += g % 8 ? 1 : 8"),
        tile_starts_at_zero=(
            "sum[r][0] = sum[r][1] = broadcast(a.init[r])",
            "sum[r][0] = sum[r][1] = broadcast(0)",
        ),
    ),
    *_mutants(
        "csrc/cpu/avx2_vectors.h",
        PRODUCTS,
        isa="avx2",
        horizontal_sum_of_half=("_mm_shuffle_epi32(sum, 0xb1)", "_mm_shuffle_epi32(sum, 0x4e)"),
    ),
    *_mutants(
        "csrc/cpu/isa_avx2.cpp",
        "test_guard_pages",
        isa="avx2",
        tail_of_b_read_past_its_end=("col_stride + first, k - first)", "col_stride + first, 32)"),
        tail_of_a_read_past_its_end=("if (stride != 1 || first + 32 > k)", "if (stride != 1)"),
    ),
    *_mutants(
        "csrc/cpu/isa_portable.cpp",
        PRODUCTS,
        fourth_of_a_group_dropped=(" + w[3] * x[3])", ")"),
        weight_not_offset=("x[i] * (w[i] + 128)", "x[i] * w[i]"),
        last_of_k_dropped=("i < k ? a[i * stride] : 0", "i + 1 < k ? a[i * stride] : 0"),
    ),
    *_mutants(
        "csrc/cpu/isa_amx_int8.cpp",
        PRODUCTS,
        isa="amx_int8",
        amx_weight_signed=("_tile_dpbsud(0, 4, 6)", "_tile_dpbssd(0, 4, 6)"),
        amx_rest_of_k_dropped=("if (g < groups(k)) {", "if (false) {"),
    ),
    *_mutants(
        "csrc/cpu/float16.h",
        PRODUCTS,
        bfloat16_half_away=("bits + 0x7fff + ((bits >> 16) & 1)", "bits + 0x8000"),
        bfloat16_truncated=("bits + 0x7fff + ((bits >> 16) & 1)", "bits"),
        bfloat16_nan_overflows=("(bits & 0x7fffffff) > 0x7f800000 ? nan", "false ? nan"),
        float16_half_away=("magnitude + 0xfff + ((magnitude >> 13) & 1)", "magnitude + 0x1000"),
        float16_subnormals_late=("if (magnitude >= 0x38800000)", "if (magnitude >= 0x38000000)"),
        float16_overflow_early=("if (magnitude >= 0x477ff000)", "if (magnitude >= 0x477fe000)"),
        float16_bias_nan_is_infinite=("| ((magnitude & 0x3ff) << 13));", ");"),
        float16_toward_zero=(
            "_mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT)",
            "_mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_ZERO)",
        ),
        widened_stride_ignored=("from[(first + i) * stride]", "from[first + i]"),
    ),
    *_mutants(
        "csrc/cpu/quantize_rows.h",
        "test_quantize",
        half_away_from_zero=("__builtin_rintf(x)", "__builtin_roundf(x)"),
        half_away_in_the_portable_path=("(x + shift) - shift : x", "std::round(x) : x"),
        reciprocal_of_the_scale=("x[k] / by.scale", "x[k] * (1.0f / by.scale)"),
        infinity_in_a_range=("largest < 0x7f800000", "largest <= 0x7f800000"),
        wide_range_overflows=("if (std::isinf(scale))", "if (false)"),
        scale_of_zeros_is_zero=("scale = std::max(scale, FLT_MIN);", ""),
        minus_128_when_symmetric=("? -127.0f : -128.0f", "? -128.0f : -128.0f"),
        nan_clamps=("value = value == value ? value : 0.0f;", ""),
        azp_sign_of_the_quantiser=("-128.0f - range.lo / scale", "-128.0f + range.lo / scale"),
        scale_of_the_first_token=("p.scale[row * p.scale_stride]", "p.scale[0 * row]"),
        wraps_instead_of_clamping=("value = value < 127.0f ? value : 127.0f;", ""),
    ),
    *_mutants(
        "csrc/cpu/quantize.cpp",
        "test_quantize",
        nan_elsewhere_forgotten=("whole.finite &= range.finite;", ""),
        range_of_the_last_piece=("std::min(whole.lo, range.lo)", "range.lo"),
    ),
    *_mutants(
        "csrc/cpu/weight.cpp",
        "test_weight",
        sums_of_the_offset=("static_cast<uint32_t>(128 * b.k)", "static_cast<uint32_t>(127 * b.k)"),
        zero_point_left_out=("factor * sums[i]", "sums[i]"),
        four_groups_out_of_order=(
            "{__builtin_shufflevector(low01, low23, 0, 1, 4, 5)",
            "{__builtin_shufflevector(low01, low23, 0, 1, 5, 4)",
        ),
        not_offset_by_128=("column[i * stride] ^ 0x80", "column[i * stride] ^ 0"),
        rows_of_b_swapped=(
            "uint32_t{row[2][n]} << 16 | uint32_t{row[3][n]} << 24",
            "uint32_t{row[3][n]} << 16 | uint32_t{row[2][n]} << 24",
        ),
    ),
    *_mutants(
        "csrc/cpu/weight.cpp",
        "test_guard_pages",
        tail_of_k_packed_past_its_end=("b.k - g * kGroup)", "b.k - g * kGroup + 2)"),
    ),
    *_mutants(
        "csrc/cpu/tiling.h",
        PRODUCTS,
        rest_of_the_rows_dropped=(
            "t.row_blocks = ceil_div(m, t.block_rows);",
            "t.row_blocks = m / t.block_rows;",
        ),
    ),
    *_mutants(
        "csrc/cpu/int8.cpp",
        PRODUCTS,
        empty_output_launched=("if (p.size.m == 0 || p.size.n == 0) return;", ""),
    ),
    *_mutants(
        "csrc/rules.cpp",
        "test_out test_fakes",
        out_over_an_operand=("written.end <= read.begin || read.end", "true || read.end"),
        out_over_the_end_of_an_operand=("(last + 1) * t.element_size()", "t.element_size()"),
        out_with_gaps=("if (!out->is_contiguous())", "if (false)"),
        out_of_any_shape=("if (!out->sizes().equals(sizes))", "if (false)"),
        out_not_written=("  return *out;", "  return new_empty(like, sizes, dtype);"),
    ),
    *_mutants(
        "csrc/problems/tensors.cpp",
        PRODUCTS,
        stride_of_one_element_used=("if (sizes[i] == 1) continue;", ""),
        two_strides_taken_for_one=(
            "if (stride && strides[i] != next) return",
            "if (false) return",
        ),
        vector_of_two_strides_in_place=(
            "data = copies.emplace_back(row_major_copy(t)).const_data_ptr();",
            "",
        ),
        folded_rows_contiguous=("*row_stride, strides[last]}", "sizes[last], strides[last]}"),
        residual_rows_contiguous=(
            "{matrix.data, dtype, matrix.row_stride, 1}",
            "{matrix.data, dtype, t.size(t.dim() - 1), 1}",
        ),
        residual_of_any_stride_in_place=(
            "side_by_side ? t : copies.emplace_back(row_major_copy(t))",
            "side_by_side ? t : t",
        ),
    ),
    *_mutants(
        "csrc/problems/tensors.cpp",
        "test_memory",
        out_of_memory_of_another_type=("throw OutOfMemory(", "throw std::runtime_error("),
        bytes_of_one_element=(
            "if (__builtin_mul_overflow(bytes, size, &bytes))",
            "if (false && size)",
        ),
    ),
    *_mutants(
        "csrc/problems/int8.cpp",
        PRODUCTS,
        column_stride_of_b_ignored=("b.stride(0), b.stride(1)}", "b.stride(0), b.size(0)}"),
    ),
    *_mutants(
        "csrc/problems/int8.cpp",
        "test_refusals",
        scale_per_token_taken_for_one=(
            "if (Leaf::scalar_ok && t.numel() == 1) return;",
            "if (Leaf::scalar_ok && (t.numel() == 1 || t.size(0) == 1)) return;",
        ),
        k_of_131072=("if (k > kMaxK)", "if (k > kMaxK + 1)"),
        bias_of_one_element=(
            "if (Leaf::scalar_ok && t.numel() == 1) return;",
            "if (t.numel() == 1) return;",
        ),
        too_many_columns_of_a=(
            "if (a.size(a.dim() - 1) != p.size.k)",
            "if (a.size(a.dim() - 1) < p.size.k)",
        ),
        packed_buffer_of_any_size=("b.dim() != 1 || b.numel() != bytes ||", "b.dim() != 1 ||"),
        odd_number_of_columns_in_pairs=("if (size.n % entry.columns)", "if (false)"),
        residual_of_any_shape=("if (t.sizes().equals(wanted)) return;", "if (t.numel()) return;"),
        residual_of_half_an_output=(
            "sizes_with_last(a, size.n);\n      if",
            "sizes_with_last(a, size.n / 2);\n      if",
        ),
        unknown_activation_is_none=(
            'refuse("activation", "be None or one of " + names, *wanted);',
            "return Activation::none;",
        ),
        unknown_out_dtype_is_bfloat16=(
            "std::optional<DType> known = dtype_of(dtype)) return *known;",
            "std::optional<DType> known = dtype_of(dtype); true)\n    "
            "return known.value_or(DType::bfloat16);",
        ),
    ),
    *_mutants(
        "csrc/rules.cpp",
        "test_refusals",
        bias_of_any_dtype=("t.scalar_type() != dtype &&", "false &&"),
        vector_of_any_dtype=("if (t.scalar_type() != dtype) refuse(", "if (false) refuse("),
    ),
    *_mutants(
        "csrc/problems/quantize.cpp",
        "test_quantize",
        static_scale_of_the_first_row=("return by_row.row_stride;", "return 0;"),
    ),
    *_mutants(
        "csrc/problems/int8.h",
        "test_epilogues",
        pairs_are_as_wide_as_b=("return n / epilogue::entry(epilogue).columns;", "return n;"),
    ),
    *_mutants(
        "csrc/dtypes.h",
        PRODUCTS,
        halves_swapped=(
            "if (type == ScalarType::scalar_type) return DType::name;",
            "if (type == ScalarType::scalar_type)                          \\\n"
            "    return DType::name == DType::bfloat16  ? DType::float16   \\\n"
            "           : DType::name == DType::float16 ? DType::bfloat16  \\\n"
            "                                           : DType::name;",
        ),
    ),
    *_mutants(
        "csrc/cpu/isa.cpp",
        "test_environment",
        unknown_isa_accepted=(
            "if (*forced == isa->name) return",
            "if (*forced != isa->name) return",
        ),
    ),
    *_mutants(
        "csrc/dispatch/setting.h",
        "test_environment",
        empty_isa_refused=("return value && *value ?", "return value ?"),
        setting_read_at_every_call=(
            "return value_.load(std::memory_order_acquire); }",
            "return kept(std::getenv(variable_)); }",
        ),
        value_before_forgotten=('return before ? *before : "";', 'return before ? "" : "";'),
    ),
    *_mutants(
        "csrc/dispatch/choose.h",
        "test_explain test_explain_awq",
        refusing_kernel_chosen=("if (!kernel.refuse(size, machine).empty()) continue;", ""),
        forced_kernel_that_refuses=(
            "if (forced->refuse(size, machine).empty()) return forced;",
            "return forced;",
        ),
        forced_kernel_ignored=(
            "if (!forced) return nullptr;",
            "if (forced || !forced) return nullptr;",
        ),
        last_of_the_kernels_chosen=("if (us < least) least = us,", "least = us,"),
        answer_of_another_size=("!(known.size == size) ||", ""),
        answer_of_another_machine=(" || !(known.machine == machine)", ""),
        unknown_kernel_ignored=("check_forced_kernels();\n  std::string_view", "std::string_view"),
    ),
    *_mutants(
        "csrc/dispatch/explain.cpp",
        "test_explain",
        every_kernel_is_the_chosen=(
            "is_chosen = &kernel == chosen;",
            "is_chosen = chosen != nullptr;",
        ),
        pairs_not_explained=(
            "if (activation == kActivationNames",
            "if (activation != kActivationNames",
        ),
    ),
    *_mutants(
        "csrc/dispatch/archs.cpp",
        "test_model test_explain test_explain_awq",
        name_of_a_later_arch_unknown=(
            "found |= wanted == kernel.name",
            "found = wanted == kernel.name",
        ),
    ),
    *_mutants(
        "csrc/cuda/sm90/model.cpp",
        "test_explain test_model",
        persistent_kernel_without_k=(
            'if (size.k == 0) return "needs K > 0 (it',
            'if (size.k < 0) return "needs K > 0 (it',
        ),
        persistent_kernel_of_pairs=("if (size.out_columns() != size.n)", "if (false)"),
    ),
    *_mutants(
        "scaled_mm/ops/int8.py",
        "test_torch test_refusals test_weight",
        fake_product_dtype=("out_dtype or torch.bfloat16", "torch.bfloat16"),
        fake_of_pairs_is_whole=("n = n // 2", "n = n"),
        fake_of_any_activation=('if activation == "reglu":', "if residual is None:"),
        fake_packed_size=("((k + 3) // 4 + 1) * 64", "((k + 3) // 4) * 64"),
        bias_not_passed=('options["bias"] = bias', "pass"),
        residual_not_passed=('options["residual"] = residual', "pass"),
        activation_not_passed=('options["activation"] = activation', "pass"),
        activation_of_any_type=("if not isinstance(activation, str):", "if False:"),
    ),
    *_mutants(
        "scaled_mm/ops/int8.py",
        "test_memory",
        no_memory_for_a_product=(
            "**options, **packed)\n        return written(out)\n    except (MemoryError, ",
            "**options, **packed)\n        return written(out)\n    except (OSError, ",
        ),
    ),
    *_mutants(
        "scaled_mm/ops/arguments.py",
        "test_torch test_refusals test_weight",
        gradients_refused_always=("if torch.is_grad_enabled():", "if True:"),
        gradients_never_refused=("if torch.is_grad_enabled():", "if False:"),
        gradient_of_an_option=("in options.items():", "in ():"),
    ),
    *_mutants(
        "scaled_mm/ops/arguments.py",
        "test_memory",
        out_of_memory_is_python_s=("torch.OutOfMemoryError(str(error))", "MemoryError(str(error))"),
    ),
    *_mutants(
        "scaled_mm/ops/arguments.py",
        "test_out",
        write_hidden_from_autograd=("torch.autograd.graph.increment_version(out)", "pass"),
    ),
    *_mutants(
        "scaled_mm/ops/arguments.py",
        "test_fakes",
        kind_of_tensor_not_said=("isinstance(operand, Tensor) and (kind :=", "(kind := '') and ("),
    ),
    *_mutants(
        "scaled_mm/ops/shapes.py",
        "test_fakes test_torch",
        fake_product_is_a_matrix=("return [*a.shape[:-1], n]", "return [*a.shape[:1], n]"),
        fake_product_of_any_k=("a.shape[-1] == k,", "True,"),
        fake_of_any_device=("t.device != like.device", "False"),
        fake_weight_of_any_rank=("b.dim() == 2,", "True,"),
        fake_groups_of_any_number=("(k % torch.sym_max(groups, 1) == 0)", "True"),
        fake_of_no_groups=("((groups > 0) | (k == 0))", "True"),
        fake_zeros_of_any_shape=("            got == wanted,", "            True,"),
        fake_out_of_any_shape=("same &= got == wanted", "same &= True"),
    ),
    *_mutants(
        "scaled_mm/reference/float_mode.py",
        "test_environment",
        reference_flushes=("    torch.set_flush_denormal(False)\n", ""),
        reference_rounds_as_told=("    _libm().fesetround(TO_NEAREST)\n", ""),
        reference_leaves_its_mode=("_libm().fesetenv(before)", "pass"),
    ),
    *_mutants(
        "scaled_mm/ops/packed_weight.py",
        "test_torch test_refusals test_weight",
        packed_weight_transposed=("return (self.k, self.n)", "return (self.n, self.k)"),
    ),
    *_mutants(
        "scaled_mm/ops/quantize.py",
        "test_torch test_refusals test_quantize",
        azp_with_symmetric=("if azp is not None and symmetric:", "if False:"),
        static_azp_forgotten=(
            "quantize_int8_static(x, scale, azp), scale",
            "quantize_int8_static(x, scale), scale",
        ),
        fake_scale_per_tensor=("if per_token else [1]", "if per_token else [1, 1]"),
        fake_weight_scale=(
            "w.new_empty([1, n], dtype=torch.float32)",
            "w.new_empty([n, 1], dtype=torch.float32)",
        ),
    ),
    *_mutants(
        "scaled_mm/ops/azp.py",
        "test_torch test_weight",
        packed_shape_not_passed=("_azp_adj(weight, **packed)", "_azp_adj(weight)"),
    ),
    *_mutants(
        "scaled_mm/nn/scaled_linear.py",
        "test_nn test_one_weight",
        scales_follow_the_dtype=("if moved.dtype != dtype:", "if moved is None:"),
        static_azp_dropped=("azp_with_adj=self.azp_with_adj,\n            out", "out"),
        loaded_weight_not_packed=(
            "cast(Tensor, self._buffers[name]).to(dtype)\n        self._buffers.settle()",
            "cast(Tensor, self._buffers[name]).to(dtype)",
        ),
        layer_bias_dropped=("bias=self.bias,\n            azp", "azp"),
        output_dtype_fixed=("out_dtype=x.dtype", "out_dtype=torch.bfloat16"),
    ),
    *_mutants(
        "scaled_mm/nn/one_weight.py",
        "test_one_weight",
        shared_weight_packed=("not cut and _holders(self) != _ALONE", "False"),
        shared_memory_not_counted=(
            "torch._C._storage_Use_Count(memory._cdata)",
            "0 * torch._C._storage_Use_Count(memory._cdata)",
        ),
        python_holders_not_counted=("sys.getrefcount(weight)", "0 * sys.getrefcount(weight)"),
        storage_holders_not_counted=("sys.getrefcount(memory)", "0 * sys.getrefcount(memory)"),
        reading_leaves_the_packed=(
            'dict.__setitem__(self, "weight", _plain(self.packed))\n',
            "pass\n",
        ),
        written_weight_leaves_the_packed=(
            'if key == "weight":\n                self.packed = None\n\n    def __del',
            "if False:\n                self.packed = None\n\n    def __del",
        ),
        plain_kept_beside=('dict.__setitem__(self, "weight", None)', "pass"),
        file_without_the_weight=('entries["weight"] = _plain', "_plain"),
        tracing_unpacks=("if TracingContext.try_get() is None:", "if True:"),
        every_trace_settles=("elif not self._traced and", "elif"),
    ),
    *_mutants(
        "scaled_mm/ops/packed_weight.py",
        "test_one_weight",
        unpacked_with_the_flip=("_FLIP = -128", "_FLIP = 0"),
        skew_unpacked=("[:, :groups].transpose", "[:, 1:].transpose"),
        packed_size_not_checked=("data.dtype != torch.uint8 or", "False and"),
    ),
    *_mutants(
        "scaled_mm/_library.py",
        "test_environment",
        missing_library_not_said=("if not CPU_LIBRARY.exists():", "if False:"),
    ),
    *_mutants(
        "scaled_mm/reference/epilogues.py",
        "test_reference",
        reference_azp_sign=(
            "return _rescaled(num, acc - azp * azp_adj, scale_a, scale_b, bias)",
            "return _rescaled(num, acc + azp * azp_adj, scale_a, scale_b, bias)",
        ),
        reference_bias_of_plus_zero=(
            "np.full((1, 1), -0.0, np.float32)",
            "np.full((1, 1), 0.0, np.float32)",
        ),
        reference_without_residual=(
            "return num.add(_rescaled(num, acc, scale_a, scale_b, bias), residual)",
            "return num.add(_rescaled(num, acc, scale_a, scale_b, bias), 0 * residual)",
        ),
    ),
    *_mutants(
        "scaled_mm/reference/arithmetic.py",
        "test_reference",
        reference_gate_and_value_swapped=(
            "np.where(np.isnan(gate), gate, np.float32(0))) * x[:, 1::2]",
            "np.where(np.isnan(gate), gate, np.float32(0))) * x[:, 0::2]",
        ),
        reference_gate_of_nan_is_zero=(
            "np.where(np.isnan(gate), gate, np.float32(0))",
            "np.float32(0)",
        ),
    ),
    *_mutants(
        "scaled_mm/reference/quantize.py",
        "test_reference",
        reference_rounds_away=(
            "np.rint(quotient(x32) / quotient(s))",
            "np.round(quotient(x32) / quotient(s) + 1e-7)",
        ),
    ),
]
for _path, _tests, _bugs in (*INT4, *PYTHON, *ENGINES):
    MUTANTS += _mutants(_path, _tests, **_bugs)
for _path, _tests, _bugs in CUDA:
    MUTANTS += _mutants(_path, _tests, gpu=True, **_bugs)


def stale(root: Path) -> list[str]:
    """What does not fit the sources under root, a line for each: file and text."""
    lines = []
    for mutant in MUTANTS:
        path = root / mutant.path
        count = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else None
        if count is None:
            lines.append(f"{mutant.name}: there is no file {mutant.path}")
        elif count != 1:
            lines.append(f"{mutant.name}: {mutant.path} holds {count} times {mutant.old!r}")
        lines += [
            f"{mutant.name}: there is no file tests/{test}.py"
            for test in mutant.tests.split()
            if not (root / f"tests/{test}.py").is_file()
        ]
    return lines
