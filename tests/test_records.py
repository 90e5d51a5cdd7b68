"""The figures that runs on a GPU leave in docs/reliability.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import sanitizers
import soak_calls
import soak_cuda
import torch

SOAK = {
    "device": "A GPU",
    "torch": "2.11.0",
    "kernels": 21,
    "products": {
        "scaled_mm": {"calls": 15997, "elements": 10, "different": 2},
        "quantize_int8": {"calls": 3, "elements": 4, "different": 1},
        "digest": "5fe3",
        "seconds": 56,
    },
    "memory": {"calls": 7, "failures": 9, "wrong": 0, "seconds": 1},
    "devices": {"left out": "there is one GPU", "seconds": 0},
}


def test_soak() -> None:
    lines = soak_cuda.table(SOAK).splitlines()
    assert lines[0] == "On an A GPU, torch 2.11.0, 21 int8 kernels:"
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert rows["products"] == "| `products` | seconds 56, calls 16,000, elements 14 | 3 |"
    assert rows["memory"] == "| `memory` | calls 7, failures 9, seconds 1 | 0 |"
    assert rows["streams"] == "| `streams` | not run |  |"
    assert rows["devices"] == "| `devices` | not run |  |"


def test_parts_of_one_file(tmp_path: Path) -> None:
    head = {name: SOAK[name] for name in ("device", "torch", "kernels")}
    file = tmp_path / "soak.json"
    assert soak_cuda.of_before(None, head) == soak_cuda.of_before(file, head) == {}
    file.write_text(json.dumps(SOAK))
    assert soak_cuda.of_before(file, head) == SOAK
    assert soak_cuda.of_before(file, {**head, "kernels": 22}) == {}


def outcome(tool: str, word: str, rows: list[str], results: int) -> dict[str, object]:
    piece = {"tool": tool, "part": "int8", "rows": rows}
    return {"piece": piece, "word": word, "results": results, "seconds": 1, "said": ""}


def test_sanitizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [
        outcome("memcheck", "clean", ["a", "b"], 1000),
        outcome("memcheck", "complains", ["c"], 500),
        outcome("initcheck", "did not end", ["d"], 0),
    ]
    report = {"device": "A GPU", "count": 6, "outcomes": outcomes}
    file, document = tmp_path / "report.json", tmp_path / "document.md"
    file.write_text(json.dumps(report))
    document.write_text(f"before\n{sanitizers.BEGIN}\nold\n{sanitizers.END}\nafter\n")
    arguments = ["sanitizers.py", "--json", str(file), "--record", str(document)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert sanitizers.main() == 0
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "| memcheck | 2 | 2 | 1,000 | 1 | 0 |" in text
    assert "| initcheck | 1 | 0 | 0 | 0 | 1 |" in text


@pytest.mark.parametrize("name", [*soak_calls.KINDS, soak_calls.LAST[0]])
def test_calls_of_the_soak_are_calls_of_today(name: str) -> None:
    """They go to ops whose signatures may change, and the soak itself runs on GPUs alone."""
    makers = {kind: make for kind, (_, make) in soak_calls.KINDS.items()} | dict([soak_calls.LAST])
    for seed in range(3):
        operands, op = makers[name](np.random.default_rng(seed))
        made = op(**operands)
        assert (made if isinstance(made, torch.Tensor) else made[0]).numel() > 0
