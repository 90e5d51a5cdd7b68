"""What quantising leaves behind when it goes wrong: interrupted runs, others' folders and files."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Model, files_of, write
from helpers import assert_bits, extra, rows, run_python
from llamas import IDS, llama
from safetensors.torch import load_file, save_file
from test_cli_quantize import loaded, written
from test_outputs import KILLED
from test_save_quantized import CONFIGS
from torch import Tensor

from scaled_mm import QuantConfig, Rotation, Smoothing, load_quantized, quantize_model
from scaled_mm.checkpoint import calibrating, quantize_checkpoint, quantizing
from scaled_mm.checkpoint.calibrating import CALIBRATION

extra("compressed_tensors")
transformers = extra("transformers")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "float")


class Stopped(Exception):
    pass


def stop_after(shards: int) -> Callable[[int, int], None]:
    """Stops when so many shards have their name."""
    done = [0]

    def progressed(count: int, total: int) -> None:
        done[0] += count
        if done[0] > total * shards / 3:
            raise Stopped

    return progressed


@pytest.mark.parametrize("name", ["dynamic", "smoothed"])
def test_an_interrupted_run_is_taken_up(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = CONFIGS[name], tmp_path / "out"
    quantize_checkpoint(source, tmp_path / "whole", config, [IDS])
    with pytest.raises(Stopped):
        quantize_checkpoint(source, out, config, [IDS], stop_after(2))
    assert len(list(out.glob("model-*.safetensors"))) in (1, 2)
    assert not (out / "config.json").exists() and not list(out.glob(".*"))
    assert (out / CALIBRATION).exists() == (name == "smoothed")
    # What was calibrated is kept: another calibration might round another way.
    monkeypatch.setattr(quantizing, "calibrate", None)
    report = quantize_checkpoint(source, out, config, [IDS])
    assert 0 < sum(shard.skipped for shard in report.shards) < 3
    assert files_of(out) == files_of(tmp_path / "whole")
    again = quantize_checkpoint(source, out, config, [IDS])
    assert all(shard.skipped for shard in again.shards)
    assert again.smoothed == (None if name == "smoothed" else 0)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_shard_that_was_cut_is_written_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize_checkpoint(source, out)
    before = files_of(out)
    second, third = sorted(out.glob("model-*.safetensors"))[1:]
    second.unlink()
    third.write_bytes(third.read_bytes()[:-1])
    report = quantize_checkpoint(source, out)
    assert [shard.skipped for shard in report.shards] == [True, False, False]
    assert files_of(out) == before
    for damaged in (b"", before[third.name][:20], b"x" * 100):
        third.write_bytes(damaged)  # whose it was cannot be told any more
        with pytest.raises(ValueError, match=r"was made with other settings or of other files"):
            quantize_checkpoint(source, out)
        assert third.read_bytes() == damaged


PRECOMPUTE = "from scaled_mm.precompute import precompute\n"
QUANTIZE = """
import torch
from scaled_mm import QuantConfig
from scaled_mm.checkpoint import quantize_checkpoint

sys.modules["transformers"] = None  # the patterns say it all, and this is quicker
torch.set_num_threads(1)  # no thread of the parent is there in a child

def precompute(source, out):
    quantize_checkpoint(source, out, QuantConfig(targets=("up", "down")))
