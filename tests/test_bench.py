"""`scaled-mm bench`: the structure of its result and its verdicts; no time is looked at."""

import copy
import json

import pytest
import torch

from scaled_mm.bench import contenders, host, measure
from scaled_mm.bench.cases import EPILOGUES, make_case
from scaled_mm.bench.contenders import CONTENDERS, Unsupported
from scaled_mm.bench.measure import Measurement, Settings, best, judge

VERDICTS = ("exact", "rounding", "wrong", "float", "sums")  # anything else: why there is none
COMPILED = "_int_mm compiled"  # minutes of compiler time for nothing here


@pytest.fixture(scope="module", params=EPILOGUES)
def result(request):
    settings = Settings(epilogue=request.param, rounds=1, without=(COMPILED,))
    return measure.run([(2, 16, 16), (5, 16, 16)], settings)


def test_every_contender_has_an_entry(result):
    for case in result["results"]:
        assert [r["name"] for r in case["routes"]] == [
            c.name for c in CONTENDERS if c.name != COMPILED and "cpu" in c.devices
        ]
        for route in case["routes"]:
            assert (route["gops"] is None) == (route["verdict"] not in VERDICTS)


def test_ours_are_exact(result):
    for case in result["results"]:
        ours = [r for r in case["routes"] if r["name"] in ("packed", "plain")]
        assert [(r["verdict"], r["off_r1"], r["checked"]) for r in ours] == [
            ("exact", 0, case["m"] * case["n"])
        ] * 2


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(
    "contender", [c for c in CONTENDERS if "cpu" in c.devices], ids=lambda c: c.name
)
def test_every_contender_computes_the_case(contender, epilogue, monkeypatch):
    """Of small values, which no instruction set's sums saturate at."""
    monkeypatch.setattr(contenders, "_compiled", lambda _: contenders._int_mm_linear)
    case = make_case(3, 16, 32, epilogue, torch.bfloat16)
    for x in (case.a, case.b):
        x.remainder_(24)
    adj = case.b.sum(0, dtype=torch.int32)
    of_azp = {"azp_adj": adj, "azp_with_adj": adj if case.azp is None else case.azp * adj}
    for name in of_azp.keys() & case.operands.keys():
        case.operands[name].copy_(of_azp[name])
    if contender.name == "onednn qlinear" and "azp" in case.operands:
        with pytest.raises(Unsupported, match=r"^one scale and zero point per tensor only$"):
            contender.prepare(case)
        return
    route = contender.prepare(case)
    out = route.run(route.x, route.weight())
    exact = exact_of(case)
    assert torch.allclose(out.double(), exact, atol=0.02 * float(exact.abs().max()), rtol=0)
    if not contender.unjudged:
        judge(entry := Measurement(contender.name), case, out)
        assert entry.right, entry.verdict


def exact_of(case):
    acc = case.a.double() @ case.b.double()
    if case.azp is not None:
        acc -= case.azp * case.b.double().sum(0)
    return case.scale_a * case.scale_b * acc + case.operands.get("bias", 0)


def test_wrong_numbers_are_shown_and_not_right():
    case = make_case(3, 16, 32, "bias", torch.bfloat16)
    entry = Measurement("fast", gops=9.0)
    judge(entry, case, torch.zeros(3, 16, dtype=torch.bfloat16))
    assert (entry.verdict, entry.right) == ("wrong", False)
    assert entry.beyond_bound > 40
    slow = Measurement("slow", "exact", gops=1.0)
    assert best([entry, slow], right=False) is entry
    assert best([entry, slow], right=True) is slow


def test_sums_without_an_epilogue_are_no_best():
    sums, other = (
        Measurement("_int_mm sums", "sums", gops=9.0),
        Measurement("other", "exact", gops=1.0),
    )
    assert best([sums, other], right=False) is other


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_a_sample_of_rows_and_columns_is_judged(epilogue):
    case = make_case(40, 48, 32, epilogue, torch.float32)
    out = CONTENDERS[1].prepare(case).run(case.a, case.b)
    entry = Measurement("plain")
    judge(entry, case, out, most=32 * 20)
    assert (entry.verdict, entry.checked) == ("exact", 16 * 20)
    out[-1, -1] += 1  # the corners belong to the sample
    judge(entry, case, out, most=32 * 20)
    assert (entry.verdict, entry.off_r1) == ("wrong", 1)


def test_host_run(monkeypatch, cli):
    monkeypatch.setattr(host, "CALLS", 2)
    shown = cli("bench --host --rounds 1 --without", COMPILED)
    assert "Host time of an eager call, M=1 N=16 K=16" in shown
    for label in ("plain, ScaledEpilogueAzpPerToken", "quantize_int8, static", "torch.mm"):
        assert label in shown


@pytest.mark.parametrize("verdict", ["rounding", "wrong", "it failed"])
def test_exit_code_when_ours_is_not_exact(result, verdict, tmp_path, cli):
    result = copy.deepcopy(result)
    result["results"][0]["routes"][1]["verdict"] = verdict
    path = tmp_path / "x.json"
    path.write_text(json.dumps(result))
    cli("bench --read", path, code=1)
