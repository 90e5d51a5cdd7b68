"""Int8 in blocks of 128 x 128: `ScaledBlockLinear`, and the checkpoints that it is read from."""

import copy
import json
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpoint_cases import state_of
from helpers import assert_bits, each_isa, extra, refuses, rows
from llamas import LAYER, Change, assert_refused, assert_same_tensors, changed, put
from llamas import llama as llama_of
from safetensors.torch import save_file
from torch import Tensor, nn

from scaled_mm import (
    QuantConfig,
    Smoothing,
    load_quantized,
    prepare_model,
    quantization_report,
    quantize_model,
    reference,
    save_quantized,
)
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.loading import quantised_layers
from scaled_mm.nn import ScaledBlockLinear
from scaled_mm.parallel.loading import _may_be_cut
from scaled_mm.precompute import precompute
from scaled_mm.quantization.inspect import of_groups
from scaled_mm.validate import Thresholds, validate

transformers = extra("transformers")

IDS = torch.arange(24).view(2, 12)
BLOCKS = QuantConfig("blocks")
FORM = {
    "quant_method": "blockwise_int8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
SIZES = [(256, 384), (300, 200), (128, 130), (100, 60), (260, 1), (1, 1)]


def linear(k: int, n: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(k + n)
    return nn.Linear(k, n, bias).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_a_layer_has_the_bits_of_the_reference(k: int, n: int, dtype: torch.dtype) -> None:
    layer, x = ScaledBlockLinear.from_linear(linear(k, n)), torch.randn(2, 5, k).to(dtype)
    q, scale = of_groups(x.flatten(0, 1))
    operands = q, layer.weight_int8.t(), scale, layer.weight_scale_inv.t()
    expected = reference.scaled_mm(*operands, bias=layer.bias, out_dtype=dtype).unflatten(0, (2, 5))
    for isa in each_isa():
        assert_bits(layer(x), expected, isa)
    if k == 300:
        torch.compiler.reset()
        assert_bits(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)
    wanted = x.double() @ layer.weight.double().t() + layer.bias.double()  # type: ignore[union-attr]
    assert float((layer(x).double() - wanted).norm() / wanted.norm()) < 0.02


def test_the_weight_is_what_the_blocks_say() -> None:
    float_one = linear(300, 200)
    layer = ScaledBlockLinear.from_linear(float_one)
    assert layer.weight_scale_inv.shape == (2, 3)
    for i, j in ((0, 0), (1, 2)):
        rows, columns = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
        block, scale = float_one.weight[rows, columns], layer.weight_scale_inv[i, j]
        assert_bits(scale, block.abs().max() / 127)
        assert_bits(layer.weight[rows, columns], layer.weight_int8[rows, columns] * scale)
        assert float((layer.weight[rows, columns] - block).abs().max()) <= 0.5001 * scale


def test_copies_state_dicts_and_conversions() -> None:
    layer, x = ScaledBlockLinear.from_linear(linear(300, 200)), torch.randn(7, 300)
    y = layer(x)
    state = layer.state_dict()
    assert [*state] == ["weight_scale_inv", "bias", "weight"] or len(state) == 3
    empty = ScaledBlockLinear(300, 200)
    empty.load_state_dict(state)
    unpacked = copy.deepcopy(layer).unpack()
    for other in (empty, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), unpacked):
        assert_bits(other(x), y)
    converted = copy.deepcopy(layer).to(torch.bfloat16)
    assert (converted.weight_scale_inv.dtype, converted.bias.dtype) == (torch.float32,) * 2
    assert_bits(converted(x), y)
    on_meta = ScaledBlockLinear(300, 200, device="meta")
    on_meta.load_state_dict(state, assign=True)
    assert_bits(on_meta(x), y)
    assert "blocks of 128 x 128" in repr(layer)


LAYER_REFUSED = {
    "in_features must be at most 131071": lambda: ScaledBlockLinear(131072, 1),
    "a must have|b must have": lambda: ScaledBlockLinear(3, 4)(torch.ones(2, 5)),
    "x must not require grad": lambda: ScaledBlockLinear(3, 4)(torch.ones(3, requires_grad=True)),
}
NO_LINEAR: dict[str, Any] = {
    "linear must be a torch.nn": lambda: ScaledBlockLinear.from_linear(nn.ReLU())  # type: ignore
}
test_a_layer_refuses = refuses(LAYER_REFUSED)
test_a_layer_of_no_linear = refuses(NO_LINEAR, error=TypeError)


def llama() -> Any:
    """With blocks that the sizes do not fill, and more than one."""
    return llama_of(vocab_size=64, hidden_size=160, intermediate_size=264)


def blocks_of(model: nn.Module) -> dict[str, ScaledBlockLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, ScaledBlockLinear)}


