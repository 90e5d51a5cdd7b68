"""`scaled-mm bench --awq`, `--awq-dequantize` and `--mixed`: results and verdicts; no time is
looked at."""

import dataclasses

import pytest
import torch
from cuda_support import GPU

from scaled_mm.bench import measure
from scaled_mm.bench.lowbit import LOWBIT_CONTENDERS, make_lowbit_case
from scaled_mm.bench.measure import LowbitSettings, Measurement, judge

DTYPES = ("bfloat16", "float16")


def names(op, device="cpu"):
    return [c.name for c in LOWBIT_CONTENDERS[op] if device in c.devices]


@pytest.fixture(scope="module", params=DTYPES)
def products(request):
    settings = LowbitSettings(group=32, out_dtype=request.param, rounds=1)
    return measure.run([(2, 64, 128), (5, 64, 128)], settings)


@pytest.fixture(scope="module", params=DTYPES)
def weights(request):
    settings = LowbitSettings("awq_dequantize", out_dtype=request.param, rounds=2)
    return measure.run([(0, 64, 128), (0, 8, 256)], settings)


def test_every_contender_computes_the_product(products):
    for case in products["results"]:
        assert [route["name"] for route in case["routes"]] == names("awq_gemm")
        ours, *peers = case["routes"]
        assert ours["verdict"] in ("exact", "bound")
        assert ours["times_awq_gemm"] == 1
        for route in peers:
            assert route["verdict"] in ("exact", "bound", "rounding"), route
        assert case["best_right"]["name"] in names("awq_gemm")[1:]


def test_every_contender_computes_the_weight(weights):
    for case in weights["results"]:
        assert [route["name"] for route in case["routes"]] == names("awq_dequantize")
        for route in case["routes"]:
            assert (route["verdict"], route["checked"]) == ("exact", case["k"] * case["n"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_verdicts_on_a_product(dtype):
    case = make_lowbit_case("awq_gemm", 20, 48, 64, 32, dtype)
    exact = case.x.double() @ case.dequantized().double()

    def verdict(out):
        entry = Measurement("it")
        judge(entry, case, out.to(dtype))
        return entry.verdict, entry.off_r1, entry.beyond_bound

    assert verdict(exact) == ("exact", 0, 0)
    off = exact.to(dtype)
    off[0, 0] *= 1 + 2 * torch.finfo(dtype).eps
    kind, different, beyond = verdict(off)
    assert (kind in ("bound", "rounding"), different, beyond <= 1) == (True, 1, True)
    off[-1, -1] += 1  # the corners belong to the sample
    assert verdict(off)[0] == "wrong"
    off[-1, -1] = torch.nan
    assert verdict(off)[0] == "wrong"


def test_verdicts_on_a_weight():
    case = make_lowbit_case("awq_dequantize", 0, 48, 64, 32, torch.float16)
    weight = case.dequantized()

    def verdict(out):
        entry = Measurement("it")
        judge(entry, case, out)
        return entry.verdict

    assert verdict(weight) == "exact"
    assert verdict(torch.nextafter(weight, torch.zeros_like(weight))) == "rounding"
    assert verdict(-weight) == "wrong"
    assert verdict(weight * torch.nan) == "wrong"


def test_commands(tmp_path, cli):
    path = tmp_path / "x.json"
    shown = cli("bench --awq --weight 32x64 --m 2 --group 32 --rounds 1 --json", path)
    assert "awq_gemm / best right" in shown and cli("bench --read", path) == shown
    assert "awq_dequantize" in cli("bench --awq-dequantize --weight 32x128 --rounds 1")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("scheme", "group"), [("w8a16", 0), ("w4a16", 32), ("w8a16", 64), ("w4a8", 0), ("w4a8", 32)]
)
def test_every_contender_computes_the_mixed_product(scheme, group, dtype):
    settings = LowbitSettings(scheme, group, dtype, rounds=1)
    result = measure.run([(2, 64, 128), (5, 64, 128)], settings)
    for case in result["results"]:
        assert [route["name"] for route in case["routes"]] == [
            contender.name for contender in LOWBIT_CONTENDERS[scheme]
        ]
        ours, *peers = case["routes"]
        assert ours["verdict"] in ("exact", "bound")
        assert ours[f"times_{scheme}"] == 1
        able = [route for route in peers if "only" not in route["verdict"]]
        unable = {"w8a16": {"int4pack mm"}, "w4a16": {"int8pack mm"}, "w4a8": set()}[scheme]
        unable |= (
            {"w8a16": {"int8pack mm"}, "w4a8": {"as w8a8"}}.get(scheme, set()) if group else set()
        )
        assert {route["name"] for route in peers if route not in able} == unable
        for route in able:
            assert route["verdict"] in ("exact", "bound", "rounding"), route


@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=GPU) for dtype in DTYPES])
def test_gpu_run(dtype):
    settings = LowbitSettings(out_dtype=dtype, device="cuda", rounds=2)
    for case in measure.run([(1, 512, 512), (300, 1024, 512)], settings)["results"]:
        for route in case["routes"]:
            if route["name"] == "int4pack mm" and dtype == "float16":
                assert route["verdict"] == "bfloat16 only"
            else:
                assert route["verdict"] in ("exact", "bound", "rounding"), route
    settings = dataclasses.replace(settings, op="awq_dequantize")
    (case,) = measure.run([(0, 1024, 512)], settings)["results"]
    assert [route["verdict"] for route in case["routes"]] == ["exact"] * 3
