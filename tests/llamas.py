"""Tiny Llamas with random weights, what compressed-tensors writes of them, and such files with
something changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of
from helpers import assert_bits, extra
from safetensors.torch import save_file
from torch import Tensor, nn

from scaled_mm import load_quantized
from scaled_mm.nn import ScaledBlockLinear, ScaledLinear, WeightOnlyLinear

transformers = extra("transformers")

IDS = torch.arange(48).view(2, 24) * 5 % 128
LAYER = "model.layers.0.mlp.up_proj"
Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]
"""Of a quantization_config and the tensors beside it."""


def llama(dtype: torch.dtype = torch.bfloat16, **sizes: Any) -> Any:
    """Weights are larger than usual, so that activations matter and have outliers."""
    usual: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "attention_bias": True,
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**usual | sizes))
    for name, x in model.requires_grad_(False).named_parameters():
        if name.endswith("bias"):
            x.normal_(std=0.1)
        x.data = x.data.to(dtype)  # but not the rotary frequencies, as transformers loads it
    return model.eval()


def relative(got: Tensor, exact: Tensor) -> float:
    got, exact = got.detach().double(), exact.detach().double()
    return float((got - exact).norm() / exact.norm())


def compressed(
    folder: Path,
    model: Any,
    weights: dict[str, Any],
    inputs: dict[str, Any] | None = None,
    ranges: dict[str, Tensor] | None = None,
    **options: Any,
) -> Path:
    """A checkpoint as compressed-tensors writes it; ranges: those of static inputs, by layer."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**weights)
    args_of_inputs = None if inputs is None else QuantizationArgs(**inputs)
    scheme = QuantizationScheme(
        targets=["Linear"], weights=args, input_activations=args_of_inputs, **options
    )
    groups = {"group_0": scheme}
    config = QuantizationConfig(config_groups=groups, ignore=["lm_head"], **options)
    apply_quantization_config(model, config)
    for name, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        n, k = module.weight.shape
        rows = module.weight.view(n, -1, args.group_size or k)
        if args.strategy == "tensor":
            rows = rows.flatten()
        scale, zero = calculate_qparams(rows.amin(-1), rows.amax(-1), args)
        module.weight_scale.data.copy_(scale.view_as(module.weight_scale))
        if not args.symmetric:
            module.weight_zero_point.data.copy_(zero)
        if ranges:
            scale, zero = calculate_qparams(*ranges[name], args_of_inputs)
            module.input_scale.copy_(scale)
            if not args_of_inputs.symmetric:
                module.input_zero_point.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder, max_shard_size="40KB")
    compressor.update_config(folder)
    return folder


def put(part: str, make: Callable[[Any], Any]) -> Change:
    """Another tensor in place of a part of LAYER; of none, one more; None: it goes."""

    def apply(config: dict[str, Any], state: dict[str, Tensor]) -> None:
        value = make(state.pop(f"{LAYER}.{part}", None))
        if value is not None:
            state[f"{LAYER}.{part}"] = value.contiguous()

    return apply


def set_weights(**change: Any) -> Change:
    return lambda config, state: config["config_groups"]["group_0"]["weights"].update(change)


def leave_float(config: dict[str, Any], state: dict[str, Tensor]) -> None:
    config["ignore"].append(LAYER)


def changed(source: Path, folder: Path, change: Change) -> Path:
    config, state = json.loads((source / "config.json").read_text()), state_of(source)
    change(config["quantization_config"], state)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def assert_refused(model: nn.Module, folder: Path, said: str) -> None:
    """With the folder's name in front; the model is as it was."""
    with pytest.raises(ValueError) as refusal:
        load_quantized(model, folder)
    text = str(refusal.value)
    assert said in text and text.startswith(str(folder)) and len(text) < 400
    kinds = (ScaledBlockLinear, ScaledLinear, WeightOnlyLinear)
    assert not any(isinstance(module, kinds) for module in model.modules())


def assert_same_tensors(one: Path, other: Path) -> None:
    """In the files of two folders."""
    before, after = state_of(one), state_of(other)
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert_bits(after[name], x, name)
