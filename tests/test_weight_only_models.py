"""Whole models with weights in 8 or 4 bits: made, saved, read by others, validated."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of
from helpers import Cli, assert_bits, extra, rows
from llamas import IDS, assert_same_tensors, llama, relative
from test_save_quantized import assert_same_state
from torch import nn
from weight_only_cases import assert_layers_within_their_bound, digits, plainly, weight_of

from scaled_mm import (
    QuantConfig,
    Smoothing,
    WeightScheme,
    load_quantized,
    prepare_model,
    quantization_report,
    quantize_model,
    quantize_weight_grouped,
    save_quantized,
)
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear
from scaled_mm.quantization.compressed_tensors import PackedScheme
from scaled_mm.validate import Thresholds, validate

ct = extra("compressed_tensors")
transformers = extra("transformers")

SCHEMES = {
    "w8a16": WeightScheme(),
    "w8a16-asymmetric": WeightScheme(symmetric=False),
    "w4a16-g16": WeightScheme(4, 16),
    "w4a16-g8-asymmetric": WeightScheme(4, 8, symmetric=False),
    "w8a16-g48": WeightScheme(8, 48),
}
FITS = [name for name in SCHEMES if name != "w8a16-g48"]  # of 80 features, 48 leave a rest
W4A8 = ("W4A8-channel", "W4A8-channel-asymmetric", "W4A8-channel-asymmetric-input")
CONFIGS = {
    **{name: QuantConfig(name) for name in (*FITS, *W4A8)},
    "mixed": QuantConfig("w4a16-g16", overrides=(("*.down_proj", "w8a16"),)),
    "smoothed": QuantConfig("w4a16-g16", smoothing=Smoothing(0.5)),
}
configs = pytest.mark.parametrize("name", CONFIGS)


def layers_of(model: nn.Module) -> dict[str, WeightOnlyLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, WeightOnlyLinear)}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_a_model(name: str, inplace: bool) -> None:
    original, scheme = llama(), SCHEMES[name]
    model = quantize_model(llama(), QuantConfig(name), inplace=inplace)
    layers = layers_of(model)
    assert len(layers) == 14 and type(model.lm_head) is nn.Linear
    for layer, module in layers.items():
        w = original.get_submodule(layer).weight.t()
        made = quantize_weight_grouped(w.t(), **scheme.options())
        group = len(w) // len(made.scales)
        zeros = 0 if made.zeros is None else made.zeros.float().repeat_interleave(group, 0)
        wanted = (made.q.float() - zeros) * made.scales.float().repeat_interleave(group, 0)
        assert_bits(weight_of(module), wanted.to(torch.bfloat16), layer)
    assert assert_layers_within_their_bound(model, IDS) == 14
    error = relative(model(IDS).logits, original(IDS).logits)
    assert 0 < error < (0.5 if scheme.bits == 4 else 0.04)  # random weights: each rounding counts
    report = quantization_report(model)
    assert {layer.scheme for layer in report.layers} == {name}
    assert str(report).startswith("quantised: 14 layers, ")


def test_int8_and_weight_only_layers_in_one_model() -> None:
    config = QuantConfig("dynamic", overrides=(("*.down_proj", "w8a16"),))
    model = quantize_model(llama(), config)
    kinds = {type(model.model.layers[0].mlp.down_proj), type(model.model.layers[0].mlp.up_proj)}
    assert kinds == {WeightOnlyLinear, ScaledLinear}
    with pytest.raises(ValueError, match=r"^model must have a form .* W8A8 and weight-only layers"):
        model.save_pretrained("unused")


@configs
def test_an_empty_model_takes_the_state(name: str) -> None:
    config = CONFIGS[name]
    model = quantize_model(llama(torch.float32), config, [IDS])
    again = prepare_model(llama(torch.float32), config)
    again.load_state_dict(model.state_dict())
    assert_same_state(again, model)
    assert_bits(again(IDS).logits, model(IDS).logits)


def test_smoothing_that_no_norm_takes_becomes_pre_scale() -> None:
    config = QuantConfig("w8a16", smoothing=Smoothing(0.5, layers=("*.o_proj",)))
    model = quantize_model(llama(), config, [IDS])
    factors = [layer.pre_scale is not None for layer in layers_of(model).values()]
    assert sum(factors) == 2
    assert assert_layers_within_their_bound(model, IDS) == 14
    again = prepare_model(llama(), QuantConfig("w8a16"))
    again.load_state_dict(model.state_dict())
    assert_bits(again(IDS).logits, model(IDS).logits)


REFUSED: dict[str, tuple[QuantConfig, str]] = {
    "group": (
        QuantConfig("w8a16-g48"),
        r"down_proj must have a multiple of 48 inputs for w8a16-g48, got 80$",
    ),
    "static": (QuantConfig("w8a16", overrides=(("*", "static"),)), "^calibration must be given"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    config, said = REFUSED[name]
    model = llama()
    with pytest.raises(ValueError, match=said):
        quantize_model(model, config, inplace=True)
    assert not layers_of(model)
    if name == "group":
        with pytest.raises(ValueError, match=said):
            prepare_model(model, config)


STORED = {  # of down_proj
    "mixed": PackedScheme(8, -1, True),
    "smoothed": PackedScheme(4, 16, True),
    "w8a16": PackedScheme(8, -1, True),
    "w8a16-asymmetric": PackedScheme(8, -1, False),
    "w4a16-g16": PackedScheme(4, 16, True),
    "w4a16-g8-asymmetric": PackedScheme(4, 8, False),
    "W4A8-channel": PackedScheme(4, -1, True, int8_input="symmetric"),
    "W4A8-channel-asymmetric": PackedScheme(4, -1, False, int8_input="symmetric"),
    "W4A8-channel-asymmetric-input": PackedScheme(4, -1, True, int8_input="asymmetric"),
}


@configs
def test_it_is_read_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = quantize_model(llama(), CONFIGS[name], [IDS])
    save_quantized(model, tmp_path / "out", max_shard_bytes=40_000)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    loaded = load_quantized(llama(), tmp_path / "out")
    assert_same_state(loaded, model)
    assert_bits(loaded(IDS).logits, model(IDS).logits, name)
    settings = Checkpoint(tmp_path / "out").quantization
    found = settings.scheme_of("model.layers.0.mlp.down_proj")  # type: ignore[union-attr]
    assert found == STORED[name]
    assert model.model.layers[0].mlp.down_proj.int8_input == STORED[name].int8_input


@configs
def test_the_package_unpacks_the_same_weights(name: str, tmp_path: Path) -> None:
    """By compressed-tensors' own reading of the config, and its decompressor."""
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationConfig

    model = quantize_model(llama(), CONFIGS[name], [IDS])
    save_quantized(model, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert written["format"] == "pack-quantized" and written["ignore"] == ["lm_head"]
    groups = QuantizationConfig.model_validate(written).config_groups.values()
    state = state_of(tmp_path / "out")
    for layer, module in layers_of(model).items():
        scheme = next(g for g in groups if layer in g.targets or g.targets == ["Linear"])
        assert scheme.weights.num_bits == module.bits
        inputs = scheme.input_activations
        assert (inputs is None) == (name not in W4A8)
        if inputs is not None:
            assert (inputs.num_bits, inputs.strategy, inputs.dynamic) == (8, "token", True)
            assert inputs.symmetric != name.endswith("asymmetric-input")
        tensors = {part: state[f"{layer}.{part}"] for part in module.state_dict()}
        theirs = PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
        assert_bits(theirs, weight_of(module).t(), layer)


@pytest.mark.parametrize("name", ["w8a16", "w4a16-g16", "mixed"])  # theirs reads no zero points
def test_transformers_alone_runs_it(name: str, tmp_path: Path) -> None:
    model = quantize_model(from_folder(tmp_path / "float"), CONFIGS[name], [IDS])
    save_quantized(model, tmp_path / "out")
    theirs: Any = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    got = theirs.eval()(IDS).logits  # decompresses
    for layer, module in layers_of(model).items():
        assert_bits(theirs.get_submodule(layer).weight.detach(), weight_of(module).t(), layer)
    assert relative(got, model(IDS).logits) < 4 * torch.finfo(torch.bfloat16).eps


def from_folder(folder: Path) -> Any:
    """The float model as transformers loads it."""
    llama().save_pretrained(folder, max_shard_size="40KB")
    model: Any = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto")
    return model.eval().requires_grad_(False)


def test_save_pretrained_writes_the_same(tmp_path: Path) -> None:
    model = quantize_model(llama(), QuantConfig("w4a16-g16"))
    save_quantized(model, tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    assert_same_tensors(tmp_path / "ours", tmp_path / "theirs")
    assert_same_state(load_quantized(llama(), tmp_path / "theirs"), model)


@pytest.mark.usefixtures("ours")
def test_transformers_runs_it_by_this_library(tmp_path: Path) -> None:
    model = quantize_model(from_folder(tmp_path / "float"), CONFIGS["mixed"])
    save_quantized(model, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded.save_pretrained(tmp_path / "again")
    assert len(layers_of(loaded)) == 14
    assert_bits(loaded(IDS).logits, model(IDS).logits)
    assert_same_tensors(tmp_path / "out", tmp_path / "again")


@configs
def test_a_checkpoint_is_quantised_with_the_same_bits(name: str, tmp_path: Path) -> None:
    config, batches = CONFIGS[name], [IDS[:1], IDS[1:]]
    wanted = quantize_model(from_folder(tmp_path / "float"), config, batches)
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out", config, batches)
    assert_same_state(load_quantized(llama(), tmp_path / "out"), wanted)
    assert report.layers.keys() == layers_of(wanted).keys()
    assert (report.calibration is not None) == (name == "smoothed")


def test_odd_sizes(tmp_path: Path) -> None:
    """Words that are not full at their ends; scales of a float32 model are bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(45, 13), nn.ReLU(), nn.Linear(13, 6, bias=False)).eval()
    for scheme in ("w8a16", "w4a16-channel-asymmetric", "w8a16-asymmetric"):
        made = quantize_model(model, QuantConfig(scheme))
        save_quantized(made, tmp_path / scheme)
        tensors = state_of(tmp_path / scheme)
        for layer, module in layers_of(made).items():
            parts = {part: tensors[f"{layer}.{part}"] for part in module.state_dict()}
            assert_bits(plainly(parts, module.bits), weight_of(module))
            rest = digits(parts["weight_packed"], module.bits).flatten(-2)[:, module.in_features :]
            assert not rest.any()
            assert parts["weight_scale"].dtype == torch.bfloat16
        empty = nn.Sequential(nn.Linear(45, 13), nn.ReLU(), nn.Linear(13, 6, bias=False)).eval()
        assert_same_state(load_quantized(empty, tmp_path / scheme), made)


def of(**options: Any) -> WeightOnlyLinear:
    return WeightOnlyLinear.from_linear(nn.Linear(16, 8), **options)


OFFSET = quantize_weight_grouped(torch.ones(8, 16).half(), bits=8)
OFFSET = OFFSET._replace(zeros=OFFSET.scales)
HOMELESS: dict[str, Any] = {
    "^0: activation has no place in compressed-tensors' format": lambda: [of(activation="relu")],
    "^0: weight_offset has no place in": lambda: [WeightOnlyLinear.from_grouped(OFFSET, bits=8)],
    "^0: pre_scale has no place in": lambda: [of(smooth=torch.full((16,), 2.0))],
    "^layers must be all W8A8, all weight-only or all in .* packed .* at 0 and dyn.* at ": lambda: [
        of(),
        ScaledLinear.from_linear(nn.Linear(8, 8)),
    ],
}


@pytest.mark.parametrize(("said", "made"), rows(HOMELESS))
def test_what_the_format_has_no_place_for(said: str, made: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        save_quantized(nn.Sequential(*made()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checkpoints_of_two_formats_are_refused(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "float")
    config = QuantConfig("dynamic", overrides=(("*.down_proj", "w8a16"),))
    with pytest.raises(ValueError, match=r"^layers must be all W8A8, all weight-only or all in"):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", config)
    with pytest.raises(ValueError, match=r"down_proj.weight must have a multiple of 48 inputs for"):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", QuantConfig("w8a16-g48"))
    config = QuantConfig("w8a16", smoothing=Smoothing(0.5, layers=("*.o_proj",)))
    with pytest.raises(ValueError, match=r"o_proj: pre_scale has no place in compressed-tensors'"):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", config, [IDS])


@pytest.mark.parametrize("name", ["w8a16-asymmetric", "w4a16-g16", "smoothed"])
def test_validate(name: str) -> None:
    original = llama()
    model = quantize_model(original, CONFIGS[name], [IDS])
    limits = Thresholds(cosine_mean=0.85)  # of random weights
    report = validate(original, model, [IDS], stride=1, thresholds=limits)
    assert report.ok, report.failures()
    folded = " folded" if name == "smoothed" else ""
    schemes = {layer.scheme.removesuffix(folded) for layer in report.layers}
    wanted = {
        "w8a16-asymmetric": {"w8a16 g48 asym", "w8a16 g80 asym"},
        "w4a16-g16": {"w4a16 g16"},
        "smoothed": {"w4a16 g16"},
    }
    assert schemes == wanted[name]
    for layer in report.layers:
        assert layer.checked > 0 and layer.beyond == 0 and layer.off_r1 == 0
        assert layer.sqnr_db > (30 if "w8" in name else 12)
        assert 0.5 < layer.grid <= 1 and (layer.azp_used > 0) == ("asym" in name)


def test_factors_are_part_of_what_is_judged() -> None:
    original = llama()
    config = QuantConfig("w8a16", smoothing=Smoothing(0.5, layers=("*.o_proj",)))
    report = validate(original, quantize_model(original, config, [IDS]), [IDS], stride=1)
    assert report.ok, report.failures()
    assert {x.scheme for x in report.layers} == {"w8a16 g48", "w8a16 g48 smooth", "w8a16 g80"}
    assert all(layer.beyond == 0 and layer.sqnr_db > 30 for layer in report.layers)


def test_faults_are_found() -> None:
    """A layer that computes with another weight than the one it shows is beyond its bound."""
    original = llama()
    model = quantize_model(original, QuantConfig("w8a16"))
    layer = model.model.layers[1].mlp.up_proj
    right = layer.forward
    layer.forward = lambda x: right(x) * 1.02
    report = validate(original, model, [IDS], stride=1)
    found = {each.name: each.beyond for each in report.layers if each.beyond}
    assert found.keys() == {"model.layers.1.mlp.up_proj"} and not report.ok


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    llama().save_pretrained(tmp_path / "float")
    ids = tmp_path / "ids"
    ids.write_text("\n".join(" ".join(map(str, row.tolist())) for row in IDS))
    out = tmp_path / "out"
    command = f"quantize {tmp_path}/float --out {out} --scheme"
    more = "w4a16-g16 --override *.down_proj=w8a16-asymmetric --json"
    report = json.loads(cli(f"{command} {more}"))
    assert set(report["layers"].values()) == {
        "packed int4, symmetric, groups of 16",
        "packed int8, asymmetric, one group",
    }
    loaded = load_quantized(llama(), out)
    assert {m.bits for m in layers_of(loaded).values()} == {4, 8}
    cli(f"validate {out} --float {tmp_path}/float --tokens {ids} --min-cosine 0.8")
    said = "W8A8, W8A16, W4A16, W4A8 (-gN for groups of N"
    assert said in cli(f"{command} w5a16", code=2)
    said = "--tokens must come with a static scheme"
    assert said in cli(f"{command} w8a16 --tokens {ids}", code=2)
