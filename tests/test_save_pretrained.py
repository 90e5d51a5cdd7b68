"""save_pretrained of a quantised transformers model writes what others read, or refuses."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import tiny
from helpers import assert_bits
from llamas import IDS, relative
from llamas import llama as llama_of
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from scaled_mm import QuantConfig, Scheme, Smoothing, load_quantized, quantize_model, save_quantized
from scaled_mm.nn import ScaledLinear
from scaled_mm.quantization.schemes import SCHEMES

CONFIGS = {
    **{name: QuantConfig(name) for name in SCHEMES},
    "smooth": QuantConfig("static-asymmetric", smoothing=Smoothing()),
    "mixed": QuantConfig(
        "dynamic", ignore=("*.v_proj", "lm_head"), overrides=(("*.[qk]_proj", Scheme(False)),)
    ),
    "with-head": QuantConfig(ignore=()),
}


def llama(tied: bool = False) -> LlamaForCausalLM:
    return llama_of(torch.float32, tie_word_embeddings=tied, initializer_range=0.02)


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    return model(IDS).logits


@pytest.mark.parametrize("name", CONFIGS)
def test_what_save_pretrained_writes_is_read(name: str, tmp_path: Path) -> None:
    """By load_quantized with the same bits, by transformers with its own arithmetic."""
    source = llama()
    exact = logits(source)
    made = quantize_model(source, CONFIGS[name], [IDS])
    assert not hasattr(source.config, "quantization_config")
    made.save_pretrained(tmp_path / "theirs")
    written = json.loads((tmp_path / "theirs" / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == "compressed-tensors"
    assert (written["format"], written["quantization_status"]) == ("int-quantized", "compressed")
    assert_bits(logits(load_quantized(llama(), tmp_path / "theirs")), logits(made), name)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "theirs")
    assert 0 < relative(logits(theirs), exact) < 0.05
    assert relative(logits(theirs), logits(made)) < 0.05
    save_quantized(made, tmp_path / "ours")
    again = json.loads((tmp_path / "ours" / "config.json").read_text())["quantization_config"]
    assert again == written


def test_a_tied_head_is_saved_once(tmp_path: Path) -> None:
    made = quantize_model(llama(tied=True))
    made.save_pretrained(tmp_path)
    assert_bits(logits(load_quantized(llama(tied=True), tmp_path)), logits(made))
    theirs = LlamaForCausalLM.from_pretrained(tmp_path)
    assert relative(logits(theirs), logits(made)) < 0.05


@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_save_the_same(change: Any, tmp_path: Path) -> None:
    made = change(quantize_model(llama()))
    made.save_pretrained(tmp_path)
    assert_bits(logits(load_quantized(llama(), tmp_path)), logits(made))


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def test_a_model_inside_another_saves_itself(tmp_path: Path) -> None:
    made = quantize_model(Wrapped(llama()), inplace=True)
    made.inner.save_pretrained(tmp_path)
    loaded = load_quantized(llama(), tmp_path)  # as Wrapped, without an example
    assert_bits(logits(loaded), logits(made.inner))


class Foreign(nn.Module):
    """Saves itself, and has no config of transformers: as diffusers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def save_pretrained(self, path: Path) -> None:
        raise AssertionError("written all the same")


SMOOTH = QuantConfig(smoothing=Smoothing(into_norms=False))
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "smooth": (llama, SMOOTH, r"model\.layers\.0\.self_attn\.q_proj has input_smooth"),
    "wrapped": (lambda: Wrapped(llama()).inner, SMOOTH, r"q_proj has input_smooth"),
    "conv1d": (
        lambda: tiny("GPT2LMHeadModel"),
        QuantConfig(),
        r"transformer\.h\.0\.attn\.c_attn was a Conv1D",
    ),
}


@pytest.mark.parametrize("change", [lambda model: model, copy.deepcopy])
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_format_has_no_place_for_is_refused(
    name: str, change: Any, tmp_path: Path
) -> None:
    make, config, message = REFUSED[name]
    made = change(quantize_model(make(), config, [IDS]))
    assert any(isinstance(module, ScaledLinear) for module in made.modules())
    assert all("save_pretrained" not in vars(module) for module in made.modules())
    with pytest.raises(ValueError, match=rf"^model must have a form .*{message}"):
        made.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_model_that_is_not_transformers_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"^model must have a form .*Foreign has no config"):
        made = quantize_model(Foreign())
    assert "save_pretrained" not in vars(made)
