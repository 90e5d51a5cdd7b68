"""`scaled-mm bench --endings`: its ways compute the same, its table and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import extra

from scaled_mm.bench import endings, table
from scaled_mm.bench.clocks import CpuClock
from scaled_mm_cli.main import main


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile makes is torch's to test."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


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


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra("matplotlib")
    path, text, png = tmp_path / "endings.json", tmp_path / "endings.md", tmp_path / "endings.svg"
    files = ["--json", str(path), "--markdown", str(text), "--png", str(png)]
    asked = ["bench", "--endings", "--weight", "32x64", "--m", "2", "--m", "3", "--rounds", "1"]
    assert main([*asked, *files]) == 0
    assert "gelu_tanh" in capsys.readouterr().out
    assert "M=3" in png.read_text()
    result = json.loads(path.read_text())
    assert [(c["m"], c["n"], c["k"]) for c in result["endings"]] == [(2, 32, 64), (3, 32, 64)]
    assert all(us > 0 for c in result["endings"] for own in c["us"].values() for us in own.values())
    assert table.markdown(result) == text.read_text()
    assert main(["bench", "--read", str(path)]) == 0


OWN = """
import torch
from scaled_mm import epilogue as ep

@ep.epilogue
def own(acc: ep.Acc, s: ep.Scalar, c: ep.Row, z: ep.Col[torch.int32], r: ep.Full):
    gate, value = ep.pairs(s * (c * ep.to_float(acc - z)))
    return ep.relu(gate) * value + r
"""


def test_an_epilogue_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, result = tmp_path / "own.py", tmp_path / "own.json"
    file.write_text(OWN)
    asked = ["bench", "--endings", "--weight", "32x64", "--m", "3", "--rounds", "1"]
    assert main([*asked, "--epilogue", f"{file}:own", "--json", str(result)]) == 0
    (case,) = json.loads(result.read_text())["endings"]
    assert list(case["us"]) == ["plain", "own"] and case["us"]["own"][endings.WAYS[0]] > 0
    assert "own" in capsys.readouterr().out
    assert main([*asked, "--epilogue", f"{file}:ep"]) == 2
    assert f"--epilogue must name an epilogue of {file}, got ep" in capsys.readouterr().err
