"""Checkpoints as files: what is refused, and what is read of files, folders and configs."""

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import (
    MALFORMED,
    SETTINGS,
    encoded,
    entry,
    quantization_config,
    tensors,
    variant,
    write,
)
from helpers import assert_bits, rows
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from scaled_mm.checkpoint.config import W8A8
from scaled_mm.checkpoint.files import TensorFile
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.targets import Targets
from scaled_mm.quantization.compressed_tensors import W8A8Scheme


@pytest.mark.parametrize(("said", "content"), rows(MALFORMED))
def test_a_malformed_file_is_refused(said: str, content: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refusal:
        TensorFile(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}: ") and said in text
    assert "\n" not in text and len(text) < 500


def test_the_file_is_read_as_it_is(tmp_path: Path) -> None:
    state = {
        "a": torch.arange(6, dtype=torch.int64).view(2, 3),
        "b": torch.tensor(2.5, dtype=torch.bfloat16),
        "c": torch.zeros(0, 7),
        "d": torch.randn(5).to(torch.float8_e4m3fn).view(torch.uint8),
        "e": torch.tensor([True, False]),
    }
    save_file(state, tmp_path / "x.safetensors", {"format": "pt"})
    file = TensorFile(tmp_path / "x.safetensors")
    assert (file.metadata, file.entries.keys()) == ({"format": "pt"}, state.keys())
    for name, x in state.items():
        assert_bits(file.read(name), x, name)


@pytest.mark.parametrize("low", [0x280, 0x380, 0x480, 0x580, 0x4B50])
def test_a_header_as_long_as_a_magic_number_is_no_pickle(low: int, tmp_path: Path) -> None:
    """A header of 0x280 bytes begins like a pickle."""
    length = 0x04034B50 if low == 0x4B50 else low
    text = json.dumps({"a": entry()}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded(text.ljust(length)))
    assert_bits(TensorFile(path).read("a"), torch.zeros(16, dtype=torch.int8))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")  # to open it would block
    for name, said in (("pipe.safetensors", "must be a regular file"), ("no", "no such file")):
        with pytest.raises(ValueError, match=said):
            Checkpoint(tmp_path / name)


class Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_a_pickle_is_never_opened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        Path(name).write_bytes(pickle.dumps(Bomb(), protocol))
        for path in (tmp_path, tmp_path / name):
            # (The path holds the test's name, and "pickle" with it.)
            known = protocol > 1 or not name.endswith("tensors")
            said = "not opened: reading a pickle can run code" if known else "header"
            with pytest.raises(ValueError, match=said):
                Checkpoint(path)
    assert not Path("exploded").exists()


def check_accepted(path: Path) -> None:
    """Whatever is accepted has tensors that tile the data, and can be read."""
    try:
        file = TensorFile(path)
    except ValueError as refusal:
        assert str(refusal).startswith(f"{path}: ")
        return
    at = 0
    for each in file.entries.values():
        assert each.begin == at <= each.end
        at = each.end
    assert file.data + at == file.size == path.stat().st_size
    for name in file.entries:
        try:
            assert file.read(name).nbytes == file.entries[name].nbytes
        except ValueError as refusal:  # a dtype that torch does not have
            assert "torch has no dtype" in str(refusal)


NUMBERS = st.one_of(st.integers(-2, 20), st.sampled_from([2**31, 2**63, 2**64, 2**70, 0.5, None]))
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["I8", "BF16", "F32", "I64", "BOOL", "F4", "F6_E2M3", "X", 3]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3),
    },
    optional={"more": st.none()},
)
NAMES = st.one_of(st.sampled_from(["a", "b", "a/b", "..", "__metadata__"]), st.text(max_size=3))


@given(st.dictionaries(NAMES, ENTRIES, max_size=3), st.integers(0, 40))
def test_any_header(tmp_path: Path, header: dict[str, Any], size: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded(header, bytes(size)))
    check_accepted(path)


@given(st.lists(st.tuples(st.sampled_from(["I8", "F16", "F32", "F64"]), st.integers(0, 4))))
def test_every_good_header_is_accepted(tmp_path: Path, given: list[tuple[str, int]]) -> None:
    header, at = {}, 0
    for i, (dtype, count) in enumerate(given):
        size = count * {"I8": 1, "F16": 2, "F32": 4, "F64": 8}[dtype]
        header[f"t{i}"] = entry(at, at + size, dtype, [count])
        at += size
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded(header, bytes(at)))
    file = TensorFile(path)
    assert len(file.entries) == len(given)
    check_accepted(path)


INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


