"""`scaled-mm precompute`: what is added, that nothing else changes, what happens in between, its
report and its memory."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import (
    INT8,
    VARIANTS,
    VOCAB,
    ZERO_POINTS,
    Model,
    files_of,
    quantization_config,
    state_of,
    tensors,
    variant,
    write,
)
from helpers import Cli, assert_bits, run_python
from torch import Tensor

from scaled_mm import reference
from scaled_mm.checkpoint import load_quantized, writing
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.output import MANIFEST
from scaled_mm.precompute import precompute

IDS = torch.arange(VOCAB)
TERMS = {"dynamic-asymmetric": "azp_adj", "static-asymmetric": "azp_with_adj"}


def expected_terms(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    made = {}
    for layer, zero in ZERO_POINTS.items():
        b = state[f"{layer}.weight"].t()
        if TERMS.get(name) == "azp_adj":
            made[f"{layer}.azp_adj"] = reference.azp_adj(b)
        elif name in TERMS:
            zeros = torch.tensor([zero], dtype=torch.int32)
            made[f"{layer}.azp_with_adj"] = reference.azp_with_adj(b, zeros)
    return made


@pytest.fixture(params=[writing.BUFFER, 96], ids=["buffer", "small-buffer"])
def buffer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one, so that a weight of this size takes several pieces."""
    monkeypatch.setattr(writing, "BUFFER", request.param)


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_terms_are_added_and_the_rest_is_kept(name: str, shards: int, tmp_path: Path) -> None:
    source, out = variant(tmp_path / "in", name, shards), tmp_path / "out"
    (source / "tokenizer.json").write_text("{}")
    before, files = state_of(source), files_of(source)
    began = time.perf_counter()
    report = precompute(source, out)
    assert 0 < report.seconds < time.perf_counter() - began
    assert files_of(source) == files
    state, terms = state_of(out), expected_terms(name, before)
    assert state.keys() == before.keys() | terms.keys()
    for key, x in (before | terms).items():
        assert_bits(state[key], x, key)
    assert {f"{term.layer}.{term.name}" for term in report.terms} == terms.keys()
    assert not any(term.rounded_from for term in report.terms)
    assert sorted(report.symmetric) == ([] if terms else ["down", "up"])
    assert files_of(out).keys() == files.keys() | {MANIFEST}
    assert report.copied == ("tokenizer.json",)
    checkpoint = Checkpoint(out)
    assert checkpoint.config == {**Checkpoint(source).config, "scaled_mm_azp": 1}
    if shards > 1:
        sizes = [file.size - file.data for file in checkpoint.files.values()]
        assert checkpoint.index_fields["metadata"] == {"total_size": sum(sizes), "kept": "yes"}
    for path in out.glob("*.safetensors"):
        assert checkpoint.files[path.name].metadata["format"] == "pt"
    with torch.no_grad():
        model, original = (load_quantized(Model(), each)(IDS) for each in (out, source))
    assert_bits(model, original)


def test_torch_has_its_threads_again(tmp_path: Path, threads: None) -> None:
    source = variant(tmp_path / "in", "dynamic-asymmetric", 1)
    torch.set_num_threads(3)
    precompute(source, tmp_path / "out")
    assert torch.get_num_threads() == 3


def test_offsets_stay_aligned(tmp_path: Path) -> None:
    """The terms have an odd number of channels; eight-byte elements stay in front of them."""
    state = tensors(False, False)
    state |= {"a.wide": torch.arange(3), "b.wide": torch.arange(2)}
    precompute(write(tmp_path / "in", state, quantization_config(False, False)), tmp_path / "out")
    (file,) = Checkpoint(tmp_path / "out").files.values()
    assert file.data % 8 == 0
    for name, entry in file.entries.items():
        assert entry.begin % file.read(name).element_size() == 0, name
    assert len(file.entries) == len(state) + 2
    for name, x in state.items():
        assert_bits(file.read(name), x, name)


def test_zero_points_in_another_shard(tmp_path: Path) -> None:
    """The order of names puts zero points and weights apart."""
    source = variant(tmp_path / "in", "static-asymmetric", shards=len(tensors(False, False)))
    assert len({Checkpoint(source).where[f"up.{x}"] for x in ("weight", "input_zero_point")}) == 2
    precompute(source, tmp_path / "out")
    state = state_of(tmp_path / "out")
    for name, x in expected_terms("static-asymmetric", state).items():
        assert_bits(state[name], x)


