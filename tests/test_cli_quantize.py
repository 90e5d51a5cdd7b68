"""`scaled-mm quantize`: the bits of `quantize_model`, one tensor at a time, and no lost output."""

import builtins
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import tiny
from checkpoint_cases import files_of, state_of
from helpers import Cli, extra, rows
from llamas import IDS, llama
from safetensors.torch import load_file, save_file
from test_save_quantized import CONFIGS, assert_same_state, from_transformers
from torch import Tensor, nn

from scaled_mm import QuantConfig, Smoothing, load_quantized, quantize_model
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.calibrating import CALIBRATION
from scaled_mm.checkpoint.files import TensorFile
from scaled_mm.checkpoint.folder import Checkpoint

extra("compressed_tensors")
transformers = extra("transformers")

WORDS = {f"w{i}": i for i in range(128)}
SENTENCES = ["w1 w2 w3 w4 w5", "w6 w7", "w8 w9 w10 w11 w12 w13 w14", "w100 w101 w127 w90"]
SOME = {
    **CONFIGS,
    "smoothed-dynamic": QuantConfig(smoothing=Smoothing(0.8)),
    "searched": QuantConfig("static", smoothing=Smoothing(search=(0.25, 0.5), folds=1)),
    "all-but-one": QuantConfig("static-asymmetric", ignore=("*.0.mlp.*",), targets=("model.*",)),
    "percentile": QuantConfig("static-asymmetric", percentile=99.0),
}


def written(folder: Path) -> Path:
    """A Llama in bfloat16, of several shards, with a tokenizer and other files."""
    llama().save_pretrained(folder, max_shard_size="40KB")
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w0", pad_token="w0"
    ).save_pretrained(folder)
    (folder / "README.md").write_text("mine")
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "float")


def loaded(folder: Path) -> nn.Module:
    """The float model as transformers loads it."""
    model: Any = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto")
    return model.eval().requires_grad_(False)


@pytest.mark.filterwarnings("ignore::scaled_mm.CalibrationWarning")
@pytest.mark.parametrize("name", SOME)
def test_it_has_the_bits_of_quantize_model(name: str, source: Path, tmp_path: Path) -> None:
    config, batches = SOME[name], [IDS[:1], IDS[1:]]
    wanted = quantize_model(loaded(source), config, batches)
    report = quantize_checkpoint(source, tmp_path / "out", config, batches)
    assert_same_state(load_quantized(loaded(source), tmp_path / "out"), wanted)
    assert set(report.layers) == {
        n for n, m in wanted.named_modules() if type(m).__name__ == "ScaledLinear"
    }
    assert {shard.name for shard in report.shards} == set(Checkpoint(source).files)
    assert not (tmp_path / "out" / CALIBRATION).exists()
    from_transformers(tmp_path / "out")


def test_the_rest_is_kept(source: Path, tmp_path: Path) -> None:
    report = quantize_checkpoint(source, tmp_path / "out")
    before, after = state_of(source), state_of(tmp_path / "out")
    for name, x in before.items():
        if f"{name}_scale" not in after:
            assert after[name].dtype == x.dtype and torch.equal(after[name], x), name
    assert set(report.copied) < set(files_of(tmp_path / "out"))
    for name in report.copied:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert {"README.md", "tokenizer.json", "generation_config.json"} <= set(report.copied)
    config = json.loads((source / "config.json").read_text())
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written.pop("quantization_config")["ignore"] == ["lm_head"]
    assert written == config
    weights = sum(x.numel() for name, x in after.items() if x.dtype == torch.int8)
    assert report.share == weights / sum(x.numel() for x in before.values())
    assert report.floats == ("lm_head",) and report.smoothed == 0


def test_one_tensor_is_in_memory_at_a_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, alive = TensorFile.read, weakref.WeakSet[Tensor]()
    most = 0

    def counted(self: TensorFile, name: str) -> Tensor:
        nonlocal most
        x = read(self, name)
        alive.add(x)
        most = max(most, len(alive))
        return x

    monkeypatch.setattr(TensorFile, "read", counted)
    quantize_checkpoint(source, tmp_path / "out")
    assert most == 1


