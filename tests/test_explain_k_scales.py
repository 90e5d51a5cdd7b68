"""`explain` of scales along K: `w4a8_mm`, and `scaled_mm` in blocks."""

import json
from typing import Any

import pytest
from helpers import refuses

from scaled_mm import _library
from scaled_mm.explain import DEVICES, explain, explain_mixed
from scaled_mm_cli.main import main

OTHER = {"w4a8": "takes weights of 4 bits", "blocks": "takes int8 in blocks"}


@pytest.mark.parametrize("group", [32, 128, None])
def test_w4a8(group: int | None) -> None:
    """Bytes of the weight: half of its values, and 20 bits for each group of a column."""
    given: dict[str, Any] = {"bits": 4, "group": group, "int8_input": True}
    found = explain_mixed(16, 4096, 8192, **given, device=DEVICES["H200"])
    weight = 4096 * 8192 // 2 + 4096 * (8192 // (group or 8192)) * 5 // 2
    assert (found.weight_bytes, found.group, found.int8_input) == (weight, group or 8192, True)
    assert found.bytes == weight + 16 * 8192 + 2 * 16 * 4096
    assert found.chosen is not None and found.chosen.name.startswith("w4a8")
    (refused,) = [each for each in found.kernels if each.predicted_us is None]
    assert (refused.name, refused.reason) == ("blocks_128", OTHER["blocks"])


def test_blocks() -> None:
    found = explain(1024, 4096, 8192, blocks=True, out_dtype="float32", device=DEVICES["H200"])
    assert (found.group, found.blocks, found.weight_bytes) == (128, True, 4096 * 8192)
    assert found.bytes == 4096 * 8192 + 1024 * 8192 + 4 * 1024 * 4096
    assert found.chosen is not None and found.chosen.name == "blocks_128"
    refused = [each for each in found.kernels if each.predicted_us is None]
    assert {each.reason for each in refused} == {OTHER["w4a8"]}


@pytest.mark.parametrize("gpu", ["A100", "T4", "B200"])
def test_every_arch_has_kernels(gpu: str) -> None:
    for found in (
        explain_mixed(8, 256, 256, bits=4, int8_input=True, device=DEVICES[gpu]),
        explain(8, 256, 256, blocks=True, device=DEVICES[gpu]),
    ):
        assert found.chosen is not None and found.chosen.name.startswith("groups_")


def test_nothing_to_multiply() -> None:
    found = explain_mixed(4, 64, 0, bits=4, int8_input=True, device=DEVICES["H200"])
    assert (found.kernels, found.notes) == ([], ["K is 0: no kernel runs, D is the bias"])


def test_a_forced_kernel() -> None:
    with _library.forced_kernels("w4a8_128"):
        found = explain_mixed(1, 4096, 4096, bits=4, int8_input=True, device=DEVICES["H200"])
        assert found.chosen is not None and found.chosen.name == "w4a8_128"


W4A8_REFUSED = {
    "int8_input must come with 4 packed bits without float zeros, got 8 bits": {"bits": 8},
    "int8_input must come with .*, got 4 bits, float zeros": {"zeros": "float"},
    "int8_input must come with .*, not packed": {"packed": False},
    "out_dtype must be one of bfloat16, float16, float32, got int8": {"out_dtype": "int8"},
}
test_refusals_of_w4a8 = refuses(
    W4A8_REFUSED, explain_mixed, m=1, n=64, k=64, bits=4, int8_input=True
)


BLOCKS_REFUSED = {
    "experts must be None with blocks, got 8": {"experts": 8},
    "out_dtype must be one of bfloat16, float16, float32, got int8": {"out_dtype": "int8"},
}
test_refusals_of_blocks = refuses(BLOCKS_REFUSED, explain, end="$", m=1, n=64, k=64, blocks=True)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["explain", "16", "4096", "8192", "--device", "H200"]
    assert main([*line, "--bits", "4", "--group", "128", "--int8-input"]) == 0
    out = capsys.readouterr().out
    assert "K=8192, int4 in groups of 128, int8 activations, bfloat16, on H200" in out
    assert "chosen: int8 wgmma from packed words" in out
    assert main([*line, "--blocks"]) == 0
    assert "K=8192, int8 in blocks of 128, bfloat16, on H200" in capsys.readouterr().out
    assert main([*line, "--blocks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocks"]
