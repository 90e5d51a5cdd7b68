"""`scaled-mm quantize --search`: one table, the front marked, nothing written."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from helpers import Cli, extra
from llamas import llama

from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm_cli.commands.search import Trial, _sorted

transformers = extra("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    llama(torch.float32).save_pretrained(tmp_path / "float")
    ids = torch.arange(96).view(6, 16) * 5 % 128
    (tmp_path / "ids").write_text("\n".join(" ".join(map(str, row)) for row in ids.tolist()))
    return tmp_path


def test_the_front() -> None:
    """Sorted by error; what is worse in everything, or equal but in one thing, is not on it."""
    sizes = {"a": (1, 5, 5), "b": (2, 4, 5), "c": (2, 5, 6), "d": (1, 5, 6), "e": (9, 9, 1)}
    made = _sorted([Trial("", name, error, None, n, ms) for name, (error, n, ms) in sizes.items()])
    assert [x.command for x in made] == ["a", "d", "b", "c", "e"]
    assert {x.command for x in made if x.front} == {"a", "b", "e"}


def test_a_language_model(folder: Path, cli: Cli) -> None:
    command = f"quantize {folder}/float --search --tokens {folder}/ids"
    found = json.loads(cli(command, "--json"))
    trials = found["trials"]
    assert found["sequences"] == 3 and {path.name for path in folder.iterdir()} == {"float", "ids"}
    assert [x["error"] for x in trials] == sorted(x["error"] for x in trials)
    assert any(x["front"] for x in trials) and not all(x["front"] for x in trials)
    # 48 columns: no whole group of 32 or more
    assert {x.split()[1] for x in found["refused"]} == {
        f"w4a16-g{size}" for size in ("128", "64", "32", "32-asymmetric")
    }
    assert len(trials) == 4 * 4 + 2 and min(x["bytes"] for x in trials) > 0
    rotated = next(x for x in trials if "static --alpha 0.5 --rotate" in x["command"])
    words = shlex.split(rotated["command"].replace(" OUT ", f" {folder}/out "))
    assert words[0] == "scaled-mm" and cli("", *words[1:])
    files = Checkpoint(folder / "out")
    tensors = sum(files.entry(name).nbytes for name in files.where)
    assert tensors == pytest.approx(rotated["bytes"], rel=0.05)
    printed = cli(command)
    assert f"float: perplexity {found['float_perplexity']:.3f}" in printed
    assert "not tried: --scheme w4a16-g128: " in printed
    assert all(x["options"] in " ".join(printed.split()) for x in trials)
    assert "so the first is made: scaled-mm quantize" in printed


def test_a_model_without_logits(folder: Path, cli: Cli) -> None:
    config = folder / "float" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaModel"))
    found = json.loads(cli(f"quantize {folder}/float --search --tokens {folder}/ids --json"))
    assert found["float_perplexity"] is None
    assert all(0 < x["error"] < 1 and x["perplexity"] is None for x in found["trials"])
    assert any("--rotate" in options for options in found["refused"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "--out must be given, or --search alone, got neither"),
        ("--search", "--text or --tokens must be given with"),
        ("--search --rotate", "--rotate must come with --out: without it, --search tries"),
        ("--search --tokens {}/one", "--search must have 2 sequences or more, got 1"),
    ],
)
def test_refused(options: str, said: str, folder: Path, cli: Cli) -> None:
    (folder / "one").write_text("1 2 3")
    assert said in cli(f"quantize {folder}/float {options.format(folder)}", code=2)
