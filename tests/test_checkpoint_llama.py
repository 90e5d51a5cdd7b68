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
from llamas import IDS, compressed, llama, relative
from test_checkpoint import Reference
from torch import Tensor, nn

from scaled_mm import load_quantized
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.nn import ScaledLinear
from scaled_mm.precompute import precompute
from scaled_mm.validate import validate

extra("compressed_tensors")
transformers = extra("transformers")

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def written(folder: Path, name: str, dtype: torch.dtype, **weights: Any) -> tuple[Path, nn.Module]:
    """A checkpoint of a variant, and the float model that was quantised."""
    dynamic, symmetric = VARIANTS[name]
    original = llama(dtype)
    ranges: dict[str, Tensor] = {}

    def observe(layer: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            ranges[layer] = torch.stack(inputs[0].aminmax())[:, None]

        return hook

    for layer, module in original.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(observe(layer))
    original(IDS)
    inputs = {"num_bits": 8, "strategy": "token" if dynamic else "tensor"}
    inputs |= {"symmetric": symmetric, "dynamic": dynamic}
    of_weights = {"num_bits": 8, "strategy": "channel", **weights}
    compressed(folder, llama(dtype), of_weights, inputs, None if dynamic else ranges)
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
        model.set_submodule(layer, Reference(own, symmetric, token=dynamic))
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
