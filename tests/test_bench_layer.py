"""`scaled-mm bench --layer`: its layers compute the same, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scaled_mm.bench import layer, table
from scaled_mm_cli.main import main

TINY = {
    "tiny-llama": layer.Shape(64, 96, 64, 128),
    "tiny-bert": layer.Shape(64, 192, 64, 128, llama=False),
}
COMPILED = tuple(c.name for c in layer.CONTENDERS if c.compiled)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in TINY.items():
        monkeypatch.setitem(layer.LAYERS, name, shape)


def result_of(name: str) -> dict[str, Any]:
    settings = layer.LayerSettings(name, rounds=1, without=COMPILED)
    (*_, result) = layer.growing(settings, [3, 5])
    return result


@pytest.mark.parametrize("name", TINY)
def test_every_contender_computes_the_layer(name: str) -> None:
    for measured in result_of(name)["layers"]:
        for row in measured["rows"]:
            assert row["verdict"] == ""
            assert row["microseconds"] > 0
            bound = {"float32": 1e-6, "bf16": 0.01, "ours": 0.04, "torch.ao": 0.06}[row["name"]]
            assert row["error"] <= bound


@pytest.mark.parametrize("name", TINY)
@pytest.mark.filterwarnings("ignore")
def test_ours_compiles_to_the_same_bits(name: str) -> None:
    torch._dynamo.reset()
    shape = layer.LAYERS[name]
    made, norms = layer.values(shape, "cpu")
    weights = {name: layer.our_weight(w) for name, w in made.items()} | norms
    run = layer.our_llama if shape.llama else layer.our_bert
    given = layer.tokens(shape, 4, "cpu")
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        outputs = zip(compiled(shape, weights, *given), run(shape, weights, *given), strict=True)
        assert all(torch.equal(x, y) for x, y in outputs)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = tmp_path / "layer.json", tmp_path / "layer.md"
    options = [x for name in COMPILED for x in ("--without", name)]
    files = ["--json", str(path), "--markdown", str(text)]
    asked = ["bench", "--layer", "tiny-llama", "--m", "2", "--rounds", "1"]
    assert main([*asked, *options, *files]) == 0
    assert "ours" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert [m["m"] for m in result["layers"]] == [2]
    assert table.markdown(result) == text.read_text()
    assert "- ours: int8 per token" in text.read_text()
    assert main(["bench", "--read", str(path)]) == 0
    assert "tiny-llama" in capsys.readouterr().out