"""


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_write(tmp_path: Path, apart: int) -> None:
    """What has its name is whole, config.json comes last, and the next run finishes the folder; in
    `make test` of each third point."""
    write(tmp_path / "in", Model().state_dict(), None, 3)
    (tmp_path / "in" / "config.json").write_text("{}")
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    script = KILLED.replace(PRECOMPUTE, QUANTIZE)
    folders = [str(tmp_path / name) for name in ("in", "out", "whole")]
    points = run_python(script, str(apart), *folders)
    # A write, two syncs and a rename for each of: manifest, three shards, index, config, tokenizer.
    assert int(points) > 4 * 7


def changed(source: Path) -> Path:
    path = sorted(source.glob("*.safetensors"))[0]
    save_file({name: x + 1 for name, x in load_file(path).items()}, path, {"format": "pt"})
    return source


OTHERS: dict[str, Callable[[Path], tuple[Any, ...]]] = {  # what another run is made of
    "batches": lambda source: (source, CONFIGS["static"], [IDS + 1]),
    "scheme": lambda source: (source, CONFIGS["static-asymmetric"], [IDS]),
    "layers": lambda source: (source, QuantConfig("static", ignore=("*.o_proj",)), [IDS]),
    "weights": lambda source: (changed(source), CONFIGS["static"], [IDS]),
    "source": lambda source: (
        shutil.copytree(source, source.with_name("copy")),
        *(CONFIGS["static"], [IDS]),
    ),
}


@pytest.mark.parametrize("stage", ["finished", "interrupted", "calibrated"])
@pytest.mark.parametrize("other", OTHERS)
def test_nothing_of_another_run_is_mixed_in(
    other: str, stage: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if stage == "finished":
        quantize_checkpoint(source, out, CONFIGS["static"], [IDS])
    else:
        with pytest.raises(Stopped):
            shards = {"interrupted": 2, "calibrated": 0}[stage]
            quantize_checkpoint(source, out, CONFIGS["static"], [IDS], stop_after(shards))
    before = files_of(out)
    assert any(name.startswith("model-") for name in before) == (stage != "calibrated")
    source, *given = OTHERS[other](source)
    with pytest.raises(ValueError, match="name another folder"):
        quantize_checkpoint(source, out, *given)
    assert files_of(out) == before


def test_somebody_elses_folder_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for folder in (out, source):
        before = files_of(folder)
        with pytest.raises(ValueError, match=r"must be new, empty or of an|must not be the"):
            quantize_checkpoint(source, folder)
        assert files_of(folder) == before


def test_layers_without_a_weight_of_their_own(source: Path, tmp_path: Path) -> None:
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    with pytest.raises(ValueError, match=r"lm_head.weight is tied to another tensor: leave it out"):
        quantize_checkpoint(tmp_path / "tied", tmp_path / "out", QuantConfig(ignore=()))
    report = quantize_checkpoint(tmp_path / "tied", tmp_path / "out")
    assert len(report.layers) == 14
    model: Any = load_quantized(loaded(tmp_path / "tied"), tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert_bits(model(IDS).logits, quantize_model(loaded(tmp_path / "tied"))(IDS).logits, "tied")


def _change(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    for path in folder.glob("*.safetensors"):
        state = load_file(path)
        change(state)
        save_file(state, path, {"format": "pt"})
    where = {name: path.name for path in folder.glob("*.safetensors") for name in load_file(path)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))


def _replace(name: str, value: Tensor | None) -> Callable[[dict[str, Tensor]], None]:
    def change(state: dict[str, Tensor]) -> None:
        if name in state:
            state.pop(name)
            if value is not None:
                state[name] = value

    return change


def _add(beside: str, name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(state: dict[str, Tensor]) -> None:
        if beside in state:
            state[name] = torch.ones(1)

    return change


Q = "model.layers.0.self_attn.q_proj"
FILES: dict[str, Any] = {
    rf"has no {Q}.weight, which LlamaForCausalLM has": _replace(f"{Q}.weight", None),
    r"\[48, 48\], got F32 \[4, 48\]": _replace(f"{Q}.weight", torch.ones(4, 48)),
    r"q_proj.weight must be F32 or BF16 or F16 of shape \[48, 48\], got I32": _replace(
        f"{Q}.weight", torch.ones(48, 48, dtype=torch.int32)
    ),
    r"q_proj.weight_scale already, without": _add(f"{Q}.weight", f"{Q}.weight_scale"),
}


@pytest.mark.parametrize(("said", "change"), rows(FILES))
def test_files_that_are_refused(said: str, change: Any, source: Path, tmp_path: Path) -> None:
    _change(source, change)
    with pytest.raises(ValueError, match=said):
        quantize_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_else_is_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"^targets must .*model.embed_tokens"):
        quantize_checkpoint(source, out, QuantConfig(targets=("model.embed_tokens",)))
    for config in (QuantConfig("static"), QuantConfig(rotation=Rotation())):
        with pytest.raises(ValueError, match="batches must be given for a static scheme, smooth"):
            quantize_checkpoint(source, out, config)
    assert not out.exists()
    quantize_checkpoint(source, out)
    with pytest.raises(ValueError, match="is quantised already"):
        quantize_checkpoint(out, tmp_path / "twice")


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan")])
def test_a_scale_that_is_none(
    scale: float, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrating, "input_scale", lambda *_: (torch.tensor([scale]), None))
    said = r"^model\.layers\.0\.\S+\.input_scale must be positive and finite, got tensor"
    with pytest.raises(ValueError, match=said):
        quantize_checkpoint(source, tmp_path / "out", CONFIGS["static"], [IDS])
    assert not list(tmp_path.glob("out/*.safetensors"))


def test_smoothing_that_no_norm_takes(source: Path, tmp_path: Path) -> None:
    config = QuantConfig("dynamic", smoothing=Smoothing(0.5, layers=("*.o_proj",)))
    said = r"^model\.layers\.0\.self_attn\.o_proj: input_smooth has no place in"
    with pytest.raises(ValueError, match=said):
        quantize_checkpoint(source, tmp_path / "out", config, [IDS])
    assert not list(tmp_path.glob("out/*.safetensors"))


@pytest.mark.usefixtures("umask")
def test_modes_are_never_wider(source: Path, tmp_path: Path) -> None:
    """Than those of the source."""
    for path in source.iterdir():
        path.chmod(0o640 if path.suffix == ".json" else 0o600)
    source.chmod(0o700)
    os.umask(0)
    quantize_checkpoint(source, tmp_path / "out", CONFIGS["dynamic"], [IDS])
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    for path in (tmp_path / "out").glob("*.safetensors"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert stat.S_IMODE((tmp_path / "out/config.json").stat().st_mode) == 0o640