def written(folder: Path) -> Path:
    """A checkpoint by plain torch, as SGLang reads it."""
    model = llama()
    state = {name: x.clone() for name, x in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            w = module.weight.float()
            n, k = w.shape
            padded = nn.functional.pad(w, (0, -k % 128, 0, -n % 128))
            blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
            scales = blocks.abs().amax((1, 3)) / 127
            q = (blocks / scales[:, None, :, None]).round().flatten(2).flatten(0, 1)
            state[f"{name}.weight"] = q[:n, :k].to(torch.int8).contiguous()
            state[f"{name}.weight_scale_inv"] = scales
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    fields = json.loads(model.config.to_json_string()) | {"quantization_config": FORM}  # type: ignore[operator]
    (folder / "config.json").write_text(
        json.dumps(fields | {"architectures": ["LlamaForCausalLM"]})
    )
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be written to."""
    return written(tmp_path_factory.mktemp("blocks") / "in")


def test_a_model_runs_saves_and_is_validated(made: Path, tmp_path: Path) -> None:
    state = state_of(made)
    model = load_quantized(llama(), made)
    layers = blocks_of(model)
    assert len(layers) == 14 and type(model.lm_head) is nn.Linear
    for name, layer in layers.items():
        assert_bits(layer.weight_int8, state[f"{name}.weight"], name)
        assert_bits(layer.weight_scale_inv, state[f"{name}.weight_scale_inv"], name)
    report = validate(llama(), model, [IDS], thresholds=Thresholds(sqnr_db=30))
    assert report.ok
    for each in report.layers:
        assert (each.off_r1, each.beyond, each.scheme) == (0, 0, "blocks") and each.checked
    save_quantized(model, tmp_path / "out")
    assert_same_tensors(made, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config == FORM | {"ignored_layers": ["lm_head"]}
    assert_bits(load_quantized(llama(), tmp_path / "out")(IDS).logits, model(IDS).logits)


def test_the_scheme_of_a_model(tmp_path: Path) -> None:
    """What `quantize_model` makes, what is saved of it, and what is written file by file."""
    model, empty = quantize_model(llama(), BLOCKS), prepare_model(llama(), BLOCKS)
    linears = dict(llama().named_modules())
    assert blocks_of(model).keys() == blocks_of(empty).keys() and len(blocks_of(model)) == 14
    for name, layer in blocks_of(model).items():
        wanted = ScaledBlockLinear.from_linear(linears[name])
        assert_bits(layer.weight_int8, wanted.weight_int8, name)
        assert_bits(layer.weight_scale_inv, wanted.weight_scale_inv, name)
    report = quantization_report(model)
    assert report is not None and {each.scheme for each in report.layers} == {"blocks"}
    save_quantized(model, tmp_path / "saved", format="blockwise_int8")
    llama().save_pretrained(tmp_path / "float")
    made = quantize_checkpoint(tmp_path / "float", tmp_path / "written", BLOCKS)
    assert set(made.layers.values()) == {"int8 in blocks of 128 x 128"}
    assert_same_tensors(tmp_path / "saved", tmp_path / "written")
    config = json.loads((tmp_path / "written" / "config.json").read_text())["quantization_config"]
    assert config == FORM | {"ignored_layers": ["lm_head"]}
    assert_bits(load_quantized(llama(), tmp_path / "written")(IDS).logits, model(IDS).logits)


def test_what_the_scheme_is_not_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^smoothing must be None beside the scheme blocks$"):
        QuantConfig("W8A8", overrides=(("*.up_proj", "blocks"),), smoothing=Smoothing())
    with pytest.raises(ValueError, match=r"^scheme must be one of .*, got 'blocks-rotate128'$"):
        QuantConfig("blocks-rotate128")
    llama().save_pretrained(tmp_path / "float")
    with pytest.raises(
        ValueError, match=r"^format must be blockwise_int8 for .*, which is int8 in"
    ):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", BLOCKS, format="int-quantized")
    mixed = QuantConfig("W8A8", overrides=(("*.up_proj", "blocks"),))
    with pytest.raises(
        ValueError, match=r"^layers must be all W8A8, .* to be saved, got .* blocks"
    ):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", mixed)
    fields = json.loads((tmp_path / "float" / "config.json").read_text())
    (tmp_path / "float" / "config.json").write_text(json.dumps(fields | {"model_type": "unknown"}))
    named = QuantConfig("blocks", targets=("*.up_proj",))
    with pytest.raises(ValueError, match="transformers must know the model, for blockwise_int8"):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out", named)


def test_transformers_loads_and_saves_it(made: Path, ours: ModuleType, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(made)
    assert len(blocks_of(model)) == 14
    assert_bits(model(IDS).logits, load_quantized(llama(), made)(IDS).logits)
    model.save_pretrained(tmp_path)
    assert_same_tensors(made, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config == FORM
    fields = FORM | {"weight_block_size": [64, 64]}
    with pytest.raises(ValueError, match=r"weight_block_size must be \[128, 128\], got \[64, 64\]"):
        ours.ScaledMMConfig.from_dict(fields)


def test_what_else_is_not_done_with_it(made: Path, tmp_path: Path) -> None:
    found = quantised_layers(Checkpoint(made))
    assert len(found) == 14 and not any(map(_may_be_cut, found.values()))
    with pytest.raises(ValueError, match=r"must be W8A8 to have azp terms, got int8 in blocks of"):
        precompute(made, tmp_path / "out")
    model = quantize_model(llama(), QuantConfig("W8A8"))
    model.lm_head = ScaledBlockLinear.from_linear(llama().lm_head)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^layers must be all W8A8, .* got .* and int8 in blocks"):
        save_quantized(model, tmp_path / "out")
    with pytest.raises(ValueError, match=r"must have float activations with int8_input, got int8"):
        load_quantized(llama(), made, int8_input="symmetric")


def _set(**change: Any) -> Change:
    return lambda config, state: config.update(change)


SCALES = "weight_scale_inv"
REFUSED: dict[str, Any] = {
    "weight_block_size must be [128, 128], got [64, 64]": _set(weight_block_size=[64, 64]),
    "weight_block_size must be [128, 128], got [1, 128": _set(weight_block_size=[1, 128]),
    "weight_block_size must be [128, 128], got None": _set(weight_block_size=None),
    "activation_scheme must be dynamic, got static": _set(activation_scheme="static"),
    "weight_zeros is not understood, got True": _set(weight_zeros=True),
    "leaves model.layers.0.mlp.up_proj float": _set(ignored_layers=["up_proj"]),
    "quantization_config leaves ": _set(modules_to_not_convert=["layers.0.mlp"]),
    "ignored_layers must be a list of strings": _set(ignored_layers="lm_head"),
    "up_proj.weight_scale_inv is missing": put(SCALES, lambda x: None),
    "must have shape [3, 2], got [1, 2]": put(SCALES, lambda x: x[:1]),
    "weight_scale_inv must be finite and not negative": put(SCALES, torch.neg),
    "must be finite and not negative": put(SCALES, lambda x: x * torch.nan),
    "must be F32 or BF16 or F16, got I32": put(SCALES, Tensor.int),
    "weight_scale_inv has no int8": put("weight", Tensor.float),
    "input_scale is not understood": put("input_scale", lambda x: torch.ones(1)),
}


@pytest.mark.parametrize(("said", "change"), rows(REFUSED))
def test_what_does_not_fit_is_refused(said: str, change: Any, made: Path, tmp_path: Path) -> None:
    assert_refused(llama(), changed(made, tmp_path, change), said)


def test_scales_of_16_bits_are_widened(made: Path, tmp_path: Path) -> None:
    changed(made, tmp_path, put(SCALES, Tensor.bfloat16))
    layer = blocks_of(load_quantized(llama(), tmp_path))[LAYER]
    assert_bits(layer.weight_scale_inv, state_of(tmp_path)[f"{LAYER}.{SCALES}"].float())
