"""`scaled-mm tune`: the file of numbers, who is refused and what is stale; and the choice follows
the numbers that are planted in it."""

import json
import math
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from awq_cases import explain_awq
from helpers import rows, run_python

import scaled_mm
from scaled_mm import _library
from scaled_mm.explain import DEVICES, Device, explain, explain_mixed
from scaled_mm.tuning import cache
from scaled_mm.tuning.cache import Entry, keep, read

GPU = Device("NVIDIA H200", 90, 132, 4.8, 1980)
SLOW, FAST = (900.0, 0.5), (0.1, 2.5)
NAMES = {family: _library.cuda_kernels("sm90", family) for family in _library.FAMILIES}


def planted(fast: str, family: str = "int8") -> dict[str, tuple[float, float]]:
    """One kernel of a family is far faster than the others."""
    return {f"sm90/{family}/{name}": FAST if name == fast else SLOW for name in NAMES[family]}


def entry(**changed: Any) -> Entry:
    made = Entry(
        device=GPU.name,
        capability=GPU.capability,
        sms=GPU.sms,
        library=scaled_mm.__version__,
        arch="sm90",
        tables=_library.fingerprint("sm90"),
        driver=cache.driver(),
        memory_share=0.9,
        rows=planted("stream_96x128"),
    )
    return replace(made, **changed)


def kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the numbers are kept; nothing is in force before or after."""
    file = tmp_path / "cache" / "tuning.json"
    monkeypatch.setenv(cache.VARIABLE, str(file))
    cache.load()
    yield file
    monkeypatch.setenv(cache.VARIABLE, "off")
    cache.load()


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from kept_apart(tmp_path, monkeypatch)


def chosen(m: int = 64, device: Device = GPU, n: int = 4096, k: int = 4096) -> str:
    kernel = explain(m, n, k, device=device).chosen
    assert kernel is not None
    return kernel.name


OWN = chosen()


@pytest.mark.parametrize("name", NAMES["int8"])
def test_the_choice_follows(name: str, path: Path) -> None:
    keep(entry(rows=planted(name)), path)
    assert chosen() == OWN, "not before it is loaded"
    cache.load()
    assert chosen() == name
    found = explain(64, 4096, 4096, device=GPU)
    assert found.tuned and found.tuning == f"numbers of `scaled-mm tune` are in force: {path}"
    path.unlink()
    cache.load()
    assert chosen() == OWN
    assert not explain(64, 4096, 4096, device=GPU).tuned


@pytest.mark.parametrize("name", NAMES["lowbit"])
def test_the_choice_follows_for_few_bits(name: str, path: Path) -> None:
    keep(entry(rows=planted(name, "lowbit")), path)
    cache.load()
    if name.startswith("packed8"):
        kernel = explain_mixed(64, 4096, 4096, bits=8, device=GPU).chosen
    else:
        packed = name.startswith("packed")
        kernel = explain_awq(64, 4096, 4096, packed=packed, device=GPU).chosen
    assert kernel is not None and kernel.name == name
    assert chosen() == OWN, "the other family keeps its numbers"


@pytest.mark.parametrize(
    "other",
    [
        replace(GPU, name="NVIDIA H100 80GB HBM3"),
        replace(GPU, sms=114),
        DEVICES["H200"],  # as the maker tells, not a GPU that was measured
    ],
    ids=str,
)
def test_other_gpus_are_not_touched(other: Device, path: Path) -> None:
    before = chosen(device=other)
    keep(entry(), path)
    cache.load()
    assert chosen() == "stream_96x128" != before
    assert chosen(device=other) == before
    assert not explain(64, 4096, 4096, device=other).tuned


def test_it_is_read_at_import(path: Path) -> None:
    keep(entry(), path)
    question = (
        "from scaled_mm.explain import Device, explain\n"
        f"print(explain(64, 4096, 4096, device={GPU!r}).chosen.name)"
    )
    for setting, want in ((str(path), "stream_96x128"), ("off", OWN), (f"{path}.not", OWN)):
        assert run_python(question, **{cache.VARIABLE: setting}).split() == [want]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_path() == tmp_path / "scaled_mm" / "tuning.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default_path() == tmp_path / ".cache" / "scaled_mm" / "tuning.json"
    monkeypatch.setenv(cache.VARIABLE, "")
    assert cache.load().path == cache.default_path()
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert cache.load().lines() == ["off (SCALED_MM_TUNING=off)"]


STALE = {
    "library": ({"library": "0.0.9"}, f"scaled_mm 0.0.9, now {scaled_mm.__version__}"),
    "tables": ({"tables": "abc"}, f"tables abc, now {_library.fingerprint('sm90')}"),
    "driver": ({"driver": "1.2.3"}, f"driver 1.2.3, now {cache.driver()}"),
}


@pytest.mark.parametrize("name", STALE)
def test_stale(name: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed, reason = STALE[name]
    keep(entry(**changed), path)
    other = entry(device="NVIDIA H20", sms=78)
    keep(other, path)
    cache.load()
    assert chosen() == OWN
    assert chosen(device=Device("NVIDIA H20", 90, 78, 4.0)) == "stream_96x128", "this one holds"
    found = explain(64, 4096, 4096, device=GPU)
    assert found.tuning == f"{path} is ignored for this GPU, stale: {reason}"
    assert cache.state().lines() == [
        f"NVIDIA H20 (78 SMs): {len(other.rows)} kernels, {path}",
        f"NVIDIA H200 (132 SMs) is ignored, stale: {reason}, {path}",
    ]


def test_kernels_that_are_gone_are_no_fault_of_a_stale_file(path: Path) -> None:
    keep(entry(tables="abc", rows={"sm90/int8/of_another_day": (1.0, 1.0)}), path)
    assert not cache.load().ignored and cache.state().stale


def test_the_fingerprint_is_of_the_tables() -> None:
    prints = {arch: _library.fingerprint(arch) for arch in ("sm80", "sm90")}
    assert len(set(prints.values())) == 2
    _library.tune("x", 90, 1, 0.5, planted("stream_8x64"))
    assert prints == {arch: _library.fingerprint(arch) for arch in prints}, "not of what is tuned"


@pytest.mark.parametrize(
    ("text", "version"),
    [("NVRM: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat", "535.104.05"), ("", "unknown")],
)
def test_driver(text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "DRIVER", tmp_path / "version")
    assert cache.driver() == "unknown"
    cache.DRIVER.write_text(text)
    assert cache.driver() == version


def changed(key: str, value: Any) -> dict[str, Any]:
    """The file with a field of its GPU changed, or taken out."""
    made = asdict(entry())
    made[key] = value
    return {"format": 1, "gpus": [made]}


ROW = "sm90/int8/stream_8x64"
REFUSED: dict[str, Any] = {
    "Expecting property name": "{",
    "Expecting value": "",
    "must hold a JSON object, got list": "[]",
    "nested too deep": "[" * 10_000,
    "NaN is not JSON": '{"format": NaN}',
    "the name 'format' stands twice": '{"format": 1, "format": 1}',
    "format must be an integer in 1..1, got 2": {"format": 2, "gpus": []},
    "gpus must be a list of at most 64 objects": [{"format": 1}, {"format": 1, "gpus": [{}] * 65}],
    "gpus[0] must be an object, got 1": {"format": 1, "gpus": [1]},
    "gpus must have each GPU once": {"format": 1, "gpus": [asdict(entry())] * 2},
    "gpus[0].device must be a string, got None": changed("device", None),
    "gpus[0].device must be 1 to 256 printable": [
        changed("device", ""),
        changed("device", "\x1b[2J"),
    ],
    "gpus[0].sms must be an integer in 1..1000000, got 0": changed("sms", 0),
    "memory_share must be a number in 0.05..2, got 0": changed("memory_share", 0),
    "must be a number in 0.05..2, got 1000": changed("memory_share", 10**400),
    "gpus[0].rows must be an object, got [1]": changed("rows", [1]),
    "gpus[0].rows must be pairs of numbers": [
        changed("rows", {ROW: [1]}),
        changed("rows", {ROW: "12"}),
    ],
    "must be a number in 0..10000, got -1": changed("rows", {ROW: [-1, 1]}),
    "must be a number in 0.001..1000, got 0": changed("rows", {ROW: [1, 0]}),
    "of kernels of sm90, got 'sm90/int8/x'": changed("rows", {"sm90/int8/x": [1, 1]}),
    "gpus[0].rows must be of kernels of sm90, got 'sm80/int8/multistage_128x128'": changed(
        "rows", {"sm80/int8/multistage_128x128": [1, 1]}
    ),
}


@pytest.mark.parametrize(("reason", "made"), rows(REFUSED))
def test_refused(reason: str, made: Any, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a whole, in words; and nothing but the choice would have depended on it."""
    path.parent.mkdir()
    path.write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(ValueError, match=f"^{path}: "):
        read(path)
    state = cache.load()
    assert reason in state.ignored and chosen() == OWN
    assert explain(64, 4096, 4096, device=GPU).tuning == f"{path} is ignored: {state.ignored}"
    assert state.lines() == [f"{path} is ignored: {state.ignored}"]
    assert state.ignored.isprintable()


