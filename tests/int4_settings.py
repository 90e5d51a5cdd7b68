"""AutoAWQ and GPTQ: what writers say in quantization_config, and what is refused."""

from typing import Any

import torch
from int4_cases import FORMS, GROUP, toy_state
from torch import Tensor

AWQ, GPTQ = FORMS["awq"].config(), FORMS["gptq-v1"].config()
GPTQMODEL_META = {
    "quantizer": ["gptqmodel:2.2.0"],
    "uri": "https://github.com/modelcloud/gptqmodel",
    "damp_percent": 0.01,
    "static_groups": False,
    "true_sequential": True,
    "mse": 0.0,
}
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {  # form, and what else writers say
    "autoawq": ("awq", {"modules_to_not_convert": ["head", "visual"]}),
    "autoawq-upper": ("awq", {"version": "GEMM"}),
    "transformers-4-awq": (
        "awq",
        {"backend": "autoawq", "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None},
    ),
    "gptqmodel-awq": (
        "awq",
        {"format": "gemm", "checkpoint_format": "gemm", "desc_act": True, "lm_head": False}
        | {"pack_dtype": "int32", "meta": GPTQMODEL_META, "sym": False},
    ),
    "autogptq": (
        "gptq-v1-act-order",
        {"damp_percent": 0.01, "static_groups": False, "true_sequential": True}
        | {"model_name_or_path": None, "model_file_base_name": "model", "is_marlin_format": False},
    ),
    "optimum": (
        "gptq-v1",
        {"dataset": "c4", "tokenizer": None, "use_cuda_fp16": False, "model_seqlen": 2048}
        | {"block_name_to_quantize": "model.layers", "batch_size": 1, "use_exllama": True}
        | {"module_name_preceding_first_block": ["model.embed_tokens"], "pad_token_id": None}
        | {"modules_in_block_to_quantize": [["self_attn.k_proj"]], "max_input_length": None},
    ),
    "gptqmodel": (
        "gptq-v2",
        {"format": "gptq_v2", "lm_head": False, "pack_dtype": "int32", "meta": GPTQMODEL_META}
        | {"dynamic": {"-:.*head": {}}},
    ),
}


AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "data_type": "int"}
AUTO_ROUND |= {"autoround_version": "0.16.1", "iters": 200, "lr": None, "low_gpu_mem_usage": True}
AUTO_ROUND |= {"block_name_to_quantize": "layers", "enable_quanted_input": True, "act_bits": 16}
AUTO_ROUND |= {"sym": False, "supported_types": ["Linear"], "static_kv_granularity": "tensor"}
PACKINGS = {  # AutoRound's -> the form that it is
    "auto_round:auto_gptq": "gptq-v1",
    "auto_round:gptqmodel": "gptq-v2",
    "auto_round": "gptq-v2",
    "auto_round:auto_awq": "awq",
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


_PACKED = AUTO_ROUND | {"packing_format": "auto_round:auto_gptq"}
INT4_SETTINGS: dict[str, Any] = {
    (
        "packing_format must be one of auto_round:auto_gptq, auto_round:gptqmodel, auto_round, "
        "auto_round:auto_awq, got auto_round:llm_compressor"
    ): AUTO_ROUND | {"packing_format": "auto_round:llm_compressor"},
    "data_type must be int, got mx_fp": _PACKED | {"data_type": "mx_fp"},
    "act_bits must be 16 or 32, got 8": _PACKED | {"act_bits": 8},
    "extra_config must only leave modules float, got qkv": _PACKED
    | {"extra_config": {"qkv": {"bits": 8}}},
    "bits must be 4 or 8 with gptq, got 2": [_PACKED | {"bits": 2}, GPTQ | {"bits": 2}],
    "rotation_configs is not understood": _PACKED | {"rotation_configs": [{"block": 32}]},
    "bits must be 4 with awq, got 8": AWQ | {"bits": 8},
    "down.qzeros must have shape [1, 10], got [2, 5]": GPTQ | {"bits": 8},
    "bits must be 4 with awq, got True": AWQ | {"bits": True},
    "bits must be 4 or 8 with gptq, got 4": GPTQ | {"bits": "4"},
    "bits must be 4 or 8 with gptq, got 8.0": GPTQ | {"bits": 8.0},
    "bits must be given": without(AWQ, "bits"),
    "bits and w_bit must be the same, got 4 and 3": AWQ | {"w_bit": 3},
    "group_size must be given": without(GPTQ, "group_size"),
    "group_size must be -1 or at least 1, got 0": GPTQ | {"group_size": 0},
    "group_size must be -1 or at least 1, got 128": AWQ | {"group_size": "128"},
    "rows K as groups of 1000": AWQ | {"group_size": 10**30},
    "version must be gemm with awq, got gemv": AWQ | {"version": "gemv"},
    "version must be gemm with awq, got ['gemm']": AWQ | {"version": ["gemm"]},
    "backend must be autoawq, got llm-awq": AWQ | {"backend": "llm-awq"},
    "zero_point must be true or false, got no": AWQ | {"zero_point": "no"},
    "checkpoint_format must be gptq or gptq_v2 with gptq, got marlin": GPTQ
    | {"checkpoint_format": "marlin"},
    "is_marlin_format is not understood": GPTQ | {"is_marlin_format": True},
    "format and checkpoint_format must be the same": GPTQ | {"format": "gptq_v2"},
    "pack_dtype must be int32, got int64": GPTQ | {"pack_dtype": "int64"},
    "desc_act must be true or false, got 1": GPTQ | {"desc_act": 1},
    "sym must be true or false, got null": GPTQ | {"sym": "null"},
    "dynamic must only skip modules (-:), got '+:.*down'": GPTQ
    | {"dynamic": {"-:a": {}, "+:.*down": {"bits": 8}}},
    "dynamic must be an object": GPTQ | {"dynamic": ["-:a"]},
    "must be a list of strings, got head": AWQ | {"modules_to_not_convert": "head"},
    "rotation is not understood, got hadamard": GPTQ | {"rotation": "hadamard"},
    "adapter is not understood": GPTQ | {"adapter": {"lora": 1}},
    "zero_point is not understood": GPTQ | {"zero_point": True},
    r"\x1b[2J is not understood, got \x1b[31m\n": AWQ | {"\x1b[2J": "\x1b[31m\n"},
    "q_norm is not understood, got xxx": AWQ | {"q_norm": "x" * 500},
}


def bad_tensors() -> dict[str, tuple[str, dict[str, Tensor | None]]]:
    """What is said; form, tensors that are other (None: missing)."""
    a, g, o = (toy_state(FORMS[name]) for name in ("awq", "gptq-v1", "gptq-v1-act-order"))
    s, e = (toy_state(FORMS[f"{name}-v1-symmetric"]) for name in ("gptq", "gptq8"))
    ones, ints = torch.ones, lambda *shape: torch.ones(*shape, dtype=torch.int32)

    def at(state: dict[str, Tensor], name: str, index: Any, value: float) -> dict[str, Tensor]:
        """The tensor with one other element."""
        changed = state[name].clone()
        changed[index] = value
        return {name: changed}

    def layer(name: str, k: int, groups: int, words: int) -> dict[str, Tensor | None]:
        made: dict[str, Any] = {f"{name}.qweight": ints(k, words)}
        return made | {
            f"{name}.qzeros": ints(groups, words),
            f"{name}.scales": ones(groups, 8 * words).half(),
        }

    by_form: dict[str, dict[str, Any]] = {
        "awq": {
            "qkv.scales is missing: the scheme is AutoAWQ": {"qkv.scales": None},
            "qkv.qzeros belongs to no layer with a qwei": {"qkv.qweight": None},
            "qkv.g_idx must not be there": {"qkv.g_idx": ints(48)},
            "qkv.perm is not understood": {"qkv.perm": ones(4)},
            "qweight belongs to no layer": {"qweight": ints(8, 8)},
            "must be I32, got I64": {"qkv.qweight": a["qkv.qweight"].long()},
            "must have shape [K, N/8], got [0, 12]": {"qkv.qweight": ints(0, 12)},
            "groups of 16 hold, got K=": {k: g[k] for k in g if "qweight" in k},
            "shape [3, 12], got [2, 12]": {"qkv.qzeros": ints(2, 12)},
            "shape [3, 96], got [3, 9]": {"qkv.scales": ones(3, 9).half()},
            "must be F16 or BF16, got F32": {"qkv.scales": ones(3, 96)},
            "qkv.scales must be finite": at(a, "qkv.scales", (2, 95), torch.nan),
            "qkv.bias must have shape [96], got [95]": {"qkv.bias": ones(95)},
            "qkv.bias must be F32 or BF16 or F16, got I32": {"qkv.bias": ints(96)},
            "qkv.bias must be there just when the model's": {"qkv.bias": None},
            "has no head.bias, which the model has": {"head.bias": None},
            "has act.scales, which the model has not": {"act.scales": ones(4)},
            "head.bias must have shape [5], as in the": {"head.bias": ones(4)},
            "down.qweight must have shape [40, 32], as in the model, got [40, 48]": layer(
                "down", 48, 3, 5
            ),
            "embed.qweight must be for an nn.Linear, the model has a Embedding": {
                "embed.weight": None,
                **layer("embed", 48, 3, 5),
            },
            "x.qweight must be for an nn.Linear, the model has no such module": layer(
                "x", 16, 1, 1
            ),
        },
        "awq-symmetric": {"qkv.qzeros must hold 8 everywhere": {"qkv.qzeros": a["qkv.qzeros"]}},
        "gptq-v1": {
            "qzeros is missing: the scheme is GPTQ v1": {"qkv.qzeros": None},
            "N a multiple of 8, got [6, 95]": {"qkv.qweight": ints(6, 95)},
            "a multiple of 8, got [32, 5]": {k: a[k] for k in a if "qweight" in k},
            "qkv.g_idx must have shape [48]": {"qkv.g_idx": ints(47)},
            "must be I32 or I64, got F32": {"qkv.g_idx": ones(48)},
            "qkv.g_idx must be k // 16, for desc_act is false": {"qkv.g_idx": o["qkv.g_idx"]},
            "down.bias must be 0, for the model's Linear has none": at(
                {"down.bias": torch.zeros(40)}, "down.bias", 39, 1e-7
            ),
        },
        "gptq-v1-symmetric": {
            "down.qzeros must hold 8 everywhere in a symmetric scheme": at(
                s, "down.qzeros", (0, 4), 0x77777787
            ),
        },
        "gptq-v1-act-order": {
            "down.g_idx is missing": {"down.g_idx": None},
            "qkv.g_idx must be in 0..2, got -1..2": at(o, "qkv.g_idx", 7, -1),
            "qkv.g_idx must give each of the 3 groups as many of the K=48 rows, got [48, 0, 0]": {
                "qkv.g_idx": 0 * ints(48)
            },
        },
        "gptq8-v1": {
            "down.qzeros must have shape [1, 10], got [2, 10]": {"down.qweight": g["down.qweight"]},
            "must have shape [K/4, N], N a multiple of 4, got [12, 95]": {
                "qkv.qweight": ints(12, 95)
            },
        },
        "gptq8-v1-symmetric": {
            "down.qzeros must hold 128 everywhere in a symmetric scheme (GPTQ v1, 8 bits": at(
                e, "down.qzeros", (1, 9), 0x7F7F7F80
            ),
        },
    }
    return {said: (form, x) for form, table in by_form.items() for said, x in table.items()}
