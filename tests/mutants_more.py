"""More of `mutants.py`'s list: Python modules, int4 on the CPU, and CUDA. Plain data:

(file, files of tests/ that must notice, {name: (text that stands there once, its replacement)})
"""

from __future__ import annotations

Entry = tuple[str, str, dict[str, tuple[str, str]]]

ENGINES: list[Entry] = [
    (
        "scaled_mm/integrations/stored.py",
        "test_integrations_transformers",
        {
            "stored_gptq_of_another_version": (
                "to_gptq(weight, version=version)",
                "to_gptq(weight, version=3 - version)",
            ),
            "stored_rows_left_in_order": ("if module.order is not None:", "if False:"),
            "stored_values_narrowed_with_a_loss": (
                "narrow if torch.equal(narrow.to(x.dtype), x) else x",
                "narrow",
            ),
        },
    ),
    (
        "scaled_mm/integrations/transformers.py",
        "test_integrations_transformers",
        {
            "engines_config_of_another_kind_saved": (
                "return copy.deepcopy(self.fields)",
                'return {"quant_method": self.quant_method}',
            ),
            "engines_prefix_not_followed": (
                "return {place(name): layer for",
                "return {name: layer for",
            ),
            "engines_head_stays_tied": (
                'model.all_tied_weights_keys.pop(f"{place}.weight", None)',
                "pass",
            ),
            "engines_nothing_put_back": (
                "auto.AUTO_QUANTIZER_MAPPING[method] = quantizer",
                "auto.AUTO_QUANTIZER_MAPPING[method] = ScaledMMQuantizer",
            ),
        },
    ),
    (
        "scaled_mm/integrations/vllm_weights.py",
        "test_integrations_vllm",
        {
            "engines_scale_of_the_first_partition": (
                "weight_scale.reshape(-1).repeat_interleave(each)",
                "weight_scale.reshape(-1)[:1]",
            ),
            "engines_zero_point_cut_off": (
                "(-128 - low / joint.double()).round()",
                "(-128 - low / joint.double()).trunc()",
            ),
            "engines_words_of_gptq_v1": ("along_n, version=2)", "along_n, version=1)"),
            "engines_scales_not_turned": (
                "scales.data.t() if scales.output_dim == 0 else",
                "scales.data.t() if scales.output_dim == 2 else",
            ),
        },
    ),
]

INT4: list[Entry] = [
    (
        "csrc/cpu/lowbit_words.h",
        "test_awq",
        {
            "nibbles_of_two_columns_swapped": (
                "{0, 16, 4, 20, 8, 24, 12, 28}",
                "{0, 16, 4, 20, 8, 24, 28, 12}",
            ),
            "zero_point_ignored": ("& 15, Eight) - zero;", "& 15, Eight);"),
        },
    ),
    (
        "csrc/cpu/lowbit_rows.h",
        "test_awq",
        {
            "scale_of_the_first_group": (
                "w.scales.data + group * w.scales.row_stride + col, scales",
                "w.scales.data + 0 * group * w.scales.row_stride + col, scales",
            ),
            "int4_bias_of_the_first_block": (
                "widen_columns(p.bias, 0, col, bias, count)",
                "widen_columns(p.bias, 0, 0 * col, bias, count)",
            ),
            "int4_bias_dropped": ("sum[i] += bias[i];", "sum[i] += 0 * bias[i];"),
            "int4_sums_of_the_span_before": (
                "std::fill_n(scratch.sums.data(), span.blocks * span.rows * kLowbitCols, 0.0f);",
                "",
            ),
            "int4_group_not_advanced": (
                "group.load<Of>(w, k / w.group, col,",
                "group.load<Of>(w, 0, col,",
            ),
            "int4_column_stride_of_x_ignored": (
                "widen_strided<Of>(from, p.x.col_stride,",
                "widen_strided<Of>(from, 1,",
            ),
        },
    ),
    (
        "csrc/problems/lowbit.cpp",
        "test_awq",
        {
            "int4_scales_of_any_dtype": ("if (dtype != x.scalar_type())", "if (false)"),
            "int4_columns_of_x_unchecked": ("if (x.size(x.dim() - 1) != p.w.k)", "if (false)"),
            "int4_zeros_of_any_shape": ("if (qzeros.size(0) != groups ||", "if (false &&"),
        },
    ),
    (
        "scaled_mm/lowbit/words.py",
        "test_awq_packing",
        {
            "words_high_nibble_first": (
                "values[..., low] & 15 | values[..., high] << 4",
                "values[..., high] & 15 | values[..., low] << 4",
            ),
            "awq_order_of_gptq": (
                "INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)",
                "INTERLEAVED = SEQUENTIAL",
            ),
        },
    ),
    (
        "scaled_mm/lowbit/int4.py",
        "test_awq_packing",
        {
            "gptq_v1_zeros_as_stored": ("return 2 - version", "return 0"),
            "gptq_zeros_interleaved": (
                "zeros = unpack(qzeros, SEQUENTIAL) +",
                "zeros = unpack(qzeros) +",
            ),
            "group_of_rows_not_checked": ("if k and (groups == 0 or k % groups):", "if False:"),
            "order_of_equals_lost": (
                "torch.argsort(self.g_idx, stable=True)",
                "torch.argsort(-self.g_idx)",
            ),
        },
    ),
]

