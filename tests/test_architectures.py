"""Architectures: quantised, run, saved both ways, loaded both ways, with the same bits."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, SHAPES, inputs, output, tiny
from helpers import assert_bits, extra
from torch import nn

from scaled_mm import QuantConfig, WeightScheme, load_quantized, quantize_model, save_quantized

transformers = extra("transformers")
SCHEMES: dict[str, Any] = {
    "W8A8": "dynamic",
    "W8A8 static": "static",
    "W8A16": WeightScheme(8),
    "W4A16": WeightScheme(4, 32),
}
FEW = ("LlamaForCausalLM", "BertForMaskedLM", "ViTForImageClassification", "GPTNeoXForCausalLM")


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    import scaled_mm.integrations.transformers as module

    module.register()
    yield
    module.unregister()


def check(name: str, scheme: Any) -> None:
    """Raises where anything of an architecture is not as it must be."""
    model = tiny(name)
    for each in model.parameters():  # biases and norms that are not 0 and 1
        if each.requires_grad:  # no table of sines
            each.data += torch.randn_like(each) / 50
    given = [inputs(model, mask) for mask in (False, True)]
    quantised = quantize_model(model, QuantConfig(scheme), given[:1])
    expected = [output(quantised, each) for each in given]
    assert not torch.equal(expected[0], output(model, given[0]))
    with tempfile.TemporaryDirectory() as made:
        folders = Path(made, "a"), Path(made, "b")
        copy.deepcopy(quantised).save_pretrained(folders[0])
        save_quantized(quantised, folders[1])
        for folder in folders:
            loaded = [type(model).from_pretrained(folder)]
            loaded.append(load_quantized(tiny(name), folder))
            for other in loaded:
                for wanted, each in zip(expected, given, strict=True):
                    assert_bits(output(other, each).detach(), wanted.detach())


@pytest.mark.parametrize("name", FEW)
def test_a_few(name: str) -> None:
    check(name, "dynamic")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture(name: str, scheme: str) -> None:
    check(name, SCHEMES[scheme])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_of_others(name: str, scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: nn.Module = SHAPES[name]().eval()
    x = torch.randn(2, 16, 32)
    quantised = quantize_model(model, QuantConfig(SCHEMES[scheme]), [x])
    save_quantized(quantised, tmp_path / "out")
    assert_bits(load_quantized(SHAPES[name]().eval(), tmp_path / "out")(x), quantised(x))
