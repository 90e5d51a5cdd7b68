"""`scaled-mm bench --mixed`: results and verdicts; no time is looked at."""

import json

import pytest
import torch

from scaled_mm.bench import measure, table
from scaled_mm.bench.measure import LowbitSettings, Measurement, judge
from scaled_mm.bench.mixed import MIXED_CONTENDERS, make_mixed_case
from scaled_mm_cli.main import main


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("scheme", "group"), [("w8a16", 0), ("w4a16", 32), ("w8a16", 64), ("w4a8", 0), ("w4a8", 32)]
)
def test_every_contender_computes_the_product(scheme, group, dtype):
    settings = LowbitSettings(scheme, group, dtype, rounds=1)
    result = measure.run([(2, 64, 128), (5, 64, 128)], settings)
    for case in result["results"]:
        assert [route["name"] for route in case["routes"]] == [
            contender.name for contender in MIXED_CONTENDERS[scheme]
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
    text = table.markdown(json.loads(json.dumps(result)))
    groups = f"groups of {group}" if group else "per channel"
    assert f"**N=64 K=128, {scheme}, {groups}, {dtype}, weights cold**" in text
    assert f"| {scheme} / best right |" in text


def test_verdicts():
    case = make_mixed_case("w8a16", 20, 48, 64, 0, torch.float16)
    exact = (case.x.double() @ case.dequantized().double()).half()

    def verdict(out):
        entry = Measurement("it")
        judge(entry, case, out)
        return entry.verdict

    assert verdict(exact) == "exact"
    exact[-1, -1] += 1  # the corners belong to the sample
    assert verdict(exact) == "wrong"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mixed", "w2a16"], "--mixed must be one of w8a16, w4a16, w4a8, got"),
        (["--mixed", "w8a16", "--awq"], "--awq must be given without --mixed, got both"),
        (["--mixed", "w4a16", "--epilogue", "azp"], "--epilogue must be left out"),
        (["--awq", "--group", "0"], "--group must be at least 1 with --awq, got 0"),
        (
            ["--mixed", "w4a16", "--shape", "1x64x100"],
            "--weight must have K in multiples of the group",
        ),
    ],
)
def test_refused(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