NO_NAMES = ["../x.safetensors", "/etc/x.safetensors", "..\\x.safetensors", "C:x.safetensors"]
NO_NAMES += ["a/x.safetensors", "x\0.safetensors", "..", ""]
# What is changed of weight_map (None: taken out), or what is done to the folder.
INDEXES: dict[str, Any] = {
    "does not say that up.weight is in": [{"up.weight": None}, {"up.weight": SECOND}],
    f"says that up.more is in {FIRST}, which has it not": {"up.more": FIRST},
    "weight_map must be an object": lambda folder: (folder / INDEX).write_text("{}"),
    "up.weight must be a string, got 3": {"up.weight": 3},
    f"{FIRST}: there is no such file": lambda folder: (folder / FIRST).unlink(),
    "is in model-0000": lambda folder: save_file(load_file(folder / FIRST), folder / SECOND),
    f"has both {INDEX} and model.safetensors": lambda folder: save_file(
        {"a": torch.ones(1)}, folder / "model.safetensors"
    ),
    "the name 'up.weight' stands twice": lambda folder: (folder / INDEX).write_text(
        '{"weight_map": {"up.weight": "x", "up.weight": "y"}}'
    ),
    "a shard name must be": [{"up.weight": name} for name in NO_NAMES],
    "a shard must be a .safetensors file, got x.bin": {"up.weight": "x.bin"},
    "not opened: reading a pickle can run code": {"up.weight": "pickle.bin"},
}


@pytest.mark.parametrize(("said", "change"), rows(INDEXES))
def test_a_bad_index_is_refused(said: str, change: Any, tmp_path: Path) -> None:
    variant(tmp_path, "dynamic-symmetric", shards=2)
    assert len(Checkpoint(tmp_path).where) == 8
    if callable(change):
        change(tmp_path)
    else:
        index = json.loads((tmp_path / INDEX).read_text())
        where = index["weight_map"]
        assert where["up.weight"] == FIRST
        index["weight_map"] = {k: x for k, x in {**where, **change}.items() if x is not None}
        (tmp_path / INDEX).write_text(json.dumps(index))
        if "pickle.bin" in change.values():
            (tmp_path / "pickle.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match=re.escape(said)):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "must hold a JSON object, got list"),
        (b"{", "Expecting property name"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "b": 1, "b": 2}', "the name 'b' stands twice"),
        (b"\xff{}", "can't decode byte"),
        (b'{"a":' + b"[" * 200_000, "nested too deep"),
        (b'{"a": ' + b"1" * 5000 + b"}", "integer"),
    ],
)
def test_bad_json_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    variant(tmp_path, "dynamic-symmetric")
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ValueError) as refusal:
        Checkpoint(tmp_path)
    assert said in str(refusal.value) and str(refusal.value).startswith(f"{tmp_path}/config.json: ")


def test_folders_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no \.safetensors file$"):
        Checkpoint(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    with pytest.raises(ValueError, match=r"has 2 \.safetensors files and no model\.safetensors"):
        Checkpoint(tmp_path)
    assert Checkpoint(tmp_path / "a.safetensors").where.keys() == {"x"}


def test_links_are_followed(tmp_path: Path) -> None:
    """A hub's cache is folders of links."""
    variant(tmp_path / "blobs", "dynamic-symmetric", shards=2)
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert len(Checkpoint(tmp_path / "snapshot").where) == 8


@pytest.mark.parametrize(("said", "change"), rows(SETTINGS))
def test_a_setting_that_is_not_served_is_refused(said: str, change: Any, tmp_path: Path) -> None:
    config = quantization_config(False, False)
    write(tmp_path, tensors(False, False), change(config) or config)
    with pytest.raises(ValueError) as refusal:
        Checkpoint(tmp_path)
    assert said in str(refusal.value)
    assert str(refusal.value).startswith(f"{tmp_path}/config.json: quantization_config: ")


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_the_config_is_read_leniently(key: str, tmp_path: Path) -> None:
    """Keys that say nothing, those of calibration, and an older name of the whole."""
    write(tmp_path, tensors(False, False), None)
    config = quantization_config(False, False)
    config |= {"new": None, "also_new": [], "quantization_status": "frozen"}
    group = config["config_groups"]["group_0"]
    group["weights"] |= {"observer": "minmax", "block_structure": None, "group_size": -1}
    for said_by_default in ("strategy", "num_bits", "symmetric"):
        del group["weights"][said_by_default]
    del group["format"]
    (tmp_path / "config.json").write_text(json.dumps({key: config}))
    read = Checkpoint(tmp_path).quantization
    assert read == W8A8(
        ((Targets(("Linear",)), W8A8Scheme(False, False, per_token=False, per_channel=True)),),
        Targets(("head",)),
    )


def test_which_group_a_layer_is_in() -> None:
    schemes = [W8A8Scheme(True, bool(i & 1), bool(i & 2), True) for i in range(4)]
    groups = [("Linear",), (r"re:.*mlp\.(up|down)$",), ("model.mlp.up",), ("Conv1D",)]
    targets = map(Targets, groups)
    ignore = Targets(("head", "re:.*gate", "Embedding"))
    read = W8A8(tuple(zip(targets, schemes, strict=True)), ignore)
    for name, classes, group in [
        ("model.q", ("Linear", "Module"), 0),
        ("model.mlp.down", ("Linear",), 1),
        ("model.mlp.down_2", ("Linear",), 0),
        ("model.mlp.up", ("Linear",), 2),
        ("x.mlp.up", ("Linear",), 1),
        ("model.q", ("Conv1D",), 3),
        ("model.q", (), None),
        ("head", ("Linear",), None),
        ("the.head", ("Linear",), 0),
        ("model.gate", ("Linear",), None),
        ("model.q", ("Embedding", "Linear"), None),
    ]:
        expected = None if group is None else schemes[group]
        assert read.scheme_of(name, classes) == expected, name
