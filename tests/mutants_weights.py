"""Bugs for mutants.py. Python: layers whose weights alone are quantised."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/lowbit/grouped.py",
        "test_grouped",
        {
            "grouped-range-without-zero": (
                "w.amin(-1).minimum(zero), w.amax(-1)",
                "w.amin(-1), w.amax(-1)",
            ),
            "grouped-range-of-a-whole-level-less": ("(half - 0.5)", "half"),
            "grouped-scale-rounded-after-use": (
                "q = (w / scales.float().unsqueeze(-1))",
                "q = (w / (w.abs().amax(-1) / (half - 0.5)).unsqueeze(-1))",
            ),
            "grouped-zero-not-clamped": (".round().clamp(0, levels)\n", ".round()\n"),
            "grouped-overflow-unseen": ("if not bool((reach", "if False and not bool((reach"),
            "grouped-scale-of-zero": (".clamp_min(torch.finfo(dtype).tiny)", ""),
        },
    ),
    *of(
        "scaled_mm/lowbit/stored.py",
        "test_grouped test_checkpoint_packed",
        {
            "stored-signed-values": ("q = unsigned(weight.q, bits) if", "q = weight.q + 0 if"),
            "stored-zeros-not-turned": (
                "pack_dense(weight.zeros, bits).t().contiguous()",
                "pack_dense(weight.zeros, bits).contiguous()",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/weight_only_linear.py",
        "test_weight_only",
        {
            "weight-only-g_idx-forgotten": (
                "bits=bits, g_idx=g_idx))",
                "bits=bits))",
            ),
            "weight-only-rows-in-the-groups-order": (
                "q = packed.by_channel(q)",
                "pass",
            ),
            "weight-only-float32-bias-rounded": ("self.bias = self.bias.float()", "pass"),
            "weight-only-factors-multiplied": ("else 1 / smooth", "else smooth"),
            "weight-only-activation-forgotten": ("activation=self.activation,\n", ""),
            "weight-only-shape-unread": ("shape.tolist() != wanted", "False"),
            "weight-only-output-of-the-scales-dtype": ("return y.to(x.dtype)", "return y"),
        },
    ),
    *of(
        "scaled_mm/nn/packed_layer.py",
        "test_packed_layer test_weight_only",
        {
            "weight-only-factors-in-16-bits": (" or name in self._FACTORS:", ":"),
            "weight-only-not-packed-again": (
                "return self.pack() if packs else self",
                "return self",
            ),
            "packed-layer-loaded-plain": (
                "        if packs:\n            self.pack()",
                "        pass",
            ),
            "packed-layer-offset-of-another-dtype": (
                "self._bring(name, (self._dtype,), self._dtype)",
                "pass",
            ),
            "packed-layer-bias-of-another-dtype": (
                'self._bring("bias", (self._dtype, torch.float32), self._dtype)',
                "pass",
            ),
            "packed-layer-words-as-floats": (
                "if not halves or not buffer",
                "if halves and not buffer",
            ),
            "packed-layer-saved-without-its-weight": (
                "made = {} if self.packed is None else self._plain(self.packed)",
                "made = {}",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/schemes.py",
        "test_weight_only_models",
        {
            "scheme-group-unread": ("int(group or -1)", "-1"),
            "scheme-of-the-other-symmetry": ("not asymmetric)", "bool(asymmetric))"),
        },
    ),
    *of(
        "scaled_mm/quantization/layers.py",
        "test_weight_only_models",
        {
            "group-that-leaves-a-rest": (
                "return fits if group and k % group else None",
                "return None",
            )
        },
    ),
    *of(
        "scaled_mm/checkpoint/compressed_tensors.py",
        "test_weight_only_models",
        {
            "two-formats-in-a-file": ("if len(first) > 1:", "if False:"),
            "factors-without-a-place": (
                'if layer.pre_scale is not None:\n        return "pre_scale"',
                "pass",
            ),
            "group-size-left-out": (
                '"group_size": scheme.group_size if grouped else None',
                '"group_size": None',
            ),
        },
    ),
    *of(
        "scaled_mm/_tensorrt_llm.py",
        "test_compat_engines",
        {
            "engine-interleaved-for-another-gpu": (
                "layout_of(_sm_of(sm_), bits=bits, interleave",
                "layout_of(90, bits=bits, interleave",
            ),
            "engine-zeros-left-out": (
                "(weight, scales, zeros, layout=layout)",
                "(weight, scales, layout=layout)",
            ),
            "engine-bias-left-out": (
                "mixed_mm(input, weight, bias=bias)",
                "mixed_mm(input, weight)",
            ),
            "engine-group-unread": (" or weight.group != group_size:", ":"),
        },
    ),
    *of(
        "scaled_mm/parallel/weight_only.py",
        "test_parallel",
        {
            "ranks-scales-of-the-first": (
                "scales = scales[groups]",
                "scales = scales[: len(scales[groups])]",
            ),
            "ranks-factors-in-the-rows-order": ("pre_scale[order.long()][mine]", "pre_scale[mine]"),
            "ranks-add-a-bias-each": (
                "product = mixed_mm(x.to(dtype), packed, pre_scale=self.pre_scale)",
                "product = mixed_mm(x.to(dtype), packed, pre_scale=self.pre_scale, bias=self.bias)",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/layers.py",
        "test_weight_only_models",
        {
            "weight-only-judged-without-factors": (
                "pre_scale=layer.pre_scale,\n            bias",
                "bias",
            ),
        },
    ),
]