def test_tensors_that_the_model_computes_are_left_out(tmp_path: Path) -> None:
    """Old checkpoints of BERT hold position_ids, which no model of today takes."""
    tiny("BertModel").save_pretrained(tmp_path / "float")
    path = tmp_path / "float" / "model.safetensors"
    save_file({**load_file(path), "embeddings.position_ids": torch.arange(16)[None]}, path)
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out")
    assert report.dropped == ("embeddings.position_ids",)
    model = load_quantized(tiny("BertModel"), tmp_path / "out")
    wanted = quantize_model(transformers.BertModel.from_pretrained(tmp_path / "float"))
    assert_same_state(model, wanted)
    # Its norms feed the residual connections too, so none of them can be divided.
    with pytest.raises(ValueError, match="smoothing must find a norm whose output only quantised"):
        config, batches = QuantConfig(smoothing=Smoothing()), [torch.arange(16)[None]]
        quantize_checkpoint(tmp_path / "float", tmp_path / "smooth", config, batches)


def test_smoothing_goes_where_a_norm_takes_it(source: Path, tmp_path: Path) -> None:
    """With q_proj left float, the norm in front of it has another reader, and is not divided."""
    config = QuantConfig(ignore=("*.q_proj", "lm_head"), smoothing=Smoothing(0.5))
    report = quantize_checkpoint(source, tmp_path / "out", config, [IDS])
    assert report.smoothed == 4
    before, after = state_of(source), state_of(tmp_path / "out")
    for name, x in before.items():
        if "layernorm" in name:
            same = torch.equal(x, after[name])
            assert same == ("input_layernorm" in name), name


