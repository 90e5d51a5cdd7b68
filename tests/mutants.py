"""The bugs that tests/mutate.py plants, as data: each is one place of one file and the tests that
must fail. Many have shipped in other libraries, the rest are slips of the hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    path: str
    old: str
    new: str
    tests: str  # files of tests/, the first that should notice first
    isa: str = ""  # only where this instruction set runs

    @property
    def compiled(self) -> bool:
        return self.path.startswith("csrc")


def _mutants(path: str, tests: str, isa: str = "", **bugs: tuple[str, str]) -> list[Mutant]:
    return [
        Mutant(name.replace("_", "-"), path, old, new, tests, isa)
        for name, (old, new) in bugs.items()
    ]


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
            "Rescaled<Apply<Sub, Acc, Apply<Mul, Azp, AzpAdj>>>",
            "Rescaled<Apply<Sub, Acc, AzpAdj>>",
        ),
    ),
    *_mutants(
        "csrc/epilogue/expr.h",
        "test_properties",
        absent_bias_is_plus_zero=("kAbsentBias = -0.0f", "kAbsentBias = 0.0f"),
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
        scale_a_of_the_first_row=("[row.m * v.stride]", "[0 * row.m * v.stride]"),
        scale_b_of_the_first_block=(
            "static_cast<const S*>(v.data) + col * v.stride",
            "static_cast<const S*>(v.data) + 0 * col * v.stride",
        ),
        azp_adj_of_the_first_block=(
            "static_cast<const T*>(v.data) + col * v.stride",
            "static_cast<const T*>(v.data) + 0 * col * v.stride",
        ),
        azp_adj_stride_ignored=("to[i] = from[i * v.stride]", "to[i] = from[i * (v.stride != 0)]"),
        last_column_unwritten=(
            "out, rounded, count * sizeof(S)",
            "out, rounded, (count - 1) * sizeof(S)",
        ),
        last_sum_unwritten=(
            "out, row.acc, count * sizeof(int32_t)",
            "out, row.acc, (count & ~1) * sizeof(int32_t)",
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
        row_stride_stale=("(first_ + r) * p_.a.row_stride", "(first_ + r) * p_.k"),
        column_stride_of_a_ignored=("row[k * p_.a.col_stride]", "row[k]"),
        rows_past_the_last=("std::min(block_rows_, p_.m - first_)", "block_rows_"),
        rest_of_tiles_dropped=("ceil_div(rows - first, tiles - t)", "rows / tiles"),
        row_block_loaded_once=("if (index == index_) return;", "if (index_ >= 0) return;"),
        plain_weight_of_any_stride_in_place=("(plain.row_stride == 1 || p.k == 1) &&", ""),
        packed_block_of_columns=("p.b.packed + col / kPanel * panel_bytes(p.k)", "p.b.packed"),
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
        "csrc/cpu/gemm.cpp",
        PRODUCTS,
        rest_of_the_rows_dropped=(
            "t.row_blocks = ceil_div(p.m, t.block_rows);",
            "t.row_blocks = p.m / t.block_rows;",
        ),
        empty_output_launched=("if (p.m > 0 && p.n > 0)", "if (true)"),
    ),
    *_mutants(
        "csrc/problem.cpp",
        PRODUCTS,
        stride_of_one_element_used=("if (sizes[i] == 1) continue;", ""),
        two_strides_taken_for_one=(
            "if (stride && strides[i] != next) return",
            "if (false) return",
        ),
        vector_of_two_strides_in_place=(
            "emplace_back(torch::stable::contiguous(t))",
            "emplace_back(t)",
        ),
        column_stride_of_b_ignored=("b.stride(0), b.stride(1)}", "b.stride(0), b.size(0)}"),
        folded_rows_contiguous=("*row_stride, strides[last]}", "sizes[last], strides[last]}"),
    ),
    *_mutants(
        "csrc/problem.cpp",
        "test_refusals",
        scale_per_token_taken_for_one=(
            "const bool one = Leaf::scalar_ok && t.numel() == 1;",
            "const bool one = Leaf::scalar_ok && (t.numel() == 1 || t.size(0) == 1);",
        ),
        k_of_131072=("weight.k > kMaxK", "weight.k > kMaxK + 1"),
        bias_of_one_element=("Leaf::scalar_ok && t.numel() == 1", "t.numel() == 1"),
        bias_of_any_dtype=("t.scalar_type() != p.out_dtype &&", "false &&"),
        too_many_columns_of_a=("if (a.size(a.dim() - 1) != p.k)", "if (a.size(a.dim() - 1) < p.k)"),
        vector_of_any_dtype=("if (t.scalar_type() != dtype) refuse(", "if (false) refuse("),
        packed_buffer_of_any_size=("b.dim() != 1 || b.numel() != bytes ||", "b.dim() != 1 ||"),
    ),
    *_mutants(
        "csrc/problem.cpp",
        "test_quantize",
        static_scale_of_the_first_row=("return vector.stride;", "return 0;"),
    ),
    *_mutants(
        "csrc/cpu/isa.cpp",
        "test_environment",
        empty_isa_refused=("if (!forced || !*forced)", "if (!forced)"),
        unknown_isa_accepted=(
            "if (std::string(forced) == k->name) return *k;",
            "if (std::string(k->name) != forced) return *k;",
        ),
    ),
    *_mutants(
        "scaled_mm/ops.py",
        "test_torch test_refusals test_weight",
        fake_product_is_a_matrix=(
            "return [*a.shape[:-1], b_shape",
            "return [*a.shape[:1], b_shape",
        ),
        fake_product_dtype=("b, b_shape), dtype=out_dtype)", "b, b_shape), dtype=torch.bfloat16)"),
        fake_packed_size=("((k + 3) // 4 + 1) * 64", "((k + 3) // 4) * 64"),
        gradients_refused_always=("grad = torch.is_grad_enabled()", "grad = True"),
        gradients_never_refused=("if grad and operand.requires_grad:", "if False:"),
        packed_weight_transposed=("return (self.k, self.n)", "return (self.n, self.k)"),
        bias_not_passed=('options["bias"] = bias', "pass"),
    ),
    *_mutants(
        "scaled_mm/quantize.py",
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
        "scaled_mm/azp.py",
        "test_torch test_weight",
        packed_shape_not_passed=("_azp_adj(weight, **packed)", "_azp_adj(weight)"),
    ),
    *_mutants(
        "scaled_mm/nn.py",
        "test_nn",
        scales_follow_the_dtype=("moved.dtype != buffer.dtype", "moved.device != buffer.device"),
        static_azp_dropped=("azp_with_adj=self.azp_with_adj,\n            out", "out"),
        loaded_weight_not_packed=(
            "super()._load_from_state_dict(*args, **kwargs)\n        self.pack()",
            "super()._load_from_state_dict(*args, **kwargs)",
        ),
        layer_bias_dropped=("bias=self.bias,\n            azp", "azp"),
        output_dtype_fixed=("out_dtype=x.dtype", "out_dtype=torch.bfloat16"),
    ),
    *_mutants(
        "scaled_mm/_library.py",
        "test_environment",
        missing_library_not_said=("if not CPU_LIBRARY.exists():", "if False:"),
    ),
    *_mutants(
        "scaled_mm/reference.py",
        "test_reference",
        reference_azp_sign=("t = acc - azp_with_adj", "t = acc + azp_with_adj"),
        reference_rounds_away=(
            "np.rint(quotient(x32) / quotient(s))",
            "np.round(quotient(x32) / quotient(s) + 1e-7)",
        ),
        reference_bias_of_plus_zero=(
            "np.full((1, 1), -0.0, np.float32)",
            "np.full((1, 1), 0.0, np.float32)",
        ),
    ),
]
