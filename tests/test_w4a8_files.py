"""W4A8 files: int-quantized ones of 4 bits in bytes, and weight-only ones with int8 activations on
request."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of, write
from helpers import assert_bits, extra, rows
from int4_cases import FORMS, Form, state_of_int4
from llamas import (
    assert_refused,
    assert_same_tensors,
    changed,
    compressed,
    leave_float,
    put,
    set_weights,
)
from llamas import llama as llama_of
from test_save_quantized import assert_same_state
from test_weight_only_models import layers_of
from torch import Tensor, nn

from scaled_mm import QuantConfig, load_quantized, quantize_model, save_quantized
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.loading import quantised_layers
from scaled_mm.parallel.loading import _may_be_cut
from scaled_mm.quantization.compressed_tensors import PackedScheme
from scaled_mm.validate import Thresholds, validate

ct = extra("compressed_tensors")
transformers = extra("transformers")

IDS = torch.arange(24).view(2, 12)
INT = "int-quantized"


def llama(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Of sizes that groups of 32 divide."""
    return llama_of(dtype, vocab_size=64, hidden_size=64, intermediate_size=96)


# ---- Written here --------------------------------------------------------------------------------

SCHEMES = {
    "W4A8-g32": PackedScheme(4, 32, True, int8_input="symmetric", in_bytes=True),
    "W4A8-channel-asymmetric": PackedScheme(4, -1, False, int8_input="symmetric", in_bytes=True),
    "int8_dynamic_activation_int4_weight": PackedScheme(
        *(4, 32, True), int8_input="asymmetric", in_bytes=True
    ),
    "W4A16-g32-asymmetric": PackedScheme(4, 32, False, in_bytes=True),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_model_is_read_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    config = QuantConfig(name)
    model = quantize_model(llama(), config)
    save_quantized(model, tmp_path / "out", format=INT)
    llama().save_pretrained(tmp_path / "float")
    quantize_checkpoint(tmp_path / "float", tmp_path / "again", config, format=INT)
    assert_same_tensors(tmp_path / "out", tmp_path / "again")
    q = state_of(tmp_path / "out")["model.layers.0.mlp.down_proj.weight"]
    assert q.dtype == torch.int8 and q.shape == (64, 96) and -8 <= q.min() < q.max() <= 7
    for folder in ("out", "again"):
        loaded = load_quantized(llama(), tmp_path / folder)
        assert_same_state(loaded, model)
        assert_bits(loaded(IDS).logits, model(IDS).logits)
        settings = Checkpoint(tmp_path / folder).quantization
        found = settings.scheme_of("model.layers.0.mlp.down_proj")  # type: ignore[union-attr]
        assert found == SCHEMES[name]
        assert str(settings).startswith("int4 in bytes")


@pytest.mark.parametrize(
    ("scheme", "wanted", "said"),
    [
        ("W8A16", INT, "format must be pack-quantized for .*, which is packed int8"),
        ("W8A8", "pack-quantized", "format must be int-quantized for .*, which is dynamic"),
        ("W4A8-g32", "marlin", "format must be None, int-quantized or pack-quantized or .* marlin"),
    ],
)
def test_a_format_without_a_place_for_it(
    scheme: str, wanted: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        save_quantized(quantize_model(llama(), QuantConfig(scheme)), tmp_path / "a", format=wanted)
    llama().save_pretrained(tmp_path / "float")
    with pytest.raises(ValueError, match=f"^{said}"):
        folders = tmp_path / "float", tmp_path / "b"
        quantize_checkpoint(*folders, QuantConfig(scheme), format=wanted)
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


# ---- Written by compressed-tensors ---------------------------------------------------------------

INPUTS = {"num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": False}
WEIGHTS: dict[str, dict[str, Any]] = {
    "groups": {"strategy": "group", "group_size": 32},
    "asymmetric": {"strategy": "group", "group_size": 32, "symmetric": False},
    "channel": {"strategy": "channel"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint as the package writes it, by a name of WEIGHTS; not to be written to."""
    root, there = tmp_path_factory.mktemp("bytes"), {}

    def folder(name: str) -> Path:
        if name not in there:
            weights = {"num_bits": 4, **WEIGHTS[name]}
            there[name] = compressed(root / name, llama(), weights, INPUTS, format=INT)
        return there[name]

    return folder


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_llama_of_the_package(name: str, made: Callable[[str], Path]) -> None:
    state = state_of(made(name))
    model = load_quantized(llama(), made(name))
    layers = layers_of(model)
    assert len(layers) == 14
    for layer, module in layers.items():
        q, scale = state[f"{layer}.weight"], state[f"{layer}.weight_scale"]
        assert (q.dtype, module.int8_input, module.bits) == (torch.int8, "asymmetric", 4)
        zero = state.get(f"{layer}.weight_zero_point", torch.zeros(1, 1))
        assert (zero.numel() > 1) == (name == "asymmetric")
        group = q.shape[1] // scale.shape[1]
        value = (q.unflatten(1, (-1, group)) - zero.float().unsqueeze(-1)) * scale.unsqueeze(-1)
        assert_bits(module.weight, value.flatten(1).to(torch.bfloat16).contiguous(), layer)
    report = validate(llama(), model, [IDS], thresholds=Thresholds(sqnr_db=0))
    assert {(x.scheme[:5], x.off_r1, x.beyond) for x in report.layers} == {("w4a8 ", 0, 0)}
    assert all(layer.checked for layer in report.layers)


@pytest.mark.parametrize("name", WEIGHTS)
def test_transformers_loads_and_saves_it(
    name: str, made: Callable[[str], Path], ours: ModuleType, tmp_path: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(made(name))
    assert_bits(model(IDS).logits, load_quantized(llama(), made(name))(IDS).logits)
    model.save_pretrained(tmp_path)
    assert_same_tensors(made(name), tmp_path)


def test_it_is_not_cut(made: Callable[[str], Path]) -> None:
    assert not any(map(_may_be_cut, quantised_layers(Checkpoint(made("groups"))).values()))


def _mixed(config: dict[str, Any], state: dict[str, Tensor]) -> None:
    groups = config["config_groups"]
    weights = groups["group_0"]["weights"] | {"num_bits": 8}
    groups["group_1"] = groups["group_0"] | {"weights": weights, "targets": ["re:.*q_proj"]}


def _static(config: dict[str, Any], state: dict[str, Tensor]) -> None:
    static = {"dynamic": False, "strategy": "tensor"}
    config["config_groups"]["group_0"]["input_activations"].update(static)


REFUSED: dict[str, Any] = {
    "must have weights all of 4 or all of 8 bits, got 4 bits in group_0 and not": _mixed,
    "input_activations.dynamic must be true with weights of 4 bits, got false": _static,
    "is int8, but quantization_config leaves ": leave_float,
    "up_proj.weight must be in -8..7, got": put("weight", lambda x: x + 8),
    "weight_zero_point must be in -8..7": put("weight_zero_point", lambda x: x + 16),
    "weight_zero_point must be 0 in a symmetric scheme": set_weights(symmetric=True),
    "weight_scale must be F16 or BF16, got F32": put("weight_scale", Tensor.float),
    "weight_scale must be finite": put("weight_scale", lambda x: x * torch.nan),
    "weight_scale must have shape [96, 2]": put("weight_scale", lambda x: x[:, :1]),
    "must be null or a multiple of 32 with int8 input": set_weights(group_size=40),
    "as many features K as groups of 128 hold, got K=": set_weights(group_size=128),
    "weight_scale has no int8": put("weight", Tensor.short),
}


@pytest.mark.parametrize(("said", "change"), rows(REFUSED))
def test_what_does_not_fit_is_refused(
    said: str, change: Any, made: Callable[[str], Path], tmp_path: Path
) -> None:
    assert_refused(llama(), changed(made("asymmetric"), tmp_path, change), said)


# ---- Int8 activations on request -----------------------------------------------------------------

SERVED = ("awq", "awq-one-group", "gptq-v1", "gptq-v1-act-order", "gptq-v2-symmetric")


def written_int4(folder: Path, form: Form, config: dict[str, Any] | None = None) -> Path:
    model = llama(form.dtype)
    write(folder, state_of_int4(model, form, ("lm_head",)), None)
    fields = json.loads(model.config.to_json_string()) | {"quantization_config": form.config()}
    fields["architectures"] = ["LlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(fields | (config or {})))
    return folder


def form_of(name: str) -> Form:
    form = FORMS[name]
    return form if form.group == -1 else replace(form, group=32)


@pytest.mark.parametrize("int8_input", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("name", SERVED)
def test_awq_and_gptq(name: str, int8_input: str, ours: ModuleType, tmp_path: Path) -> None:
    form = form_of(name)
    folder = written_int4(tmp_path / "in", form)
    plain, model = (
        load_quantized(llama(form.dtype), folder, int8_input=each) for each in (None, int8_input)
    )
    floats, layers = layers_of(plain), layers_of(model)
    assert len(layers) == 14
    for key, layer in layers.items():
        assert (floats[key].int8_input, layer.int8_input) == (None, int8_input)
        assert_bits(layer.weight, floats[key].weight, key)
    report = validate(llama(form.dtype), model, [IDS], thresholds=Thresholds(sqnr_db=0))
    assert {(layer.off_r1, layer.beyond) for layer in report.layers} == {(0, 0)}
    logits = model(IDS).logits
    assert not torch.equal(logits, plain(IDS).logits)
    ours.register(int8_input=int8_input)
    by_transformers = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=form.dtype)
    assert_bits(by_transformers(IDS).logits, logits)
    by_transformers.save_pretrained(tmp_path / "out")
    assert_same_tensors(folder, tmp_path / "out")
    ours.register()
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=form.dtype)
    assert_bits(again(IDS).logits, plain(IDS).logits)


def test_packed_weights_become_w4a8(tmp_path: Path) -> None:
    save_quantized(quantize_model(llama(), QuantConfig("W4A16-g32")), tmp_path / "in")
    model = load_quantized(llama(), tmp_path / "in", int8_input="symmetric")
    direct = quantize_model(llama(), QuantConfig("W4A8-g32"))
    assert_bits(model(IDS).logits, direct(IDS).logits)
    save_quantized(model, tmp_path / "out")
    assert_bits(load_quantized(llama(), tmp_path / "out")(IDS).logits, direct(IDS).logits)


@pytest.mark.parametrize(
    ("name", "int8_input", "said"),
    [
        ("gptq8-v1", "symmetric", "cannot have int8 inputs: bits must be 4 with int8_input, got 8"),
        ("gptq-v2-act-order", "symmetric", "group_size must be a multiple of 32, or -1"),
        ("awq", "yes", "int8_input must be None, symmetric or asymmetric, got yes"),
    ],
)
def test_what_takes_no_int8_activations(
    name: str, int8_input: str, said: str, tmp_path: Path
) -> None:
    written_int4(tmp_path, FORMS[name] if "act-order" in name else form_of(name))
    model = llama()
    with pytest.raises(ValueError, match=said):
        load_quantized(model, tmp_path, int8_input=int8_input)
    assert not layers_of(model)


@pytest.mark.parametrize("scheme", ["W8A8", "W4A8-g32"])
def test_int8_activations_twice(scheme: str, ours: ModuleType, tmp_path: Path) -> None:
    save_quantized(quantize_model(llama(), QuantConfig(scheme)), tmp_path / "in")
    with pytest.raises(ValueError, match="must have float activations with int8_input, got"):
        load_quantized(llama(), tmp_path / "in", int8_input="symmetric")
    with pytest.raises(ValueError, match=r"^int8_input must be None, symmetric or asymmetric"):
        ours.register(int8_input="yes")


# ---- Two levels of scales ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["qoq", "qserve"])
def test_qserve_is_refused_by_name(method: str, tmp_path: Path) -> None:
    written_int4(tmp_path, form_of("awq"), {"quantization_config": {"quant_method": method}})
    with pytest.raises(ValueError, match=rf"quant_method {method} \(QServe\) is not served"):
        load_quantized(llama(), tmp_path)
