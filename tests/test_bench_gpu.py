"""`scaled-mm bench --device cuda`: its contenders and tables without a GPU, then runs on one."""

import copy
import itertools
import json
from functools import partial

import pytest
import torch
from cuda_support import GPU
from helpers import extra

from scaled_mm.bench import measure, picture
from scaled_mm.bench.cases import EPILOGUES, make_case
from scaled_mm.bench.clocks import CpuClock, Stopwatch
from scaled_mm.bench.contenders import CONTENDERS, Contender
from scaled_mm.bench.measure import Settings
from scaled_mm_cli.commands import bench as command
from scaled_mm_cli.main import main


class Sundial(CpuClock):
    """Says that every call takes 10, 20, 30 ... us, in the order of the contenders."""

    bandwidth = 1e9
    tops = 1e-2

    def __init__(self):
        self.hours = itertools.count(1)

    def weight_copies(self, size):
        return 3

    activation_copies = weight_copies

    def stopwatch(self, calls):
        assert len(calls) == 3
        for call in calls:
            call()
        seconds = 1e-5 * next(self.hours)
        return Stopwatch(lambda: seconds, seconds, calls)

    def machine(self):
        return {
            "gpu": "Sundial",
            "sms": 1,
            "copy_tb_per_s": 1e-3,
            "int8_tops": 1e-2,
            "cuda": "13.0",
            "triton": None,
            "power_limit": "1 W",
            "scaled_mm": "0",
            "torch": "2",
        }


def fails(case):
    raise RuntimeError("CUDA error: [unlucky]\nand a second line")


@pytest.fixture
def gpu_result(monkeypatch):
    """What a run on a GPU returns, of CPU kernels timed by a sundial; one contender fails, one has
    no form for M = 2."""
    broken = Contender("broken", "fails", fails, ("cuda",))
    kept = [c for c in CONTENDERS if c.name in ("plain", "bf16 mm", "_int_mm sums")]
    monkeypatch.setattr(measure, "CONTENDERS", [*kept, broken])
    monkeypatch.setattr(measure, "clock_of", lambda device: Sundial())
    real = make_case
    monkeypatch.setattr(measure, "make_case", lambda *case: real(*case[:-1], "cpu"))
    return measure.run([(2, 32, 16), (64, 32, 16)], Settings(device="cuda", rounds=2))


def test_a_broken_contender_ends_nothing(gpu_result):
    for case in gpu_result["results"]:
        entries = {route["name"]: route for route in case["routes"]}
        assert list(entries) == ["plain", "bf16 mm", "_int_mm sums", "broken"]
        assert entries["broken"]["verdict"] == "CUDA error: [unlucky]"
        assert entries["broken"]["microseconds"] is None
        assert entries["plain"]["verdict"] == "exact"
        floor = max(case["floor_us"], case["operations_us"])
        plain = entries["plain"]
        assert plain["floor_share"] * plain["microseconds"] == pytest.approx(floor)
        assert case["operations_us"] == pytest.approx(2 * case["m"] * 16 * 32 / 1e4)
        assert case["best_right"]["name"] == "bf16 mm"  # sums are no result
        assert case["best_right"]["packed"] is None
        assert case["floor_us"] == pytest.approx(case["bytes"] / 1e3)


def test_a_gpu_that_goes_down(monkeypatch, gpu_result, capsys):
    """The shapes that are done are shown, and the exit code says that something is wrong."""

    class Broken(Sundial):
        def clear(self):
            raise RuntimeError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(measure, "clock_of", lambda device: Broken())
    growing = partial(
        measure.growing, [(2, 16, 32), (3, 16, 32)], Settings(device="cuda", rounds=1)
    )
    result = command.measured(growing, None)
    assert [case["m"] for case in result["results"]] == [2]
    err = capsys.readouterr().err
    assert err.endswith("scaled-mm: stopped: CUDA error: an illegal memory access\n")


def test_runs_as_one(gpu_result, tmp_path, cli):
    first, second = copy.deepcopy(gpu_result), copy.deepcopy(gpu_result)
    second["results"][0]["m"], second["results"][1]["m"] = 3, 1
    second["machine"]["copy_tb_per_s"] = 7.0
    files = [tmp_path / "first.json", tmp_path / "second.json"]

    def read(code):
        for file, result in zip(files, (first, second), strict=True):
            file.write_text(json.dumps(result))
        given = [part for file in files for part in ("--read", file)]
        return cli("bench --json", tmp_path / "all.json", *given, code=code)

    read(0)
    both = json.loads((tmp_path / "all.json").read_text())
    assert [case["m"] for case in both["results"]] == [1, 2, 3, 64]
    assert both["machine"] == first["machine"]
    second["results"][0]["m"] = 2
    assert "--read must have each shape once, got (2, 32, 16) twice" in read(2)
    second["machine"]["gpu"] = "Clock"
    assert "must be of runs with one gpu, got Sundial and Clock" in read(2)
    second["machine"] = None
    assert "must be a result of `scaled-mm bench --json`" in read(2)


def test_picture(gpu_result, tmp_path):
    extra("matplotlib")
    path = tmp_path / "picture.png"
    picture.plot(gpu_result, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 20_000


@pytest.fixture(params=[pytest.param(epilogue, marks=GPU) for epilogue in EPILOGUES])
def measured_on_gpu(request):
    settings = Settings(epilogue=request.param, device="cuda", rounds=2)
    return measure.run([(1, 512, 512), (64, 1024, 512), (300, 512, 512)], settings)


def test_gpu_run(measured_on_gpu):
    for case in measured_on_gpu["results"]:
        for route in case["routes"]:
            small = case["m"] <= 16 and route["name"].startswith("_int_mm")
            assert (route["microseconds"] is None) == small, route
            if small:
                assert route["verdict"] == "M > 16 only"
            elif route["name"] in ("packed", "plain"):
                assert route["verdict"] == "exact"
            else:
                assert route["verdict"] in ("exact", "rounding", "float", "sums")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_host_run(capsys):
    assert main(["bench", "--device", "cuda", "--host", "--rounds", "1"]) == 0
    assert "Host time of an eager call" in capsys.readouterr().out