@pytest.fixture
def without_transformers(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported any more; the source is there already."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    importing = builtins.__import__

    def refused(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
        return importing(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refused)
    monkeypatch.setitem(sys.modules, "transformers", None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_transformers")
def test_patterns_do_without_transformers(source: Path, tmp_path: Path) -> None:
    report = quantize_checkpoint(source, tmp_path / "out", QuantConfig(targets=("*_proj",)))
    assert len(report.layers) == 14 and report.floats is None
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["targets"] == list(report.layers)
    assert config["ignore"] == []
    wanted = quantize_model(llama(), QuantConfig(targets=("*_proj",)))
    assert_same_state(load_quantized(llama(), tmp_path / "out"), wanted)


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(
    "options", ["", "--target *_proj --scheme static --tokens {}/t", "--alpha 0.5 --text {}/t"]
)
def test_what_is_missing_is_named_with_one_line(
    options: str, source: Path, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "t").write_text("1 2 3\n")
    said = cli(f"quantize {source} -o {tmp_path}/out {options.format(tmp_path)}", code=2)
    assert "needs transformers, which is not installed" in said
    assert "pip install 'scaled-mm[transformers]'" in said


def test_a_model_that_transformers_does_not_know(source: Path, tmp_path: Path) -> None:
    path = source / "config.json"
    path.write_text(path.read_text().replace("LlamaForCausalLM", "AlpacaForCausalLM"))
    with pytest.raises(ValueError, match=r"must name one model of .*; or name the Linears \(targ"):
        quantize_checkpoint(source, tmp_path / "out")
    report = quantize_checkpoint(source, tmp_path / "out", QuantConfig(targets=("*_proj",)))
    assert len(report.layers) == 14


def test_the_command(source: Path, tmp_path: Path, cli: Cli) -> None:
    """Quantised, compared with the float folder, and loaded: no line of Python needed between."""
    text = tmp_path / "text"
    text.write_text("\n\n".join(SENTENCES) + "\n")
    options = "--scheme static-asymmetric --override *.down_proj=dynamic --alpha 0.5"
    printed = cli(f"quantize {source} -o {tmp_path}/out {options} --text", text)
    for line in (
        "2 layers: dynamic symmetric, per token, weights per channel",
        "12 layers: static asymmetric, per tensor, weights per channel",
        "74.2% of the parameters are quantised",
        "10 layers are smoothed, and the norms in front divided",
        "Linears that stay float: lm_head",
        "copied along: README.md, generation_config.json, tokenizer.json",
    ):
        assert line in printed
    assert "PASS" in cli(f"validate {tmp_path}/out --float {source} --text", text)
    ids = [torch.tensor([[WORDS[word] for word in line.split()]]) for line in SENTENCES]
    wanted = quantize_model(
        loaded(source),
        QuantConfig(
            "static-asymmetric", overrides=(("*.down_proj", "dynamic"),), smoothing=Smoothing(0.5)
        ),
        ids,
    )
    assert_same_state(load_quantized(loaded(source), tmp_path / "out"), wanted)


@pytest.mark.filterwarnings("ignore::scaled_mm.CalibrationWarning")
def test_token_files_and_json(source: Path, tmp_path: Path, cli: Cli) -> None:
    tokens = tmp_path / "tokens"
    lines = [" ".join(str(WORDS[word]) for word in line.split()) for line in SENTENCES]
    tokens.write_text("\n\n".join(lines))
    options = f"--scheme static --search --json --length 3 --tokens {tokens}"
    report = json.loads(cli(f"quantize {source} -o {tmp_path}/out {options}"))
    assert report["smoothed"] == 10 and len(report["layers"]) == 14
    command = f"validate {tmp_path}/out --float {source} --tokens {tokens}"
    assert "PASS" in cli(f"{command} --min-cosine 0.9")
    assert "got both" in cli(f"{command} --text {tokens}", code=2)
    said = "--tokens must come with a checkpoint, got minilm"
    assert said in cli("validate --tokens", tokens, code=2)
    ids = [torch.tensor([[int(id) for id in line.split()[:3]]]) for line in lines]
    search = Smoothing(search=tuple(i / 10 for i in range(11)))
    wanted = quantize_model(loaded(source), QuantConfig("static", smoothing=search), ids)
    got: Any = load_quantized(loaded(source), tmp_path / "out")
    name = "model.layers.0.mlp.up_proj"
    assert torch.equal(got.get_submodule(name).input_scale, wanted.get_submodule(name).input_scale)


OPTIONS: dict[str, Any] = {
    "--scheme must be one of dynamic, dynamic-asymmetric": "--scheme int4",
    "--override must be PATTERN=SCHEME, a scheme of dynamic": "--override x",
    "--override must be PATTERN=SCHEME": ["--override x=y", "--override =static"],
    "alpha must be in [0, 1], got 2": "--alpha 2",
    "--text must come with a static scheme": "--text TEXT",
    "--text or --tokens must be given with a static scheme": "--scheme static",
    "got both": "--alpha 0.5 --text TEXT --tokens TEXT",
    "line 1 must hold token ids below 128, got": "--alpha 0.5 --tokens TEXT",
    "token ids below 128, got 128": "--alpha 0.5 --tokens ABOVE",
    "token ids below 128, got -1": "--alpha 0.5 --tokens BELOW",
    "must hold a line of token ids or more": "--alpha 0.5 --tokens EMPTY",
    "must hold a line of text or more, got none": "--alpha 0.5 --text EMPTY",
    "No such file": "--alpha 0.5 --text NONE",
    "should be greater than or equal to 1": "--length 0",
    "--format must be one of int-quantized, pack": "--format x",
    "format must be int-quantized for ": "--format pack-quantized",
    "targets must ": "--target x",
}


@pytest.mark.parametrize(
    ("scheme", "format", "part"),
    [
        ("W4A8-channel", "int-quantized", "weight"),
        ("W4A8-channel", "pack-quantized", "weight_packed"),
        ("blocks", "blockwise_int8", "weight_scale_inv"),
    ],
)
def test_formats(
    scheme: str, format: str, part: str, source: Path, tmp_path: Path, cli: Cli
) -> None:
    cli(f"quantize {source} -o {tmp_path}/out --scheme {scheme} --format {format}")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert format in (config["quant_method"], config.get("format"))
    assert f"model.layers.0.mlp.up_proj.{part}" in Checkpoint(tmp_path / "out")
    load_quantized(loaded(source), tmp_path / "out")


@pytest.mark.parametrize(("said", "options"), rows(OPTIONS))
def test_options_that_are_refused(
    said: str, options: str, source: Path, tmp_path: Path, cli: Cli
) -> None:
    texts = {"TEXT": "words\n", "ABOVE": "1\n128", "BELOW": "-1", "EMPTY": " \n\n", "NONE": None}
    for file, text in texts.items():
        if text is not None:
            (tmp_path / file).write_text(text)
    given = [tmp_path / each if each in texts else each for each in options.split()]
    assert said in cli("quantize", source, "-o", tmp_path / "out", *given, code=2)
    assert not (tmp_path / "out").exists()


def test_folders_that_are_refused(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "empty").mkdir()
    for folder, said in (("empty", "has no .safetensors file"), ("none", "there is no such file")):
        assert said in cli(f"quantize {tmp_path}/{folder} -o {tmp_path}/out", code=2)
