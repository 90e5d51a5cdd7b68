"""`scaled-mm explain --awq`: the arms of an int4 product, as the library chooses among them."""

import json

import pytest
from test_explain import text_of

from scaled_mm.cli import main
from scaled_mm.explain import DEVICES, explain_awq


def test_the_library_answers_for_int4():
    found = explain_awq(16, 4096, 8192, group=64, device=DEVICES["H200"])
    assert (found.arch, found.group, found.notes) == ("sm90", 64, [])
    words = 4096 * 8192 // 2 + 128 * 4096 * 5 // 2
    assert found.weight_bytes == words
    assert found.bytes == words + 2 * 16 * (4096 + 8192)
    assert found.floor_us == pytest.approx(found.bytes / 4.8e6, rel=1e-3)
    assert found.weight_floor_us == pytest.approx(words / 4.8e6, rel=1e-3)
    assert sum(row.chosen for row in found.rows) == 1
    assert all(row.chosen or row.reason.endswith("the row chosen") for row in found.rows)
    assert all("slices of K" in row.what or row.name == "dense" for row in found.rows)


def test_the_arm_follows_the_shape():
    """Few tokens come straight from the words, if the words are cut so."""

    def chosen(m, n, k, group=128):
        row = explain_awq(m, n, k, group=group, device=DEVICES["H200"]).chosen
        assert row is not None
        return row.name

    assert chosen(1, 4096, 4096).startswith("stream_")
    assert chosen(1, 4096, 4096, 16) == "dense"


@pytest.mark.parametrize(
    ("n", "k", "group", "said"),
    [
        (4096, 4096 + 32, 32, "K=4128 is no multiple of 64"),
        (4096 + 16, 4096, 32, "N=4112 is no multiple of 32"),
        (4096, 4096, 16, "groups of 16, not 32 or a multiple of 64"),
    ],
)
def test_shapes_that_do_not_stream(n, k, group, said):
    found = explain_awq(1, n, k, group=group, device=DEVICES["H200"])
    dense, *streams = found.rows
    assert (dense.name, dense.chosen) == ("dense", True)
    assert {row.reason for row in streams} == {f"does not take the shape: {said}"}
    assert {row.predicted_us for row in streams} == {None}


def test_a_device_without_int4_kernels():
    found = explain_awq(1, 4096, 4096, device=DEVICES["A100"])
    assert found.rows == [] and found.weight_floor_us > 0
    assert "No kernels for compute capability 8.0" in text_of(found)


def test_an_empty_int4_product():
    found = explain_awq(4, 64, 0, device=DEVICES["H200"])
    assert found.weight_bytes == 0
    assert found.notes == ["K is 0: no arm runs, D is the bias"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"m": -1}, "m must be at least 0, got -1"),
        ({"n": 12}, "n must be a multiple of 8, got 12"),
        ({"group": 48}, "group must be a divisor of k=64, got 48"),
        ({"group": 0}, "group must be a divisor of k=64, got 0"),
        ({"out_dtype": "float32"}, "out_dtype must be one of bfloat16, float16, got float32"),
    ],
    ids=str,
)
def test_int4_refusals(arguments, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        explain_awq(**{"m": 1, "n": 64, "k": 64, "group": 32, **arguments})


def test_int4_command(capsys):
    line = ["explain", "16", "4096", "8192", "--awq", "--group", "64", "--device", "H200"]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "M=16 N=4096 K=8192, int4 in groups of 64, bfloat16, on H200" in out
    assert "chosen: straight from the words, tiles of" in out
    assert "floor of the weight alone: 3.8 us, 18,087,936 bytes" in out
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group"], found["weight_bytes"]) == (64, 18_087_936)


def test_a_forced_arm(monkeypatch, capsys):
    monkeypatch.setenv("SCALED_MM_AWQ_ARM", "dense")
    row = explain_awq(1, 4096, 4096, device=DEVICES["H200"]).chosen
    assert row is not None and row.name == "dense"
    monkeypatch.setenv("SCALED_MM_AWQ_ARM", "stream_8")
    found = explain_awq(1, 4096, 4096, group=16, device=DEVICES["H200"])
    assert found.notes == ["SCALED_MM_AWQ_ARM=stream_8 does not take the shape"]
    monkeypatch.setenv("SCALED_MM_AWQ_ARM", "none")
    assert main(["explain", "1", "4096", "4096", "--awq", "--device", "H200"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("scaled-mm: SCALED_MM_AWQ_ARM must be one of stream_")
    assert said.endswith(", got none\n")
