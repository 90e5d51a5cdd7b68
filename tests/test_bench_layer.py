"""`scaled-mm bench --layer`, `--grouped` and `--endings`: contenders compute the same; tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli, extra

from scaled_mm.bench import endings, grouped, layer
from scaled_mm.bench.clocks import CpuClock
from scaled_mm.bench.grouped_contenders import Block

LAYERS = {
    "tiny-llama": layer.Shape(64, 96, 64, 128),
    "tiny-bert": layer.Shape(64, 192, 64, 128, llama=False),
}
BLOCKS = {"wide": Block(4, 2, 256, 512), "many": Block(20, 3, 192, 128)}
COMPILED = tuple(c.name for c in layer.CONTENDERS if c.compiled)
WITHOUT = [x for name in COMPILED for x in ("--without", name)]
OURS = {"ours": 0.04, "ours gated": 0.04}
LAYER_BOUNDS = {"float32": 1e-6, "bf16": 0.01, "torch.ao": 0.06, **OURS}
BOUNDS = {"ours": 0.03, "bf16 compiled": 0.01, "bf16 loop": 0.01}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for known, own in ((layer.LAYERS, LAYERS), (grouped.BLOCKS, BLOCKS)):
        for name, shape in own.items():
            monkeypatch.setitem(known, name, shape)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile makes is torch's to test."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("name", LAYERS)
def test_every_contender_computes_the_layer(name: str) -> None:
    settings = layer.LayerSettings(name, rounds=1, without=COMPILED)
    (*_, result) = layer.growing(settings, [3, 5])
    for measured in result["layers"]:
        for row in measured["rows"]:
            assert row["verdict"] == ""
            assert row["microseconds"] > 0
            assert row["error"] <= LAYER_BOUNDS[row["name"]]


@pytest.mark.usefixtures("uncompiled")
def test_every_contender_computes_the_block() -> None:
    settings = grouped.GroupedSettings(tuple(BLOCKS), rounds=1)
    (*_, result) = grouped.growing(settings, [1, 30])
    cases = result["blocks"]
    assert [(case["block"], case["tokens"]) for case in cases] == [
        (name, count) for name in BLOCKS for count in (1, 30)
    ]
    for case in cases:
        assert {row["name"] for row in case["rows"]} == BOUNDS.keys()
        for row in case["rows"]:
            assert row["verdict"] == "" and row["microseconds"] > 0
            assert row["error"] <= BOUNDS[row["name"]]
    assert cases[0]["hit"] == 2 and 3 <= cases[1]["hit"] <= 4
    assert cases[0]["weight_bytes"] == 2 * 3 * 64 * 128


@pytest.mark.usefixtures("uncompiled")
def test_every_way_computes_the_ending() -> None:
    ways = endings.contenders(9, 64, 96, "cpu", CpuClock())
    names = dict.fromkeys(name for name, _ in ways)
    assert len(names) == 11
    for name in names:
        own = {way: ways[name, way][0]().float() for way in endings.WAYS if (name, way) in ways}
        expected = own.pop("in the product")
        if name == "swiglu to int8":  # the kernel is given halves, not pairs
            assert own.pop("two kernels").shape == expected.shape
        for way, got in own.items():
            # The product rounds once; a kernel behind it takes bfloat16. Int8 steps are whole.
            atol = 2 if "int8" in name else 0.02 * float(expected.abs().max())
            assert (got - expected).abs().max() <= atol, (name, way)


COMMANDS: dict[str, tuple[list[str], str, Any]] = {
    # what is asked for, what is shown, and sizes
    "layers": (["--layer", "tiny-llama", *WITHOUT], "tiny-llama", [2]),
    "blocks": (["--grouped", "many", "--without", "bf16 loop"], "best other / ours", [2]),
    "endings": (["--endings", "--weight", "32x64", "--m", "3"], "gelu_tanh", [2, 3]),
}


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", COMMANDS)
def test_command(kind: str, tmp_path: Path, cli: Cli) -> None:
    """The JSON alone gives the tables again."""
    extra("matplotlib")
    asked, shown, sizes = COMMANDS[kind]
    path, png = tmp_path / "x.json", tmp_path / "x.svg"
    files = ["--json", path, *(["--png", png] if kind == "endings" else [])]
    assert shown in cli("bench --m 2 --rounds 1", *asked, *files)
    result = json.loads(path.read_text())
    assert sorted(case["tokens" if kind == "blocks" else "m"] for case in result[kind]) == sizes
    assert kind != "endings" or "M=3" in png.read_text()
    assert shown in cli("bench --read", path)


OWN = """
import torch
from scaled_mm import epilogue as ep

@ep.epilogue
def own(acc: ep.Acc, s: ep.Scalar, c: ep.Row, z: ep.Col[torch.int32], r: ep.Full):
    gate, value = ep.pairs(s * (c * ep.to_float(acc - z)))
    return ep.relu(gate) * value + r
"""


@pytest.mark.usefixtures("uncompiled")
def test_an_epilogue_of_ones_own(tmp_path: Path, cli: Cli) -> None:
    file, result = tmp_path / "own.py", tmp_path / "own.json"
    file.write_text(OWN)
    asked = "bench --endings --weight 32x64 --m 3 --rounds 1 --epilogue"
    assert "own" in cli(asked, f"{file}:own", "--json", result)
    (case,) = json.loads(result.read_text())["endings"]
    assert list(case["us"]) == ["plain", "own"] and case["us"]["own"][endings.WAYS[0]] > 0
    said = f"--epilogue must name an epilogue of {file}, got ep"
    assert said in cli(asked, f"{file}:ep", code=2)
