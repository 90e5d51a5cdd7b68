"""Real files: tiny Llamas that `compressed-tensors` and `transformers` wrote, read back and run.

The logits are those of the reference composed in plain torch, bit for bit, and near those of
transformers' own forward, which decompresses the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import VARIANTS, state_of
from helpers import assert_bits, extra
from test_checkpoint import Reference
from torch import Tensor, nn

from scaled_mm import load_quantized
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.nn import ScaledLinear
from scaled_mm.precompute import precompute
from scaled_mm.validate import validate

extra("compressed_tensors")
transformers = extra("transformers")

IDS = torch.arange(48).view(2, 24) * 5 % 128
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def llama(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Random weights; larger than usual, so that activations matter and have outliers."""
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        attention_bias=True,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)
    for name, x in model.named_parameters():
        if name.endswith("bias"):
            x.normal_(std=0.1)
    return model


def written(folder: Path, name: str, dtype: torch.dtype, **weights: Any) -> tuple[Path, nn.Module]:
    """A checkpoint of a variant, and the float model that was quantised."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    dynamic, symmetric = VARIANTS[name]
    original, model = llama(dtype), llama(dtype)
    ranges: dict[str, list[Tensor]] = {}

    def observe(layer: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            ranges[layer] = [inputs[0].min().view(1), inputs[0].max().view(1)]

        return hook

    for layer, module in original.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(observe(layer))
    original(IDS)
    strategy = "token" if dynamic else "tensor"
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**{"num_bits": 8, "strategy": "channel", **weights}),
        input_activations=QuantizationArgs(
            num_bits=8, strategy=strategy, symmetric=symmetric, dynamic=dynamic
        ),
    )
    groups = {"group_0": scheme}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for layer, module in model.named_modules():
        own = getattr(module, "quantization_scheme", None)
        if own is None:
            continue
        dims = 1 if own.weights.strategy == "channel" else None
        low, high = (f(module.weight) if dims is None else f(module.weight, 1, keepdim=True)
                     for f in (torch.amin, torch.amax))  # fmt: skip
        scale, _ = calculate_qparams(low, high, own.weights)
        module.weight_scale.copy_(scale.view_as(module.weight_scale))
        if not dynamic:
            scale, zero = calculate_qparams(*ranges[layer], own.input_activations)
            module.input_scale.copy_(scale)
            if not symmetric:
                module.input_zero_point.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder, max_shard_size="40KB")
    compressor.update_config(folder)
    return folder, original


def by_reference(folder: Path, name: str, dtype: torch.dtype) -> nn.Module:
    """The Llama with every quantised Linear in the words of the reference."""
    dynamic, symmetric = VARIANTS[name]
    state = state_of(folder)
    model = llama(dtype)
    for layer in [key.removesuffix(".weight_scale") for key in state if key.endswith("t_scale")]:
        own = {
            key.rpartition(".")[2]: x for key, x in state.items() if key.rpartition(".")[0] == layer
        }
        model.set_submodule(layer, Reference(own, dynamic, symmetric, token=dynamic))
    rest = {k: x for k, x in state.items() if k in model.state_dict()}
    assert rest.keys() == model.state_dict().keys()
    model.load_state_dict(rest)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_logits_are_the_references(name: str, dtype: str, tmp_path: Path) -> None:
    folder, original = written(tmp_path / "ct", name, DTYPES[dtype])
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = load_quantized(llama(DTYPES[dtype]), folder)
    assert sum(isinstance(module, ScaledLinear) for module in model.modules()) == 14
    logits = model(IDS).logits
    assert_bits(logits, by_reference(folder, name, DTYPES[dtype])(IDS).logits, name)

    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])(IDS).logits
    exact = original(IDS).logits
    assert 0 < relative(theirs, exact) < 0.1
    # As far from the decompressed forward as that is from the float model, at most.
    assert relative(logits, theirs) < 1.5 * relative(theirs, exact) + 0.01
    assert relative(logits, exact) < 0.1


def relative(got: Tensor, exact: Tensor) -> float:
    got, exact = got.detach().double(), exact.detach().double()
    return float((got - exact).norm() / exact.norm())


def test_weights_per_tensor(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "dynamic-asymmetric", torch.bfloat16, strategy="tensor")
    logits = load_quantized(llama(), folder)(IDS).logits
    assert_bits(logits, by_reference(folder, "dynamic-asymmetric", torch.bfloat16)(IDS).logits)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_precomputed_checkpoint_is_the_same_model(name: str, tmp_path: Path) -> None:
    """For this library, and for transformers, which passes over what it does not know."""
    folder, _ = written(tmp_path / "ct", name, torch.bfloat16)
    report = precompute(folder, tmp_path / "out")
    assert len(report.terms) == (0 if VARIANTS[name][1] else 14)
    for load in (
        lambda path: load_quantized(llama(), path),
        lambda path: transformers.LlamaForCausalLM.from_pretrained(path),
    ):
        assert_bits(load(tmp_path / "out")(IDS).logits, load(folder)(IDS).logits, name)


@pytest.mark.parametrize("name", VARIANTS)
def test_validate_takes_the_checkpoint(name: str, tmp_path: Path) -> None:
    folder, original = written(tmp_path, name, torch.float32)
    report = validate(original, folder, [IDS], stride=5)
    assert report.ok, report
    assert len(report.layers) == 14 and min(layer.sqnr_db for layer in report.layers) > 20


@pytest.mark.parametrize(
    ("weights", "said"),
    [({"num_bits": 6}, "num_bits must be 8, got 6"), ({"symmetric": False}, "must be true, got f")],
)
def test_real_checkpoints_that_are_not_served(
    weights: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder, _ = written(tmp_path, "dynamic-symmetric", torch.bfloat16, **weights)
    with pytest.raises(ValueError, match=said):
        Checkpoint(folder)
