"""Bugs for mutants.py. Python: integrations into engines."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/integrations/stored.py",
        "test_integrations_transformers",
        {
            "stored-gptq-of-another-version": (
                "to_gptq(weight, version=version)",
                "to_gptq(weight, version=3 - version)",
            ),
            "stored-bytes-left-in-order": ("packed.by_channel(q), zeros", "q, zeros"),
            "stored-bytes-signed": (
                "q, zeros = unsigned(q, 8),",
                "q, zeros = q.view(torch.uint8),",
            ),
            "stored-rows-left-in-order": (
                "return weight if module.order is None else weight.out_of_order(module.order)",
                "return weight",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/compressed_tensors.py",
        "test_integrations_transformers test_save_quantized",
        {
            "stored-values-narrowed-with-a-loss": (
                "narrow if torch.equal(narrow.to(x.dtype), x) else x",
                "narrow",
            ),
        },
    ),
    *of(
        "scaled_mm/integrations/transformers.py",
        "test_integrations_transformers",
        {
            "engines-config-of-another-kind-saved": (
                "return copy.deepcopy(self.fields)",
                'return {"quant_method": self.quant_method}',
            ),
            "engines-prefix-not-followed": (
                "return {place(name): layer for",
                "return {name: layer for",
            ),
            "engines-head-stays-tied": (
                'model.all_tied_weights_keys.pop(f"{place}.weight", None)',
                "pass",
            ),
            "engines-nothing-put-back": (
                "auto.AUTO_QUANTIZER_MAPPING[method] = quantizer",
                "auto.AUTO_QUANTIZER_MAPPING[method] = ScaledMMQuantizer",
            ),
        },
    ),
    *of(
        "scaled_mm/integrations/vllm_weights.py",
        "test_integrations_vllm",
        {
            "engines-scale-of-the-first-partition": (
                "weight_scale.reshape(-1).repeat_interleave(each)",
                "weight_scale.reshape(-1)[:1]",
            ),
            "engines-zero-point-cut-off": (
                "(-128 - low / joint.double()).round()",
                "(-128 - low / joint.double()).trunc()",
            ),
            "engines-words-of-gptq-v1": ("along_n, version=2)", "along_n, version=1)"),
            "engines-scales-not-turned": (
                "scales.data.t() if scales.output_dim == 0 else",
                "scales.data.t() if scales.output_dim == 2 else",
            ),
            "engines-zero-points-of-bytes-not-turned": (
                "None if along_n is None else along_n.t(),",
                "None,",
            ),
            "engines-type-of-the-other-width": (
                'f"uint{bits}b{1 << (bits - 1)}"',
                'f"uint{bits}b8"',
            ),
            "engines-values-of-a-word": ("values = per_word(bits)", "values = per_word(4)"),
            "engines-rows-of-nibbles": (
                "k=len(along_k) * per_word(8),",
                "k=len(along_k) * per_word(8) - 1,",
            ),
        },
    ),
]
