"""`scaled-mm tune`: the fit of the numbers to times, and the command."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli, rows
from test_tune import FAST, GPU, NAMES, SLOW, chosen, kept_apart

import scaled_mm
from scaled_mm import _library
from scaled_mm.bench.clocks import CpuClock, Stopwatch
from scaled_mm.tuning import cache, measure
from scaled_mm.tuning.cache import keep, read
from scaled_mm.tuning.fit import Measured, fit
from scaled_mm.tuning.measure import FAMILIES, GROUP, SHAPES, ask
from scaled_mm_cli.main import main


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from kept_apart(tmp_path, monkeypatch)


TRUE = {  # what a GPU would be like on which other kernels are good
    "int8": {"stream_80x64": (9.0, 0.7), "ping_64x128_2x1": (1.0, 1.5), "stream_48x64": (6.0, 1.0)},
    "lowbit": {"stream_64": (9.0, 0.5), "stream_32": (1.0, 1.6)},
    "k_scales": {"w4a8_16": (9.0, 0.5), "w4a8_64": (1.0, 1.6), "groups_64": (1.0, 2.9)},
}


def made_up(family: str) -> list[dict[str, Any]]:
    """Times as the model predicts them, but for the kernels in TRUE."""
    _library.tune(
        GPU.name,
        *(GPU.capability, GPU.sms, 0.87),
        {f"sm90/{family}/{name}": pair for name, pair in TRUE[family].items()},
    )
    shapes = []
    of = SHAPES[family]
    for (n, k), m, in_blocks in product(of.weights[:3], of.tokens[::2], of.in_blocks):
        rows = ask(family, m, n, k, GPU, in_blocks)["kernels"]
        us = {r["name"]: r["predicted_us"] for r in rows if r["predicted_us"] is not None}
        shapes.append({"m": m, "n": n, "k": k, "us": us, "in_blocks": in_blocks})
    _library.untune()
    return shapes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fit_finds_the_fast_kernels(family: str) -> None:
    found = fit(Measured.of(family, made_up(family), GPU, 0.87), steps=4000)
    assert found.own.worst > 1.1 > found.now.worst
    assert found.now.mean < 1.005 and found.now.mean < found.own.mean and found.better
    fitted = dict(zip(found.names, found.columns.tolist(), strict=True))
    unasked = {name for name in NAMES[family] if name.startswith("packed")} | {"w4a8_128x192"}
    assert set(fitted) == set(NAMES[family]) - unasked


def test_a_fit_that_gains_nothing_is_none() -> None:
    shapes = [
        {**each, "us": {r["name"]: r["predicted_us"] for r in rows}}
        for each in made_up("int8")
        for rows in [ask("int8", each["m"], each["n"], each["k"], GPU)["kernels"]]
    ]
    found = fit(Measured.of("int8", shapes, GPU, 0.87), steps=200)
    assert (found.own.mean, found.own.worst, found.better) == (1, 1, False)


def times_file(tmp_path: Path, **changed: Any) -> Path:
    times = {"int8": made_up("int8")[:6], "lowbit": made_up("lowbit")[:6]}
    made = {"format": 1, "device": asdict(GPU), "memory_share": 0.87, "times": times, **changed}
    file = tmp_path / "times.json"
    file.write_text(json.dumps(made))
    return file


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaled_mm.tuning.fit.fitted", lambda measured, steps: measured.columns)


def test_read(tmp_path: Path, path: Path, quick: None, cli: Cli) -> None:
    out = cli("tune --read", times_file(tmp_path))
    for said in ("int8, as the tables have it", "lowbit, fitted", "stream_8x64", "dense"):
        assert said in out
    assert not path.exists()
    assert "int8" not in cli("tune --family lowbit --read", times_file(tmp_path))


REFUSED_TIMES: dict[str, Any] = {
    "format must be an integer in 1..1, got 0": {"format": 0},
    "memory_share must be a number in 0.05..2, got x": {"memory_share": "x"},
    "times must be lists of shapes for int8, lowbit, k_scales, got times.x": {"times": {"x": []}},
    "times.k_scales[0].in_blocks must be true or false": {
        "times": {"k_scales": [{"m": 1, "n": 1, "k": 1, "in_blocks": 1}]}
    },
    "times.int8[0].m must be an integer in 1..2147483647, got 0": {"times": {"int8": [{"m": 0}]}},
}


@pytest.mark.parametrize(("said", "changed"), rows(REFUSED_TIMES))
def test_read_refuses(said: str, changed: Any, tmp_path: Path, cli: Cli) -> None:
    file = times_file(tmp_path, **changed)
    assert cli("tune --read", file, code=2) == f"scaled-mm: {file}: {said}\n"


def test_read_of_other_kernels(tmp_path: Path, cli: Cli) -> None:
    file = times_file(tmp_path, times={"int8": [{"m": 1, "n": 64, "k": 64, "us": {"x": 1.0}}]})
    said = "times must have one of a kernel that there is for every shape, got M=1 N=64 K=64"
    assert cli("tune --read", file, code=2) == f"scaled-mm: {said}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_command_refuses(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for line, said in (
        ("tune", "tune must be run where torch sees a GPU that has kernels"),
        ("tune --dry-run", "tune must be run where torch sees a GPU that has kernels"),
        ("tune --remove", "--remove must be given where torch sees a GPU"),
    ):
        assert cli(line, code=2) == f"scaled-mm: {said}, got none\n"
    monkeypatch.setenv(cache.VARIABLE, "off")
    cache.load()
    said = "SCALED_MM_TUNING must name a file, or be unset where there is a home folder"
    assert said in cli("tune", code=2)


def test_info_and_explain_say_it(path: Path, cli: Cli) -> None:
    path.parent.mkdir()
    path.write_text("{")
    cache.load()
    asked = "explain 64 4096 4096 --device H100"
    told = json.loads(cli(asked, "--json"))
    assert told["tuning"].startswith(f"{path} is ignored: Expecting") and not told["tuned"]
    assert (told["gpu_class"], told["rates"]) == ("H100", "published")
    out = cli(asked)
    assert "predicted by published rates of the H100: not measured" in out
    assert "is ignored: Expecting" in out
    from scaled_mm_cli.commands.info import facts

    assert facts()["tuning"].startswith(f"{path} is ignored: Expecting")


@pytest.mark.parametrize("family", SHAPES)
def test_shapes(family: str) -> None:
    """Each once, and of whole groups and blocks, which every kernel takes."""
    shapes = SHAPES[family]
    assert len(set(shapes.weights)) == len(shapes.weights)
    assert all(size % GROUP == 0 for weight in shapes.weights for size in weight)
    assert list(shapes.tokens) == sorted(set(shapes.tokens))


def test_times_are_of_forced_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those near the best prediction, each while it is forced."""
    forced: list[str] = []

    @contextmanager
    def force(name: str) -> Iterator[None]:
        forced.append(name)
        yield

    monkeypatch.setattr(measure, "forced_kernels", force)

    class OfLast(CpuClock):
        def stopwatch(self, calls: Any) -> Stopwatch:
            seconds = {"best": 3e-6, "near": 2e-6}[forced[-1]]
            return Stopwatch(lambda: seconds, seconds, calls)

    found = measure.times({"far": 21.0, "best": 10.0, "near": 19.0}, [lambda: None], OfLast())
    assert found == pytest.approx({"best": 3.0, "near": 2.0})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(
    path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured, kept, in force; the bits stay."""
    from scaled_mm.gpus import local_device

    few = {family: measure.Shapes(((512, 512),), (1, 64)) for family in FAMILIES}
    monkeypatch.setattr(measure, "SHAPES", few)
    monkeypatch.setattr("scaled_mm_cli.commands.tune.SHAPES", few)
    assert main(["tune"]) == 0
    device = local_device()
    assert device is not None
    (kept,) = read(path)
    assert (
        kept.gpu == (device.name, device.capability, device.sms) and 0.3 < kept.memory_share < 1.2
    )
    a = torch.randint(-128, 128, (64, 512), dtype=torch.int8, device="cuda")
    b = torch.randint(-128, 128, (512, 512), dtype=torch.int8, device="cuda").t()
    scales = torch.rand(64, 1, device="cuda"), torch.rand(1, 512, device="cuda")
    want = scaled_mm.scaled_mm(a, b, *scales)
    for name in _library.cuda_kernels(kept.arch):
        rows = {each: SLOW for each in cache.kernels(kept.arch) if "/int8/" in each}
        rows[f"{kept.arch}/int8/{name}"] = FAST
        keep(replace(kept, rows=rows), path)
        cache.load()
        assert chosen(64, device, 512, 512) == name
        assert torch.equal(scaled_mm.scaled_mm(a, b, *scales), want)
    assert main(["tune", "--remove"]) == 0
    assert read(path) == ()