def test_no_file_of_ours(path: Path) -> None:
    """A folder, a pipe, one that nobody may read, one that is too large: none blocks or raises."""
    path.mkdir(parents=True)
    assert "must be a regular file" in cache.load().ignored
    path.rmdir()
    os.mkfifo(path)
    assert "must be a regular file" in cache.load().ignored
    path.unlink()
    path.write_bytes(b" " * (cache.MAX_BYTES + 1))
    assert "must be at most 1,000,000 bytes" in cache.load().ignored
    path.write_bytes(b"\xff\xfe{}")
    assert "codec can't decode" in cache.load().ignored
    path.unlink()
    path.symlink_to(path)
    assert cache.load().gpus == () and chosen() == OWN


def test_the_library_refuses_too() -> None:
    """Whatever Python lets through: the numbers are checked again where they are used."""
    rows = {ROW: (1.0, 1.0)}
    cases: dict[str, tuple[Any, ...]] = {
        "kernels must be names of this library's, got x": ("x", 90, 1, 0.5, {"x": (1, 1)}),
        "fixed_us must be a number in 0..10000, got nan": ("x", 90, 1, 0.5, {ROW: (math.nan, 1)}),
        "rate must be a number in 0.001..1000, got inf": ("x", 90, 1, 0.5, {ROW: (1, math.inf)}),
        "memory_share must be a number in 0.05..2, got nan": ("x", 90, 1, math.nan, rows),
        "sms must be a number in 1..1e+06, got 0": ("x", 90, 0, 0.5, rows),
        "numbers must be two for each kernel, got 3": ("x", 90, 1, 0.5, {ROW: (1, 1, 1)}),
        "kernels must be named once each, got sm90/int8/stream_8x64": (
            *("x", 90, 1, 0.5),
            {ROW: (1, 1), f" {ROW}": (1, 1)},
        ),
    }
    for said, arguments in cases.items():
        with pytest.raises(ValueError) as refusal:
            _library.tune(*arguments)
        assert str(refusal.value) == said


def test_no_file_does_harm(path: Path) -> None:
    """Random damage: nothing is raised, and there is always a kernel."""
    keep(entry(), path)
    whole, rng = path.read_bytes(), random.Random(0)
    taken = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randrange(3)] = rng.choice(
                (b"", b"9", b"e", b"-", b'"', b"\0", b"}")
            )
        path.write_bytes(damaged)
        taken += not cache.load().ignored
        assert chosen(1) and chosen(8192)
    assert 0 < taken < 300


def test_kept_as_it_was(path: Path) -> None:
    first, other = entry(), entry(device="NVIDIA H20", sms=78, rows={})
    keep(first, path)
    keep(other, path)
    assert read(path) == (first, other)
    again = entry(rows={ROW: (1.5, 1.0)})
    keep(again, path)
    assert read(path) == (other, again)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert cache.drop(other.gpu, path) and not cache.drop(other.gpu, path)
    assert read(path) == (again,)


def test_the_oldest_of_65_gpus_goes(path: Path) -> None:
    for sms in range(1, 66):
        keep(entry(sms=sms, rows={}), path)
    assert [each.sms for each in read(path)] == [*range(2, 66)]


def test_a_broken_file_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{")
    keep(entry(), path)
    assert read(path) == (entry(),)


def test_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(entry(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep(entry(rows={}), path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_two_write_at_once(path: Path) -> None:
    entries = [entry(sms=100 + i, rows={}) for i in range(16)]
    threads = [threading.Thread(target=keep, args=(each, path)) for each in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.sms for each in read(path)) == [each.sms for each in entries]
