"""`scaled-mm bench --grouped`: its contenders compute the same block, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scaled_mm.bench import grouped, grouped_contenders, table
from scaled_mm.bench.grouped_contenders import Block, Stacks
from scaled_mm_cli.main import main

TINY = {"wide": Block(4, 2, 256, 512), "many": Block(20, 3, 192, 128)}
BOUNDS = {"ours": 0.03, "bf16 compiled": 0.01, "bf16 loop": 0.01}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, block in TINY.items():
        monkeypatch.setitem(grouped.BLOCKS, name, block)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def result_of(*blocks: str) -> dict[str, Any]:
    (*_, result) = grouped.growing(grouped.GroupedSettings(blocks, rounds=1), [1, 30])
    return result


def test_every_contender_computes_the_block() -> None:
    cases = result_of(*TINY)["blocks"]
    assert [(case["block"], case["tokens"]) for case in cases] == [
        (name, count) for name in TINY for count in (1, 30)
    ]
    for case in cases:
        assert {row["name"] for row in case["rows"]} == BOUNDS.keys()
        for row in case["rows"]:
            assert row["verdict"] == "" and row["microseconds"] > 0
            assert row["error"] <= BOUNDS[row["name"]]
    assert cases[0]["hit"] == 2 and 3 <= cases[1]["hit"] <= 4
    assert cases[0]["weight_bytes"] == 2 * 3 * 64 * 128


def test_sums_of_all_tokens() -> None:
    """The comparison looks at the first tokens: here at all."""
    block = TINY["many"]
    stacks, tokens = Stacks(block, "cpu"), grouped.drawn(block, grouped.JUDGED, "cpu", 1)
    exact = stacks.exact(tokens)
    for contender in grouped_contenders.CONTENDERS:
        if "cpu" in contender.devices:
            off = (contender.prepare(stacks)(tokens).float() - exact).norm(dim=-1)
            assert (off <= 2 * BOUNDS[contender.name] * exact.norm(dim=-1)).all()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = tmp_path / "grouped.json", tmp_path / "grouped.md"
    files = ["--json", str(path), "--markdown", str(text)]
    asked = ["bench", "--grouped", "many", "--m", "2", "--rounds", "1", "--without", "bf16 loop"]
    assert main([*asked, *files]) == 0
    assert "best other / ours" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert [case["tokens"] for case in result["blocks"]] == [2]
    assert table.markdown(result) == text.read_text()
    assert "- ours: int8 per token" in text.read_text()
    assert main(["bench", "--read", str(path)]) == 0
