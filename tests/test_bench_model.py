"""`scaled-mm bench --model`: its contenders compute the model, its tables, its picture."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli, extra

from scaled_mm.bench import model
from scaled_mm.bench.model import ModelSettings

TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
PHASES = ("decode", "prefill")
OURS = ("w8a8", "w8a16", "w4a16")
LEFT_OUT = ("w8a16", "w4a16", "torch dynamic", "torchao int8")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    extra("transformers")
    monkeypatch.setitem(model.MODELS, "tiny", TINY)
    monkeypatch.setitem(model.PROMPT, "cpu", 4)
    monkeypatch.setitem(model.BEHIND, "cpu", 5)
    monkeypatch.setattr(model, "STEPS", 3)


def result_of(settings: ModelSettings, *batches: int) -> dict[str, Any]:
    (*_, result) = model.growing(settings, batches)
    return result


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_every_contender_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made of the same weights; who cannot be made says why, and the others go on."""
    monkeypatch.setitem(model.MODES, "cpu", ("eager",))
    result = result_of(ModelSettings("tiny", layers=2, rounds=2), 1, 3)
    assert result["works"] == [f"{p} {b} eager" for p in ("decode", "prefill") for b in (1, 3)]
    rows = {row["name"]: row for row in result["models"]}
    assert list(rows) == ["bf16", *OURS, "torch dynamic", "torchao int8"]
    for name in ("bf16", *OURS, "torch dynamic"):
        row = rows[name]
        assert row["verdict"] == ""
        assert set(row["ms"]) == set(row["over"]) == set(result["works"])
        assert min(row["ms"].values()) > 0 and row["step"] == {}
        assert row["error"] <= {"bf16": 0, "w8a16": 0.02, "w4a16": 0.2}.get(name, 0.06)
    linears = 2 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 256)  # elements
    rest = rows["bf16"]["gigabytes"] * 1e9 - 2 * linears
    for name, bytes_each in (("w8a8", 1), ("w8a16", 1), ("w4a16", 0.5)):
        own = rows[name]["gigabytes"] * 1e9 - rest
        # Scales, and columns that are padded to whole tiles.
        assert bytes_each * linears < own < 1.2 * bytes_each * linears, name
    assert rows["torch dynamic"]["gigabytes"] * 1e9 > linears
    if "not installed" in rows["torchao int8"]["verdict"]:
        assert rows["torchao int8"]["ms"] == {}


def test_names_are_the_models_that_they_say() -> None:
    """By the parameters that they have as published; the smallest one's head is its embedding."""
    published = {
        "llama-3.2-1b": 1_235_814_400 + 128_256 * 2048,
        "llama-3-8b": 8_030_261_248,
        "llama-3-70b": 70_553_706_496,
    }
    for name, count in published.items():
        made = model.model_of(ModelSettings(name, device="meta"))
        assert sum(x.numel() for x in made.parameters()) == count, name


def test_folders(tmp_path: Path) -> None:
    """Weights that are there are read; with a config alone they are random, but the same."""
    transformers = extra("transformers")
    config = transformers.LlamaConfig(**TINY)
    config.save_pretrained(tmp_path)
    first, second = (model.model_of(ModelSettings(str(tmp_path))).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(7)
    saved = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    saved.save_pretrained(tmp_path)
    read = model.model_of(ModelSettings(str(tmp_path))).state_dict()
    assert all(torch.equal(read[name], x) for name, x in saved.state_dict().items())
    assert not torch.equal(read["lm_head.weight"], first["lm_head.weight"])


@pytest.mark.filterwarnings("ignore")
def test_command(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager and compiled; the JSON alone gives the table again."""
    compile_with = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda m, **given: compile_with(m, backend="aot_eager", dynamic=False)
    )
    path, picture = tmp_path / "model.json", tmp_path / "model.svg"
    skipped = [x for name in LEFT_OUT for x in ("--without", name)]
    asked = "bench --model tiny --layers 1 --m 2 --rounds 1"
    shown = cli(asked, *skipped, "--json", path, "--png", picture)
    assert "tiny, 1 layers, decode, a token" in shown
    result = json.loads(path.read_text())
    assert result["works"] == [f"{p} 2 {m}" for m in ("eager", "compiled") for p in PHASES]
    assert all(set(row["ms"]) == set(result["works"]) for row in result["models"])
    assert "<svg" in picture.read_text()
    assert "decode" in cli("bench --read", path)
