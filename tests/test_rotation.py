"""Rotations folded into weights: the float model stays what it was, int8 loses less."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli, assert_bits, extra
from torch import Tensor, nn

import scaled_mm
from scaled_mm import Call, QuantConfig, Rotation, Smoothing, quantize_model
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.folder import Checkpoint, rotation_in
from scaled_mm.ops.rotate import rotated
from scaled_mm.quantization.rotation import rotate
from scaled_mm.validate import Thresholds, validate

transformers = extra("transformers")
compressed_tensors = extra("compressed_tensors.transform")

IDS = torch.arange(96).view(4, 24) * 7 % 128
SIZES = {
    "vocab_size": 128,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
MODELS = {
    "llama": ("Llama", {"attention_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {}),
}


def model_of(name: str, dtype: torch.dtype = torch.float32, outliers: float = 1.0) -> Any:
    """Random, norms included. A few channels of the residual stream are so much larger than the
    others, and are read by weights that are so much smaller."""
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for path, x in model.named_parameters():
            if path.endswith("bias"):
                x.normal_(std=0.1)
            if "norm" in path:
                x.uniform_(0.5, 1.5)
            if "embed" in path:
                x[:, ::41] *= outliers
            elif re.search(r"[qkv]_proj.w|gate|up_proj|head", path):
                x[:, ::41] /= outliers
    return model.requires_grad_(False)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options",
    [{}, {"value_output": False}, {"residual": False}, {"block": 16, "head_block": 4}],
    ids=["both", "residual", "values", "blocks"],
)
def test_the_float_model_is_what_it_was(name: str, options: dict[str, Any]) -> None:
    model, changed = model_of(name), model_of(name)
    rotate(changed, Rotation(**options), Call((IDS,)))
    wanted, got = logits(model), logits(changed)
    assert (got - wanted).norm() <= 1e-5 * wanted.norm()
    layers = dict(changed.named_modules())
    for path, linear in model.named_modules():
        if not isinstance(linear, nn.Linear):
            continue
        part = path.rpartition(".")[2]
        turned = options.get("residual", True) or part in ("v_proj", "o_proj")
        assert torch.equal(layers[path].weight, linear.weight) != turned, path
    ones = [x for path, x in changed.named_parameters() if path.endswith("layernorm.weight")]
    assert all(bool((x == 1).all()) for x in ones) == options.get("residual", True)
    if options.get("residual", True):
        assert changed.lm_head.weight is not changed.model.embed_tokens.weight
        assert not changed.config.tie_word_embeddings


def test_seeds() -> None:
    made = {}
    for seed in (0, 0, 1):
        model = model_of("llama")
        chosen = rotate(model, Rotation(seed=seed), Call((IDS,)))
        assert (chosen.block, chosen.head_block, chosen.seed) == (32, 8, seed)
        weight = model.model.layers[0].self_attn.q_proj.weight
        same = made.setdefault(seed, weight)
        assert torch.equal(same, weight)
    assert not torch.equal(made[0], made[1])


def test_an_orthogonal_matrix() -> None:
    """The embedding's rows, read off: R R.t() is 1, in blocks, of one magnitude."""
    model = model_of("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:96] = torch.eye(96)
    rotate(model, Rotation(block=16), Call((IDS,)))
    r = model.model.embed_tokens.weight[:96]
    assert torch.allclose(r @ r.t(), torch.eye(96), atol=1e-6)
    inside = torch.block_diag(*[torch.ones(16, 16)] * 6).bool()
    assert torch.allclose(r.abs()[inside], torch.tensor(0.25))
    assert not r[~inside].any()


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_outliers_cost_less_than_half(scheme: str) -> None:
    model = model_of("llama", outliers=30.0)
    wanted = logits(model)
    errors = []
    for rotation in (None, Rotation()):
        made = quantize_model(model, QuantConfig(scheme, rotation=rotation), [IDS])
        errors.append(float((logits(made) - wanted).norm() / wanted.norm()))
    assert_bits(logits(model), wanted)  # a copy was rotated
    assert errors[1] < errors[0] / 2


def test_in_place() -> None:
    config = QuantConfig(rotation=Rotation())
    wanted = quantize_model(model_of("qwen3"), config, [IDS])
    model = model_of("qwen3")
    made = quantize_model(model, config, [IDS], inplace=True)
    assert made is model
    assert_bits(logits(made), logits(wanted))


def test_report_smoothing_and_files(tmp_path: Path) -> None:
    model = model_of("llama-tied", torch.bfloat16)
    wanted = logits(model).float()
    config = QuantConfig("static", smoothing=Smoothing(), rotation=Rotation(seed=3))
    made = quantize_model(model, config, [IDS])
    got = logits(made)
    assert (got.float() - wanted).norm() <= 0.1 * wanted.norm()
    report = scaled_mm.quantization_report(made)
    assert report.as_dict()["rotation"] == {
        "residual": True,
        "value_output": True,
        "block": 32,
        "head_block": 8,
        "seed": 3,
        "ranks": 1,
    }
    assert "seed=3" in str(report)
    assert all(layer.norm for layer in report.layers if "q_proj" in layer.name)
    again = scaled_mm.prepare_model(model, config)
    again.load_state_dict(made.state_dict())
    assert_bits(logits(again), got)
    made.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    del config.quantization_config
    empty = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    assert_bits(logits(scaled_mm.load_quantized(empty.eval(), tmp_path)), got)
    scaled_mm.save_quantized(made, tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        said = json.loads((folder / "config.json").read_text())["quantization_config"]
        groups = compressed_tensors.TransformConfig(**said["transform_config"]).config_groups
        assert {name: group.head_dim for name, group in groups.items()} == {"R1": 32, "R2": 8}
        assert not any(place.is_online() for group in groups.values() for place in group.apply)


@pytest.mark.parametrize(
    "config",
    [
        QuantConfig(rotation=Rotation(seed=3)),
        QuantConfig("static-asymmetric", smoothing=Smoothing(), rotation=Rotation()),
        QuantConfig("w8a16", rotation=Rotation(residual=False)),
    ],
    ids=["dynamic", "smoothed", "values"],
)
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3"])
def test_checkpoints_are_rotated_file_by_file(
    name: str, config: QuantConfig, tmp_path: Path
) -> None:
    """The bits of `quantize_model`; the seed is in the files, and `validate` finds it there."""
    model = model_of(name, torch.bfloat16)
    model.save_pretrained(tmp_path / "float", max_shard_size="40KB")
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out", config, [IDS])
    wanted = quantize_model(model, config, [IDS])
    chosen = scaled_mm.quantization_report(wanted).rotation
    assert report.calibration == "block by block" and report.rotation == chosen
    made = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    told = made.quantization_config
    assert told["transform_config"] == wanted.config.quantization_config["transform_config"]
    del made.quantization_config
    empty = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).eval()
    assert_bits(logits(scaled_mm.load_quantized(empty, tmp_path / "out")), logits(wanted))
    assert rotation_in(Checkpoint(tmp_path / "out")) == chosen
    loose = Thresholds(cosine_mean=0.9)
    for quantised in (tmp_path / "out", wanted):
        assert validate(model, quantised, [IDS], thresholds=loose, stride=31).ok


KEPT = ("*.down_proj", "dynamic")  # of 80 inputs
ONLINE = {
    "static": QuantConfig("static-rotate32", overrides=(KEPT,)),
    "asymmetric": QuantConfig("static-asymmetric-rotate16", percentile=99.99),
    "dynamic": QuantConfig("dynamic-rotate32", overrides=(KEPT,)),
    "smoothed": QuantConfig("static-rotate16", smoothing=Smoothing()),
    "both": QuantConfig("static-rotate16", rotation=Rotation()),
}


def test_online_outliers_cost_less() -> None:
    model = model_of("llama", outliers=30.0)
    wanted = logits(model)
    errors = {}
    for scheme in ("static", "static-rotate32", "dynamic", "dynamic-rotate32"):
        config = QuantConfig(scheme, overrides=(KEPT,))
        made = quantize_model(model, config, [IDS])
        errors[scheme] = float((logits(made) - wanted).norm() / wanted.norm())
    assert errors["static-rotate32"] < 0.6 * errors["static"], errors
    assert errors["dynamic-rotate32"] < 0.6 * errors["dynamic"], errors


@pytest.mark.parametrize("name", ONLINE)
def test_online_files(name: str, tmp_path: Path) -> None:
    """Made in memory and file by file, saved, read again: the same bits, and what
    compressed-tensors understands."""
    model, config = model_of("llama", torch.bfloat16), ONLINE[name]
    made = quantize_model(model, config, [IDS])
    model.save_pretrained(tmp_path / "float")
    scaled_mm.save_quantized(made, tmp_path / "saved")
    quantize_checkpoint(tmp_path / "float", tmp_path / "written", config, [IDS])
    for folder in ("saved", "written"):
        empty = model_of("llama", torch.bfloat16)
        if config.rotation:
            empty.config.tie_word_embeddings = False
        loaded = scaled_mm.load_quantized(empty, tmp_path / folder)
        assert_bits(logits(loaded), logits(made), folder)
        said = json.loads((tmp_path / folder / "config.json").read_text())["quantization_config"]
        groups = compressed_tensors.TransformConfig(**said["transform_config"]).config_groups
        places = {at.location for group in groups.values() for at in group.apply if at.is_online()}
        assert places == {"input"}
        sizes = {group.head_dim for key, group in groups.items() if key.startswith("input_")}
        assert sizes == {32 if KEPT in config.overrides else 16}
    again = scaled_mm.prepare_model(model, config)
    again.load_state_dict(made.state_dict())
    assert_bits(logits(again), logits(made))


@pytest.mark.usefixtures("ours")
def test_online_rotations_of_transformers_own_methods(tmp_path: Path) -> None:
    made = quantize_model(model_of("llama", torch.bfloat16), ONLINE["static"], [IDS])
    made.save_pretrained(tmp_path / "out")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert_bits(logits(read.eval()), logits(made))
    config = tmp_path / "out" / "config.json"
    config.write_text(config.read_text().replace('"head_dim": 32', '"head_dim": 16'))
    with pytest.raises(ValueError, match=r"input_rotate must be transform_config's, 16$"):
        scaled_mm.load_quantized(model_of("llama", torch.bfloat16), tmp_path / "out")


def test_files_with_blocks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made = quantize_model(model_of("llama"), ONLINE["dynamic"])
    scaled_mm.save_quantized(made, tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.write_text(config.read_text().replace('"head_dim": 32', '"head_dim": 64'))
    with pytest.raises(
        ValueError, match=r"q_proj\.weight must have a multiple of 64 input features"
    ):
        scaled_mm.load_quantized(model_of("llama"), tmp_path / "out")


def test_the_matrix_is_compressed_tensors_own() -> None:
    from compressed_tensors.transform.utils.hadamard import deterministic_hadamard_matrix

    for block in (16, 64, 512):
        matrix = deterministic_hadamard_matrix(block, torch.float64)
        x = torch.randn(3, 2 * block)
        wanted = (x.double().view(-1, block) @ matrix).view(x.shape) / block**0.5
        assert (rotated(x, block) - wanted).norm() < 1e-6 * wanted.norm()


def test_online_rotations_that_do_not_fit_are_refused_by_name() -> None:
    for scheme, block, layer, wide in (
        ("static-rotate32", 32, "mlp.down_proj", 80),
        ("W8A8-rotate64", 64, "self_attn.q_proj", 96),
    ):
        message = rf"layers\.0\.{re.escape(layer)} must have .* of {block} .* got {wide}$"
        with pytest.raises(ValueError, match=message):
            quantize_model(model_of("llama"), QuantConfig(scheme), [IDS])


@pytest.mark.parametrize(
    ("kind", "batches", "rotation", "message"),
    [
        ("Llama", None, Rotation(), "^batches must be given for .* or rotation, got None"),
        ("Llama", [IDS], Rotation(block=64), r"^block must divide the width of model\S+ \(96\)"),
        ("Gemma", [IDS], Rotation(), "^rotation must leave the model's output as it was"),
        ("GPTNeoX", [IDS], Rotation(), "^model must have model.embed_tokens, a Embedding"),
    ],
)
def test_checkpoints_that_cannot_be_rotated(
    kind: str, batches: Any, rotation: Rotation, message: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "float")
    with pytest.raises(ValueError, match=message):
        quantize_checkpoint(
            tmp_path / "float", tmp_path / "out", QuantConfig(rotation=rotation), batches
        )
    assert not (tmp_path / "out" / "config.json").exists()


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    model_of("llama-tied").save_pretrained(tmp_path / "float")
    (tmp_path / "ids").write_text("\n".join(" ".join(map(str, row)) for row in IDS.tolist()))
    command, tokens = f"quantize {tmp_path}/float -o {tmp_path}/out", f"--tokens {tmp_path}/ids"
    assert "rotated, with the seed 5" in cli(f"{command} --rotate --seed 5 {tokens}")
    assert rotation_in(Checkpoint(tmp_path / "out")) == Rotation(seed=5, block=32, head_block=8)
    cli(f"validate {tmp_path}/out --float {tmp_path}/float {tokens} --min-cosine 0.9")
    for wrong, said in (
        ("--rotate", "given with a static scheme, --alpha, --search or --rotate, got nei"),
        ("--seed 5", "--seed must come with --rotate, got 5 alone"),
    ):
        assert said in cli(f"{command} {wrong}", code=2)


REFUSED: dict[str, tuple[Any, Rotation, str]] = {
    "block": (None, Rotation(block=64), r"block must divide the width of model\S+ \(96\), got 64"),
    "head": (None, Rotation(head_block=16), r"head_block must divide a head of .* \(24\), got 16"),
    "ranks": (None, Rotation(ranks=8), r"^head_block .*layers.0.self_attn.o_proj of each of 8 r"),
    "linear": ("model.layers.1.mlp.up_proj", Rotation(), r"mlp\.up_proj, a Linear, .* a Identity$"),
    "norm": ("model.norm", Rotation(), r"^model\.norm must be an RMSNorm, got a Identity$"),
    "embedding": ("model.embed_tokens", Rotation(), r"embed_tokens, a Embedding, .*a Identity$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    replaced, rotation, message = REFUSED[name]
    model = model_of("llama")
    before = {key: x.clone() for key, x in model.state_dict().items()}
    if replaced:
        model.set_submodule(replaced, nn.Identity())
    with pytest.raises(ValueError, match=message):
        rotate(model, rotation, Call((IDS,)))
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())


def test_refused_options() -> None:
    for name, value in (("block", 3), ("head_block", 1), ("ranks", 0)):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            Rotation(**{name: value})
    with pytest.raises(ValueError, match=r"^residual or value_output must be True"):
        Rotation(residual=False, value_output=False)
    with pytest.raises(ValueError, match=r"^calibration must be given for .* rotation, got None"):
        quantize_model(model_of("llama"), QuantConfig(rotation=Rotation()))
