"""`quantization_config` of AutoAWQ and GPTQ: weights of 4 bits (GPTQ: or 8) in groups, activations
in float.

    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm",
     "modules_to_not_convert": null}
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true,
     "checkpoint_format": "gptq", ...}

    {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": true, "data_type": "int",
     "packing_format": "auto_round:auto_gptq", ...}

as AutoAWQ, AutoGPTQ, GPTQModel, AutoRound and transformers write them, each with many more keys
that say how the weights were found or are to be run; those are listed here and passed over. Which
layers are quantised, the tensors say: what the config says of it differs between writers, and
AutoAWQ's modules_to_not_convert is null even where lm_head and a vision tower stayed float.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from .fields import Fields, shown

Method = Literal["awq", "gptq"]

# How the weights were found, and by whose programs they are to be run: of no consequence.
_TOLD = {
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs",
    "damp_auto_increment", "damp_percent", "dataset", "disable_exllama", "do_fuse",
    "exllama_config", "fuse_max_seq_len", "hyb_act", "lm_head", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "modules_in_block_to_quantize",
    "module_name_preceding_first_block", "modules_to_fuse", "mse", "offload_to_disk",
    "offload_to_disk_path", "pack_impl", "pad_token_id", "parallel_packing", "static_groups",
    "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama", "v2", "v2_alpha",
    "v2_memory_device",
}  # fmt: skip
# AutoRound's packings are AWQ's and GPTQ's, by another name.
_AUTO_ROUND: dict[str, dict[str, str]] = {
    "auto_round:auto_gptq": {"quant_method": "gptq", "checkpoint_format": "gptq"},
    "auto_round:gptqmodel": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round:auto_awq": {"quant_method": "awq", "version": "gemm"},
}
_TOLD_BY_AUTO_ROUND = _TOLD | {
    "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version",
    "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input",
    "gradient_accumulate_steps", "iters", "low_gpu_mem_usage", "lr", "minmax_lr", "nsamples",
    "quant_block_list", "scale_dtype", "seqlen", "static_attention_granularity",
    "static_kv_granularity", "supported_types", "to_quant_block_names",
}  # fmt: skip
_READ = {
    "quant_method", "bits", "w_bit", "group_size", "q_group_size", "sym", "desc_act", "format",
    "checkpoint_format", "pack_dtype", "dynamic", "modules_to_not_convert",
}  # fmt: skip
_READ_OF: dict[Method, set[str]] = {"awq": {*_READ, "zero_point", "version"}, "gptq": _READ}
_BITS: dict[Method, tuple[int, ...]] = {"awq": (4,), "gptq": (4, 8)}
_FORMATS: dict[Method, dict[str, int]] = {"awq": {"gemm": 0}, "gptq": {"gptq": 1, "gptq_v2": 2}}


@dataclass(frozen=True)
class AwqGptq:
    """The settings of an AutoAWQ or GPTQ checkpoint, the same for all of its quantised layers."""

    method: Method
    bits: int
    """Of a weight: 4, or 8 with GPTQ."""
    version: int
    """Of GPTQ: 1 stores zero points less 1, 2 stores them as they are. Of AutoAWQ: 0."""
    group_size: int
    """Rows that share a scale; -1: all of them."""
    symmetric: bool
    """Every zero point is the middle of the range, 2^(bits-1); else they are what they are."""
    act_order: bool | None
    """Of GPTQ: whether the groups' rows lie scattered; None: unknown."""
    skip: tuple[str, ...]
    """Names, or parts of names between dots, of modules that stay float."""

    def leaves_float(self, name: str) -> bool:
        """Whether the config says so of a module."""
        return named_in(name, self.skip)

    def __str__(self) -> str:
        name = "AutoAWQ" if self.method == "awq" else f"GPTQ v{self.version}"
        name += ", 8 bits" * (self.bits == 8)
        return f"{name}, groups of {'all rows' if self.group_size == -1 else self.group_size}"


def named_in(name: str, skip: Collection[str]) -> bool:
    """Whether a name, or a part of it between dots, is among those."""
    parts = name.split(".")
    runs = combinations(range(len(parts) + 1), 2)
    return any(".".join(parts[first:end]) in skip for first, end in runs)


