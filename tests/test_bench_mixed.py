"""`scaled-mm bench --mixed`: results and verdicts; no time is looked at."""

import pytest

from scaled_mm.bench import measure
from scaled_mm.bench.lowbit import LOWBIT_CONTENDERS
from scaled_mm.bench.measure import LowbitSettings


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("scheme", "group"), [("w8a16", 0), ("w4a16", 32), ("w8a16", 64), ("w4a8", 0), ("w4a8", 32)]
)
def test_every_contender_computes_the_product(scheme, group, dtype):
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
