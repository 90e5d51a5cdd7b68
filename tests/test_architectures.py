"""Architectures: quantised, run, saved both ways, loaded both ways, with the same bits."""

import ast
import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, SHAPES, inputs, output, page, skipped, tiny
from helpers import Cli, assert_bits, extra
from torch import nn

from scaled_mm import (
    QuantConfig,
    WeightScheme,
    load_quantized,
    quantization_report,
    quantize_model,
    save_quantized,
)
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.quantization.layers import _READERS
from scaled_mm.validate import validate
from scaled_mm_cli.main import main

transformers = extra("transformers")
SCHEMES: dict[str, Any] = {
    "W8A8": "dynamic",
    "W8A8 static": "static",
    "W8A16": WeightScheme(8),
    "W4A16": WeightScheme(4, 32),
}
PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
pytestmark = pytest.mark.usefixtures("ours")
FEW = ("LlamaForCausalLM", "BertForMaskedLM", "ViTForImageClassification", "GPTNeoXForCausalLM")


def config_of(name: str, scheme: Any) -> QuantConfig:
    """Without the layers that cannot be quantised, beside those left out by default."""
    return QuantConfig(scheme, ignore=(*QuantConfig().ignore, *skipped(name)))


def check(name: str, scheme: Any) -> None:
    """Raises where anything of an architecture is not as it must be."""
    model = tiny(name)
    for each in model.parameters():  # biases and norms that are not 0 and 1
        if each.requires_grad:  # no table of sines
            each.data += torch.randn_like(each) / 50
    given = [inputs(model, mask) for mask in (False, True)]
    batches = given[:1] if scheme == "static" else None
    quantised = quantize_model(model, config_of(name, scheme), batches)
    expected = [output(quantised, each) for each in given]
    assert not torch.equal(expected[0], output(model, given[0]))
    with tempfile.TemporaryDirectory() as made:
        folders = Path(made, "a"), Path(made, "b")
        copy.deepcopy(quantised).save_pretrained(folders[0])
        save_quantized(quantised, folders[1])
        for folder in folders:
            loaded: list[Any] = [type(model).from_pretrained(folder)]
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
    batches = [x] if "static" in scheme else None
    quantised = quantize_model(model, config_of(name, SCHEMES[scheme]), batches)
    save_quantized(quantised, tmp_path / "out")
    assert_bits(load_quantized(SHAPES[name]().eval(), tmp_path / "out")(x), quantised(x))


_RENAMED = """BeitForImageClassification DeiTForImageClassification Dinov2ForImageClassification
SwinForImageClassification SegformerForImageClassification EsmForMaskedLM GPTNeoXForCausalLM
MixtralForCausalLM MarianMTModel T5ForConditionalGeneration"""
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in _RENAMED.split()]


@pytest.mark.parametrize("scheme", ["W8A8", "W8A8 static"])
@pytest.mark.parametrize("name", ["ViTForImageClassification", *SLOW])
def test_quantize_follows_the_names(name: str, scheme: str, tmp_path: Path) -> None:
    """Files of which transformers changes the names, and validation reads what was written."""
    model = tiny(name)
    model.save_pretrained(tmp_path / "float")
    given = inputs(model, mask=True)
    config = config_of(name, SCHEMES[scheme])
    report = quantize_checkpoint(tmp_path / "float", tmp_path / "out", config, [given])
    expected = output(quantize_model(model, config, [given] if "static" in scheme else None), given)
    for loaded in (
        type(model).from_pretrained(tmp_path / "out"),
        load_quantized(tiny(name), tmp_path / "out"),
    ):
        assert_bits(output(loaded, given), expected)
    assert len(validate(model, tmp_path / "out", [given]).layers) == len(report.layers)
    assert not any("experts" in other for other in report.others)


def test_the_page_is_of_this_list() -> None:
    """docs/architectures.md: `python tests/architectures.py` writes it."""
    assert PAGE.read_text() == page()


IN_TRAINING = re.compile(r".*Mixer\.(out|x)_proj|GraniteMoeHybridMambaLayer\.out_proj|Bloom.*")
"""Weights that are read in training, or by a slower path of Bloom: their copies serve."""


def read_weights(source: str) -> set[str]:
    """Class.name of the Linears whose weight the methods of their class read, beside its dtype."""
    found = set()
    for cls in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        made = (n for n in ast.walk(cls) if isinstance(n, ast.Assign))
        linears = {ast.unparse(n.targets[0]) for n in made if "nn.Linear(" in ast.unparse(n.value)}
        methods = (n for n in cls.body if isinstance(n, ast.FunctionDef) and "init" not in n.name)
        for text in map(ast.unparse, methods):
            read = re.findall(r"(self\.\w+)\.weight\b(?!\.(?:dtype|device|shape))", text)
            found |= {f"{cls.name}.{name[5:]}" for name in linears & set(read)}
    return found


def test_readers_of_weights_are_known() -> None:
    models = Path(transformers.__file__).parent / "models"
    read = [read_weights(path.read_text()) for path in models.glob("*/modeling_*.py")]
    names = {name for each in read for name in each if not IN_TRAINING.fullmatch(name)}
    assert len(names) > 40
    assert {name for name in names if not _READERS.fullmatch(name)} == set()


@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_a_weight_that_its_owner_reads_stays_float(scheme: Any) -> None:
    model = tiny("T5ForConditionalGeneration")
    batch = [inputs(model, mask=False)] if scheme == "static" else None
    report = quantization_report(quantize_model(model, QuantConfig(scheme), batch))
    why = {x.name: x.why for x in report.floats if x.name.endswith(".wo.weight")}
    assert len(why) == 4 and set(why.values()) == {"T5DenseActDense reads its weight itself"}


def test_conv1d_has_no_place_in_a_checkpoint(tmp_path: Path) -> None:
    tiny("GPT2LMHeadModel").save_pretrained(tmp_path / "float")
    with pytest.raises(ValueError, match=r"got transformer\.h\.0\.attn\.c_attn, a Conv1D: "):
        quantize_checkpoint(tmp_path / "float", tmp_path / "out")


def test_an_encoder_with_a_decoder_by_the_commands(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny("T5ForConditionalGeneration").save_pretrained(tmp_path / "float")
    tokens = tmp_path / "tokens"
    tokens.write_text("5 6 7 8 9 10 11\n12 13 14 15\n")
    folders = [str(tmp_path / name) for name in ("float", "out")]
    given = ["--tokens", str(tokens)]
    cli("quantize --scheme static", folders[0], "--out", folders[1], *given)
    assert main(["validate", folders[1], "--float", folders[0], *given, "--json"]) in (0, 1)
    assert "decoder.block.0.layer.1.EncDecAttention.k" in capsys.readouterr().out


def test_quantize_tells_which_matrices_stay_float(tmp_path: Path, cli: Cli) -> None:
    tiny("GptOssForCausalLM").save_pretrained(tmp_path / "float")
    said = " ".join(cli(f"quantize {tmp_path}/float --out {tmp_path}/out").split())
    assert "stay float, stacked in the files, which quantize_model takes" in said
    assert "model.layers.1.mlp.experts.down_proj" in said