@pytest.mark.parametrize("value", [28.999998, -30.9375, 2.5, -127.5, 126.99, -0.5])
def test_float_zero_points_are_rounded(value: float, tmp_path: Path) -> None:
    state = tensors(False, False) | {"up.input_zero_point": torch.tensor([value])}
    source = write(tmp_path / "in", state, quantization_config(False, False))
    report = precompute(source, tmp_path / "out")
    term = next(term for term in report.terms if term.layer == "up")
    assert term.zero_point == round(value)  # half to even, as Python rounds
    assert term.rounded_from == pytest.approx(value)
    out = state_of(tmp_path / "out")
    b = state["up.weight"].t()
    zero = torch.tensor([round(value)], dtype=torch.int32)
    assert_bits(out["up.azp_with_adj"], reference.azp_with_adj(b, zero))
    assert_bits(out["up.input_zero_point"], state["up.input_zero_point"])  # as it was


def test_done_twice_adds_nothing(tmp_path: Path) -> None:
    precompute(variant(tmp_path / "in", "static-asymmetric", 3), tmp_path / "out")
    report = precompute(tmp_path / "out", tmp_path / "again")
    assert [term.added for term in report.terms] == [False, False]
    again, out = files_of(tmp_path / "again"), files_of(tmp_path / "out")
    assert again.pop(MANIFEST) != out.pop(MANIFEST)  # of another source
    assert again == out


