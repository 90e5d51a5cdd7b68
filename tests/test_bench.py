"""`scaled-mm bench`: the structure of its result and its verdicts; no time is looked at."""

import json

import pytest
import torch

from scaled_mm import bench
from scaled_mm.bench.contenders import CONTENDERS, EPILOGUES, make_case
from scaled_mm.bench.measure import Entry, Settings, best, judge

VERDICTS = ("exact", "rounding", "wrong", "float")  # anything else says why there are no numbers
COMPILED = "_int_mm compiled"  # minutes of compiler time for nothing here


@pytest.fixture(scope="module", params=EPILOGUES)
def result(request):
    settings = Settings(epilogue=request.param, rounds=1, without=(COMPILED,))
    return bench.run([(2, 16, 16), (5, 16, 16)], settings)


def test_every_contender_has_an_entry(result):
    for case in result["results"]:
        assert [r["name"] for r in case["routes"]] == [
            c.name for c in CONTENDERS if c.name != COMPILED
        ]
        for route in case["routes"]:
            assert (route["gops"] is None) == (route["verdict"] not in VERDICTS)


def test_ours_are_exact(result):
    for case in result["results"]:
        ours = [r for r in case["routes"] if r["name"] in ("packed", "plain")]
        assert [(r["verdict"], r["off_r1"], r["checked"]) for r in ours] == [
            ("exact", 0, case["m"] * case["n"])
        ] * 2


def test_int_mm_computes_the_same_product(result):
    for case in result["results"]:
        (route,) = [r for r in case["routes"] if r["name"] == "_int_mm"]
        assert route["verdict"] in ("exact", "rounding")


def test_tables_from_json(result):
    result = json.loads(json.dumps(result))
    text = bench.markdown(result)
    assert EPILOGUES[result["settings"]["epilogue"]] in text
    assert "| GOP/s | M=2 | M=5 | output |" in text
    assert text.count("packed / best right") == 1


def test_wrong_numbers_are_shown_and_not_right():
    case = make_case(3, 32, 16, "bias", torch.bfloat16)
    entry = Entry("fast", gops=9.0)
    judge(entry, case, torch.zeros(3, 16, dtype=torch.bfloat16))
    assert (entry.verdict, entry.right) == ("wrong", False)
    assert entry.beyond_bound > 40
    slow = Entry("slow", "exact", gops=1.0)
    assert best([entry, slow], right=False) is entry
    assert best([entry, slow], right=True) is slow


@pytest.mark.parametrize("text", ["4096", "0x1x1", "1x2x3x4", "axbxc", "1x-2x3"])
def test_shape_is_refused_by_rule_and_value(text):
    with pytest.raises(ValueError, match=f"--shape must be MxKxN.*got {text}"):
        bench.parse_shape(text)