class AwqGptqFields(Fields):
    """Reads both forms."""

    def quantization(self, method: Method, fields: dict[str, Any]) -> AwqGptq:
        bits = self._either(fields, "bits", "w_bit")
        if type(bits) is not int or bits not in _BITS[method]:
            rule = " or ".join(map(str, _BITS[method]))
            self.refuse(f"bits must be {rule} with {method}, got {shown(bits)}")
        group = self._either(fields, "group_size", "q_group_size")
        if type(group) is not int or (group < 1 and group != -1):
            self.refuse(f"group_size must be -1 or at least 1, got {shown(group)}")
        if fields.get("pack_dtype") not in (None, "int32"):
            self.refuse(f"pack_dtype must be int32, got {shown(fields['pack_dtype'])}")
        if method == "awq" and fields.get("backend") not in (None, "autoawq", "auto"):
            self.refuse(f"backend must be autoawq, got {shown(fields['backend'])}")
        self.understood("", fields, _TOLD | _READ_OF[method])
        # GPTQModel's settings by pattern: those that leave modules float ("-:") say what the
        # tensors say too; others change bits or groups.
        for pattern in self.object("dynamic", fields.get("dynamic") or {}):
            if not pattern.startswith("-:"):
                self.refuse(f"dynamic must only skip modules (-:), got {pattern[:80]!r}")
        return AwqGptq(
            method,
            bits,
            self._version(method, fields),
            group,
            self._symmetric(method, fields),
            self.flag("desc_act", fields.get("desc_act")) if method == "gptq" else None,
            self.strings("modules_to_not_convert", fields.get("modules_to_not_convert") or []),
        )

    def auto_round(self, fields: dict[str, Any]) -> AwqGptq:
        packing = fields.get("packing_format")
        if not isinstance(packing, str) or packing not in _AUTO_ROUND:
            choices = ", ".join(_AUTO_ROUND)
            self.refuse(f"packing_format must be one of {choices}, got {shown(packing)}")
        if fields.get("data_type") != "int":
            self.refuse(f"data_type must be int, got {shown(fields.get('data_type'))}")
        if fields.get("act_bits") not in (None, 16, 32):
            self.refuse(f"act_bits must be 16 or 32, got {shown(fields['act_bits'])}")
        for name, own in self.object("extra_config", fields.get("extra_config") or {}).items():
            if not isinstance(own, dict) or own.get("bits") not in (16, 32):
                self.refuse(f"extra_config must only leave modules float, got {shown(name)}")
        read = {"bits", "group_size", "sym"}
        known = {"quant_method", "packing_format", "data_type", "act_bits", "extra_config"}
        self.understood("", fields, _TOLD_BY_AUTO_ROUND | known | read)
        plain = {key: fields[key] for key in read if key in fields} | _AUTO_ROUND[packing]
        return self.quantization("awq" if "version" in plain else "gptq", plain)

    def _either(self, fields: dict[str, Any], key: str, older: str) -> Any:
        """The value under one of two names, as which it may stand twice."""
        found = [fields[name] for name in (key, older) if fields.get(name) is not None]
        if not found:
            self.refuse(f"{key} must be given")
        if found[0] != found[-1]:
            got = f"{shown(found[0])} and {shown(found[-1])}"
            self.refuse(f"{key} and {older} must be the same, got {got}")
        return found[0]

    def _version(self, method: Method, fields: dict[str, Any]) -> int:
        known = _FORMATS[method]
        versions = set()
        for key in ("version", "checkpoint_format", "format"):
            value = fields.get(key)
            if value is None:
                continue
            if not isinstance(value, str) or value.lower() not in known:
                choices = " or ".join(known)
                self.refuse(f"{key} must be {choices} with {method}, got {shown(value)}")
            versions.add(known[value.lower()])
        if len(versions) > 1:
            self.refuse("format and checkpoint_format must be the same, got one of each")
        return versions.pop() if versions else min(known.values())  # gptq before there were two

    def _symmetric(self, method: Method, fields: dict[str, Any]) -> bool:
        sym = self.flag("sym", fields.get("sym"))
        if method == "gptq":
            return bool(sym)
        zero_point = self.flag("zero_point", fields.get("zero_point"))
        # transformers writes "sym": true beside "zero_point": true, as a default that nobody reads.
        return bool(sym) if zero_point is None else not zero_point