def test_a_second_run_keeps_what_is_there(tmp_path: Path) -> None:
    source, out = variant(tmp_path / "in", "static-asymmetric", 3), tmp_path / "out"
    precompute(source, out)
    whole, times = (
        files_of(out),
        {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")},
    )
    report = precompute(source, out)
    assert [shard.skipped for shard in report.shards] == [True] * 3
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert files_of(out) == whole


@pytest.mark.parametrize("fails", range(1, 4))
def test_an_interrupted_run_is_taken_up(
    fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the n-th file: there is no half a file and no checkpoint."""
    source, out = variant(tmp_path / "in", "static-asymmetric", 3), tmp_path / "out"
    precompute(source, tmp_path / "whole")
    real, calls = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 * fails + 1:  # a file and its folder; the manifest's are the first
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        precompute(source, out)
    monkeypatch.undo()
    assert len(files_of(out)) == fails
    for name, content in files_of(out).items():
        assert content == (tmp_path / "whole" / name).read_bytes()
    report = precompute(source, out)
    assert [shard.skipped for shard in report.shards] == [i < fails - 1 for i in range(3)]
    assert files_of(out) == files_of(tmp_path / "whole")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "a-bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "header": lambda content: content.replace(b'"F32"', b'"I32"', 1),
}


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("how", [*DAMAGES, "other-source"])
def test_a_damaged_shard_is_written_again(how: str, tmp_path: Path) -> None:
    source, out = variant(tmp_path / "in", "static-asymmetric", 3), tmp_path / "out"
    precompute(source, out)
    whole, path = files_of(out), sorted(out.glob("*.safetensors"))[1]
    if how == "other-source":
        weight = state_of(source)["up.weight"]
        weight[3, 5] += 1
        state = tensors(False, False) | {"up.weight": weight}
        write(source, state, quantization_config(False, False), 3)
    else:
        before = path.read_bytes()
        path.write_bytes(DAMAGES[how](before))
        assert path.read_bytes() != before
    done: list[int] = []
    report = precompute(source, out, lambda count, total: done.append(count))
    assert sum(shard.skipped for shard in report.shards) == 2
    assert (files_of(out) == whole) == (how != "other-source")
    headers = sum(file.data for file in Checkpoint(out).files.values())
    assert sum(done) == report.bytes - headers
    state = state_of(out)
    for name, x in expected_terms("static-asymmetric", state).items():
        assert_bits(state[name], x)


def test_nobodys_files_are_written_over(tmp_path: Path) -> None:
    source = variant(tmp_path / "in", "static-asymmetric")
    (tmp_path / "file").write_text("x")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("mine")
    variant(tmp_path / "other", "static-asymmetric")
    for out, said in [
        ("in", "must not be the folder of the checkpoint"),
        ("in/../in", "must not be the folder of the checkpoint"),
        ("file", "must be a folder"),
        ("notes", "must be new, empty or of an earlier run"),
        ("other", "must be new, empty or of an earlier run"),
    ]:
        before = files_of(tmp_path / out) if out != "file" else None
        with pytest.raises(ValueError, match=said):
            precompute(source, tmp_path / out)
        assert before is None or files_of(tmp_path / out) == before


def test_what_is_left_out(tmp_path: Path) -> None:
    source = variant(tmp_path / "in", "dynamic-asymmetric", shards=2)
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    (source / "disguised.json").write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00.")
    (source / "consolidated.safetensors").write_bytes(b"")
    (source / "onnx").mkdir()
    (source / "vocab.txt").write_text("a")
    report = precompute(source, tmp_path / "out")
    left_out = ("consolidated.safetensors", "disguised.json", "onnx", "pytorch_model.bin")
    assert (report.copied, report.left_out) == (("vocab.txt",), left_out)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in source.iterdir()} - {*left_out} | {MANIFEST}


BAD: dict[str, dict[str, Any]] = {
    "has no int8 weight": {},
    "is not the one that weight and zero": {"up.azp_with_adj": torch.ones(1, 32).int()},
    "must be in -128..127, got": {"up.input_zero_point": torch.tensor([300]).int()},
    "-128..127, got nan": {"up.input_zero_point": torch.tensor([torch.nan])},
    "got U8": {"up.input_zero_point": torch.ones(1).to(torch.uint8)},
    "up.g_idx is not understood": {"up.g_idx": torch.ones(1)},
    "moe.up_proj, int8 (2, 2, 2)": {"moe.up_proj": torch.ones(2, 2, 2).to(torch.int8)},
    "up.weight_packed is not understood": {"up.weight_packed": torch.ones(2, 2).int()},
}


@pytest.mark.parametrize("said", BAD)
def test_what_is_not_understood_is_named(said: str, tmp_path: Path, cli: Cli) -> None:
    state = tensors(False, False) | BAD[said] if BAD[said] else {"a.weight": torch.ones(2, 2)}
    write(tmp_path / "in", state, quantization_config(False, False))
    assert said in cli(f"precompute {tmp_path}/in -o {tmp_path}/out", code=2)
    assert {path.name for path in (tmp_path / "out").glob("*")} <= {MANIFEST}


def test_a_float_checkpoint_has_nothing_to_add(tmp_path: Path, cli: Cli) -> None:
    write(tmp_path / "in", {"a.weight": torch.ones(2, 2)}, None)
    for given, said in (
        ("{0}/in -o {0}/out", "is a float checkpoint, without quantization_config"),
        ("{0}/in", "Missing option '--out'"),
        ("{0}/none -o {0}/out", "no such file"),
    ):
        assert said in cli("precompute " + given.format(tmp_path), code=2)


def test_the_report_as_json(tmp_path: Path, cli: Cli) -> None:
    config = quantization_config(True, False)
    symmetric = {**INT8, "dynamic": True, "strategy": "token", "symmetric": True}
    group = config["config_groups"]["group_0"]
    config["config_groups"]["b"] = {**group, "targets": ["up"], "input_activations": symmetric}
    write(tmp_path / "in", tensors(True, False), config)
    report = json.loads(cli(f"precompute {tmp_path}/in -o {tmp_path}/out --json"))
    assert report["terms"] == [
        {
            "layer": "down",
            "name": "azp_adj",
            "channels": 21,
            "zero_point": None,
            "rounded_from": None,
            "added": True,
        }
    ]
    assert report["symmetric"] == ["up"]
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert report["bytes"] == size == report["shards"][0]["bytes"]


def test_memory_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """Two shards of one weight each, 64 MB: the process grows by far less than one."""
    k, n = 8192, 8192
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    state = {"a.weight": weight, "b.weight": weight.flip(0)}
    for layer in ("a", "b"):
        state[f"{layer}.weight_scale"] = torch.ones(n, 1)
    # In the order of the names: a.weight, a.weight_scale, b.weight, b.weight_scale, in turn.
    source = write(tmp_path / "in", state, quantization_config(True, False), shards=4)
    grown = run_python(
        "import resource, sys\n"
        "from scaled_mm.precompute import precompute\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used()\n"
        "precompute(*sys.argv[1:])\n"
        "print(used() - before)",
        str(source),
        str(tmp_path / "out"),
    )
    assert int(grown) < 24 * 1024, f"{grown} kB"
    out = state_of(tmp_path / "out")
    assert_bits(out["a.azp_adj"], reference.azp_adj(weight.t()))