PYTHON: list[Entry] = [
    (
        "scaled_mm/checkpoint/files.py",
        "test_checkpoint_files",
        {
            "name_twice_accepted": ("if name in made:", "if False:"),
            "nan_is_json": (", parse_constant=constant)", ")"),
            "path_in_a_name_accepted": ("or _PATH_LIKE.search(name):", "or False:"),
            "unknown_field_accepted": (
                'if unknown := sorted(field.keys() - {"dtype", "shape", "data_offsets"}):',
                'if unknown := sorted(field.keys() & {"unknown"}):',
            ),
            "pickle_by_its_name_opened": (
                "if path.suffix in PICKLES else None",
                "if False else None",
            ),
            "whitespace_before_the_header": ('if not self.header.startswith(b"{"):', "if False:"),
        },
    ),
    (
        "scaled_mm/checkpoint/folder.py",
        "test_checkpoint_files test_checkpoint",
        {
            "tensor_in_two_shards": ("if name in where:", "if False:"),
            "index_names_another_shard": (
                "if weight_map is not None and weight_map.get(name) != file.path.name:",
                "if False:",
            ),
            "index_names_what_is_not_there": ("if name not in where:", "if False:"),
        },
    ),
    (
        "scaled_mm/checkpoint/config.py",
        "test_checkpoint test_checkpoint_files",
        {
            "ignored_layer_quantised": (
                "if any(_rank(name, classes, target) is not None for target in self.ignore):",
                "if False:",
            ),
            "class_before_name": (
                "return 0 if target == name else 2 if",
                "return 2 if target == name else 0 if",
            ),
            "weights_with_zero_points": ('if not weights["symmetric"]:', "if False:"),
            "per_token_scheme_per_tensor": (
                'per_token=inputs["strategy"] == "token"',
                "per_token=False",
            ),
        },
    ),
    (
        "scaled_mm/checkpoint/config_int4.py",
        "test_checkpoint_int4",
        {
            "gptq_v2_read_as_v1": ('{"gptq": 1, "gptq_v2": 2}', '{"gptq": 1, "gptq_v2": 1}'),
            "zero_point_means_symmetric": (
                "return bool(sym) if zero_point is None else not zero_point",
                "return bool(sym) if zero_point is None else zero_point",
            ),
            "three_bits_accepted": (
                "if type(bits) is not int or bits != 4:",
                "if type(bits) is not int:",
            ),
        },
    ),
    (
        "scaled_mm/checkpoint/layers.py",
        "test_checkpoint test_precompute",
        {
            "stored_term_believed": (
                "and not torch.equal(self.read(checkpoint, name).view(1, -1), term):",
                "and False:",
            ),
            "zero_point_out_of_range": (
                "-128 <= round(value) <= 127",
                "-999 <= round(value) <= 999",
            ),
            "zero_points_of_a_symmetric_scheme": (
                "and bool(self.read(checkpoint, part).ne(0).any()):",
                "and False:",
            ),
            "infinite_scale_loaded": (
                "if x is not None and not bool(((x >= 0) & x.isfinite()).all()):",
                "if False:",
            ),
            "scale_without_its_weight": (
                'elif part == "weight_scale" and _dtype(checkpoint, f"{name}.weight") != "I8":',
                "elif False:",
            ),
        },
    ),
    (
        "scaled_mm/checkpoint/layers_int4.py",
        "test_checkpoint_int4",
        {
            "asymmetric_zeros_of_a_symmetric_scheme": (
                "if self.scheme.symmetric and bool((qzeros != stored).any()):",
                "if False:",
            ),
            "infinite_int4_scale_loaded": ("if not bool(scales.isfinite().all()):", "if False:"),
            "gptq_shape_read_as_awq": (
                'if settings.method == "awq" else (8 * rows, columns)',
                'if settings.method == "awq" else (8 * rows, 8 * columns)',
            ),
            "spare_bias_dropped": ("if bool(bias.ne(0).any()):", "if False:"),
        },
    ),
    (
        "scaled_mm/quantization/smoothquant.py",
        "test_smoothquant",
        {
            "alpha_the_other_way_round": (
                "s = x**alpha / w ** (1 - alpha)",
                "s = x ** (1 - alpha) / w**alpha",
            ),
            "smoothed_by_an_empty_channel": (
                "s.where((x > 0) & (w > 0), 1.0)",
                "s.where(w > 0, 1.0)",
            ),
            "norm_divided_for_some_of_its_readers": (
                "and set(names) <= set(chosen)",
                "and set(names) & set(chosen)",
            ),
            "search_judged_by_its_own_inputs": (
                "others = [merge(p for p in parts if p is not held) for held in parts]",
                "others = [merge(parts) for held in parts]",
            ),
            "search_takes_the_worst": (
                "(min(noise, key=lambda a: noise[a])",
                "(max(noise, key=lambda a: noise[a])",
            ),
            "overfitting_not_said": ("if len(near_one) > len(planned) / 2:", "if False:"),
        },
    ),
    (
        "scaled_mm/validate/folds.py",
        "test_validate_checkpoint",
        {
            "small_factors_overlooked": ("NOTICED = 0.02", "NOTICED = 2.0"),
            "factor_on_one_side_believed": (
                "if found is None or _spread(columns / found) > min(ALIKE, _spread(columns) / 2):",
                "if found is None:",
            ),
        },
    ),
    (
        "scaled_mm/validate/compare.py",
        "test_validate",
        {
            "least_cosine_is_the_mean": (
                "cosine_min=float(cosine.min())",
                "cosine_min=float(cosine.mean())",
            ),
            "largest_error_signed": (
                "max_error=float(error.abs().max())",
                "max_error=float(error.max())",
            ),
        },
    ),
    (
        "scaled_mm/validate/layers.py",
        "test_validate test_validate_checkpoint",
        {
            "off_r1_never_counted": ("off_r1=sum(part.different for part in judged)", "off_r1=0"),
            "saturated_on_one_side": (
                "((on_grid < lowest) | (on_grid > 127))",
                "(on_grid > 127)",
            ),
            "first_batch_forgotten": (
                "return seen if known is None else torch.maximum(known, seen)",
                "return seen",
            ),
        },
    ),
]

