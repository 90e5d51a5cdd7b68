"""Bugs for mutants.py. Python: layers, int4 packings, other names, the command."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/layouts.py",
        "test_layouts",
        {
            "layout-rows-of-the-other-half": ("w * (t // r) for t", "w * (t % r) for t"),
            "layout-fp8-lanes-two-wide": (
                "32 // bits, 32 // activation_bits\n    return",
                "32 // bits, 2\n    return",
            ),
            "layout-tiles-of-64-for-fp8": ("return 1024 // self.activation_bits", "return 64"),
            "layout-hopper-interleaves-columns": ("permuted and sm < 90", "permuted and sm < 100"),
            "layout-experts-as-dense": ("(experts and sm >= 90)", "(experts and sm >= 99)"),
            "layout-int8-pairs-swapped": ("8: (0, 2, 1, 3)", "8: (0, 1, 2, 3)"),
            "layout-no-bias": (
                "half).to(torch.uint8).view(torch.int8)",
                "0).to(torch.uint8).view(torch.int8)",
            ),
            "layout-high-nibble-first": (
                "values[..., 0::2] & 15 | values[..., 1::2] << 4",
                "values[..., 1::2] & 15 | values[..., 0::2] << 4",
            ),
            "layout-values-out-of-range": (
                "low < -half or high >= half",
                "low < -half or high > half",
            ),
            "layout-half-added-before-the-floor": (
                "whole + (ratio.abs() - whole >= 0.5)",
                "(ratio.abs() + 0.5).floor()",
            ),
            "layout-scale-rounded-before-use": (
                "/ half\n    ratio",
                "/ half\n    scale = scale.to(w.dtype).float()\n    ratio",
            ),
        },
    ),
    *of(
        "scaled_mm/compat.py",
        "test_compat",
        {
            "azp-adj-of-the-other-meaning": (
                'zero: dict[str, Any] = {"azp_with_adj": _row(azp_adj)}',
                (
                    'zero: dict[str, Any] = {"azp": torch.ones(1, dtype=torch.int32), '
                    '"azp_adj": -_row(azp_adj)}'
                ),
            ),
            "vllm-scales-on-the-wrong-side": (
                "_matrix(a), b, _column(scale_a), _row(scale_b)",
                "_matrix(a), b, _row(scale_a), _row(scale_b)",
            ),
            "vllm-leading-dimensions-lost": (
                (
                    "bias=_bias(bias), out_dtype=out_dtype\n    )\n    return "
                    "d.view(*a.shape[:-1], b.shape[1])"
                ),
                "bias=_bias(bias), out_dtype=out_dtype\n    )\n    return d",
            ),
            "vllm-azp-leading-dimensions-lost": (
                "**zero,\n    )\n    return d.view(*a.shape[:-1], b.shape[1])",
                "**zero,\n    )\n    return d",
            ),
            "vllm-scales-keep-their-dimensions": (
                "return q, _column(scale_out), None if azp_out is None else _column(azp_out)",
                "return q, scale_out, azp_out",
            ),
            "vllm-symmetric-ignored": (
                "scale=scale, azp=azp, symmetric=symmetric)",
                "scale=scale, azp=azp, symmetric=azp is None)",
            ),
            "vllm-scales-after-zeros": (
                "return ops.awq_dequantize(qweight, scales, zeros)",
                "return ops.awq_dequantize(qweight, zeros, scales)",
            ),
            "sgl-bias-dropped": (
                "cutlass_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)",
                "cutlass_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype)",
            ),
        },
    ),
    *of(
        "scaled_mm/lowbit/int4.py",
        "test_awq_packing",
        {
            "group-of-rows-not-checked": ("if k and (groups == 0 or k % groups):", "if False:"),
            "order-of-equals-lost": (
                "torch.argsort(self.g_idx, stable=True)",
                "torch.argsort(-self.g_idx)",
            ),
            "act-order-applied-twice": (
                "return Int4(self.q[order], self.scales, self.zeros), order",
                "return Int4(self.q[order][order], self.scales, self.zeros), order",
            ),
            "unequal-groups-accepted": (
                "or (k and bool((sizes * groups != k).any())):",
                "or False:",
            ),
            "group-of-a-row-rounded-up": (
                "// max(1, k // max(1, groups))",
                "// max(1, -(-k // max(1, groups)))",
                "k is a multiple of the number of groups there",
            ),
        },
    ),
    *of(
        "scaled_mm/lowbit/gptq.py",
        "test_awq_packing test_mixed_weights test_mixed_values test_checkpoint_int4",
        {
            "gptq-v1-zeros-as-stored": ("return 2 - version", "return 0"),
            "zeros-of-version-one-wrap": ("return q, zeros & (1 << bits) - 1", "return q, zeros"),
            "gptq-zeros-along-the-groups": (
                "zeros = unpack_dense(qzeros, bits",
                "zeros = unpack_dense(qzeros.flip(0), bits",
            ),
            "gptq-rows-padded": ("if len(q) % per_word(bits):", "if False:"),
        },
    ),
    *of(
        "scaled_mm/lowbit/gptq.py",
        "test_arguments",
        {
            "gptq-version-of-any-type": ("type(version) is not int or ", ""),
            "gptq-words-before-their-zeros": (
                "below = stored_below(version)",
                "below = stored_below(version); unpack_dense(qweight.t(), bits, 8 * len(qweight))",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/arguments.py",
        "test_arguments",
        {
            "features-of-any-type": (
                "isinstance(value, bool) or not isinstance(value,",
                "not (value,",
            ),
            "features-of-any-number": ("if not 0 <= value <= LARGEST:", "if value < 0:"),
        },
    ),
    *of(
        "scaled_mm/lowbit/words.py",
        "test_arguments",
        {
            "words-of-any-dtype": (
                "if not dense or words.dtype != torch.int32 or words.dim() != 2:",
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/lowbit/words.py",
        "test_awq_packing test_mixed_weights test_mixed_values",
        {
            "words-high-nibble-first": (
                "values[..., low] & 15 | values[..., high] << 4",
                "values[..., high] & 15 | values[..., low] << 4",
            ),
            "awq-order-of-gptq": (
                "INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)",
                "INTERLEAVED = SEQUENTIAL",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/awq_linear.py",
        "test_guards_python::test_dtypes_of_an_int4_layer test_awq_packing",
        {
            "int4-bias-of-another-dtype": (
                '"bias": ((n,), dtype)',
                '"bias": ((n,), torch.float32)',
            ),
            "int4-scales-of-another-dtype": (
                '"scales": ((groups, n), dtype)',
                '"scales": ((groups, n), torch.float16)',
            ),
            "act-order-ignored": (
                "if self.order is not None:\n            x",
                "if False:\n            x",
            ),
            "int4-output-of-the-scales-dtype": ("return y.to(x.dtype)", "return y"),
            "int4-order-not-loaded": ("if order is not None and self.order is None:", "if False:"),
            "int4-bias-left-out": (
                "self.scales, self.qzeros, bias=self.bias)",
                "self.scales, self.qzeros)",
            ),
            "group-that-does-not-divide": (
                "if group < 1 or in_features % group != 0:",
                "if group < 1:",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/one_weight.py",
        "test_one_weight test_one_weight_forms",
        {
            "shared-weight-packed": ("not cut and _holders(self) != _ALONE", "False"),
            "shared-memory-not-counted": (
                "torch._C._storage_Use_Count(memory._cdata)",
                "0 * torch._C._storage_Use_Count(memory._cdata)",
            ),
            "python-holders-not-counted": (
                "sys.getrefcount(weight)",
                "0 * sys.getrefcount(weight)",
            ),
            "storage-holders-not-counted": (
                "sys.getrefcount(memory)",
                "0 * sys.getrefcount(memory)",
            ),
            "reading-leaves-the-packed": (
                'dict.__setitem__(self, "weight", _plain(self.packed))\n',
                "pass\n",
            ),
            "written-weight-leaves-the-packed": (
                'if key == "weight":\n                self.packed = self._early = None\n\n    def',
                "if False:\n                self.packed = self._early = None\n\n    def",
            ),
            "plain-kept-beside": ('dict.__setitem__(self, "weight", None)', "pass"),
            "file-without-the-weight": ('entries["weight"] = _plain', "_plain"),
            "tracing-unpacks": ("if TracingContext.try_get() is None:", "if True:"),
            "every-trace-settles": ("elif not self._traced and", "elif"),
        },
    ),
    *of(
        "scaled_mm/nn/scaled_linear.py",
        "test_nn test_one_weight",
        {
            "scales-follow-the-dtype": ("if moved.dtype != dtype:", "if moved is None:"),
            "static-azp-dropped": (
                '("bias", "azp_adj", "azp_with_adj")',
                '("bias", "azp_adj")',
            ),
            "loaded-weight-not-packed": (
                "cast(Tensor, self._buffers[name]).to(dtype)\n        self._buffers.settle()",
                "cast(Tensor, self._buffers[name]).to(dtype)",
            ),
            "layer-bias-dropped": (
                '("bias", "azp_adj", "azp_with_adj")',
                '("azp_adj", "azp_with_adj")',
            ),
            "output-dtype-fixed": (
                "azp if self.dynamic else None, x.dtype)",
                "azp if self.dynamic else None, torch.bfloat16)",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/scaled_linear.py",
        "test_plain",
        {
            "one-op-with-zero-points": ("            or not self.symmetric\n", ""),
            "one-op-for-one-scale": ("not self.per_token\n            or", ""),
            "one-op-not-smoothed": ('if read(buffers, "input_smooth") is not None:', "if False:"),
        },
    ),
    *of(
        "scaled_mm/ops/eager.py",
        "test_plain",
        {"one-op-of-a-gradient": ("if not are_tensors(x, x, x, x):", "if False:")},
    ),
    *of(
        "csrc/problems/eager.h",
        "test_plain",
        {
            "half-a-shape-is-none": ("k == -1 && n == -1", "k == -1 || n == -1"),
            "any-negative-shape-is-none": ("k == -1 && n == -1", "k < 0 && n < 0"),
            "short-way-read-early": ("shape_of(k, n), b_settled", "shape_of(k, n), true"),
        },
    ),
    *of(
        "csrc/problems/linear.h",
        "test_plain",
        {
            "one-op-in-bfloat16": ("x.scalar_type(), {}, {}, shape_of", "{}, {}, {}, shape_of"),
            "one-op-without-bias": ("bias, {}, {}, {}, {}, {},", "{}, {}, {}, {}, {}, {},"),
            "one-op-of-one-scale-for-all-tokens": (
                "check_quantize(x, true, true)",
                "check_quantize(x, true, false)",
            ),
        },
    ),
    *of(
        "csrc/problems/linear.cpp",
        "test_plain",
        {
            "one-op-side-by-side-scales": ("stride = scales.stride(0)", "stride = 1"),
            "one-op-scales-of-any-shape": (
                "scales.dim() != 2 || scales.size(1) != 1",
                "scales.dim() < 1",
            ),
            "one-op-scales-begin-twice-as-far": (
                "&stride, 0, &vector",
                "&stride, scales.storage_offset(), &vector",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/scaled_linear.py",
        "test_guards_python test_nn",
        {
            "smooth-not-inverted": ("copy_(1 / smooth)", "copy_(smooth)"),
            "smooth-not-in-the-weight": (
                "weight = weight.float() * smooth",
                "weight = weight.float()",
            ),
            "input-not-smoothed": (
                'x if (smooth := self._small("input_smooth")) is None else x.float() * smooth',
                "x",
            ),
            "infinite-smooth-accepted": (
                "bool(((smooth > 0) & smooth.isfinite()).all())",
                "bool((smooth > 0).all())",
            ),
            "dynamic-azp-dropped": (
                "scale, azp if self.dynamic else None",
                "scale, None",
            ),
            "weight-scale-of-one-channel": (
                "copy_(scale.view(-1, 1))",
                "copy_(scale.view(-1, 1)[:1])",
            ),
        },
    ),
    *of(
        "tools/cuda_build.py",
        "test_build::test_gencode",
        {
            "sm-90-without-its-a": ('"a" if number == 90', '"" if number == 90'),
        },
    ),
    *of(
        "scaled_mm_cli/main.py",
        "test_guards_python::test_what_the_system_refuses_is_no_traceback test_cli",
        {
            "system-error-is-a-traceback": (
                "isinstance(error, (ValueError, OSError, ImportError))",
                "isinstance(error, (ValueError, ImportError))",
            ),
        },
    ),
]