# Tried where there is a GPU: `make gpu-mutate`. Here only their texts are looked for.
CUDA: list[Entry] = [
    (
        "csrc/cuda/common/lower.cuh",
        "test_cuda_rows",
        {
            "cuda_bias_not_fused": (
                "return __fmaf_rn(x, y, z);",
                "return __fadd_rn(__fmul_rn(x, y), z);",
            ),
            "cuda_operand_of_the_first_tile": (
                "(operands[static_cast<int>(L::id)], row + i, col + i)",
                "(operands[static_cast<int>(L::id)], row + i, i)",
            ),
            "cuda_stride_ignored": (
                "[m * operand.row_stride + n * operand.col_stride]",
                "[m + n]",
            ),
            "cuda_residual_dropped": ("return __fadd_rn(x, y);", "return x;"),
            "cuda_gate_not_clamped": (
                "__fmul_rn(gate > 0.0f ? gate : gate == gate ? 0.0f : gate, value)",
                "__fmul_rn(gate, value)",
            ),
            "cuda_gate_of_nan_is_zero": ("gate == gate ? 0.0f : gate, value)", "0.0f, value)"),
            "cuda_gate_and_value_swapped": (
                "return apply(Op{}, even, odd);",
                "return apply(Op{}, odd, even);",
            ),
        },
    ),
    (
        "csrc/cuda/common/quantizer.cuh",
        "test_cuda_quantize",
        {
            "cuda_scale_of_zeros_is_zero": ("    by.scale = fmaxf(by.scale, FLT_MIN);\n", ""),
            "cuda_infinity_in_a_range": (
                "poison = __fmaf_rn(x, 0.0f, poison);",
                "poison = x == x ? poison : x;",
            ),
            "cuda_one_step_of_division": (
                "    q = __fmaf_rn(__fmaf_rn(-q, divisor, x), reciprocal, q);\n",
                "",
            ),
        },
    ),
    (
        "csrc/cuda/common/convert.cuh",
        "test_cuda_widen test_cuda_awq",
        {
            "cuda_nibble_unscaled": ("0x2c002c00, base)  // 1/16", "0x3c003c00, base)  // 1"),
            "cuda_signed_bytes_off": (
                "kSigned ? 0x64806480 : 0x64006400",
                "kSigned ? 0x64006400 : 0x64006400",
            ),
        },
    ),
    (
        "csrc/cuda/common/relayout.cu",
        "test_cuda_weight test_cuda_scaled_mm",
        {
            "cuda_tile_transposed_wrong": (
                "word[3] = __byte_perm(high01, high23, 0x7632);",
                "word[3] = __byte_perm(high01, high23, 0x5410);",
            ),
            "cuda_rows_past_the_last": (
                "if (out_row >= rows || out_col >= to_stride) continue;",
                "if (out_row + 1 >= rows || out_col >= to_stride) continue;",
            ),
        },
    ),
    (
        "csrc/cuda/sm90/int8_stream.cuh",
        "test_cuda_rows",
        {
            "cuda_slice_of_k_dropped": (
                "static_cast<int>(int64_t{p.chunks} * (slice + 1) / split)",
                "static_cast<int>(p.chunks / split * (slice + 1))",
            ),
            "cuda_last_channels_unwritten": (
                "token * p.ldd + channel, inside, value",
                "token * p.ldd + channel, inside - (inside == 3), value",
            ),
            "cuda_pairs_where_they_come_from": (
                "token * p.ldd + channel / 2, inside / 2, pair",
                "token * p.ldd + channel, inside / 2, pair",
            ),
        },
    ),
    (
        "csrc/cuda/common/store.cuh",
        "test_cuda_rows",
        {
            "cuda_rest_of_a_row_overwritten": ("if (vectors && count >= kSize)", "if (vectors)"),
        },
    ),
    (
        "csrc/cuda/cutlass3/lower.h",
        "test_cuda_rows",
        {
            "cuda_persistent_residual_of_the_first_tile": (
                "static_cast<int>(tile_m) * size<0>(Tile{});",
                "0 * static_cast<int>(tile_m) * size<0>(Tile{});",
            ),
            "cuda_persistent_residual_past_its_end": ("r < rows && c < cols ?", "true ?"),
        },
    ),
    (
        "csrc/cuda/int8.cpp",
        "test_cuda_rows",
        {"cuda_operands_not_bound": ("epilogue::bind_operands(epilogue, p.operands);", "")},
    ),
]
