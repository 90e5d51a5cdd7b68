"""`explain` of weights of few bits (`--awq`, `--bits`, `w4a8_mm`), and of `scaled_mm` in blocks:
the kernels, as the library chooses among them."""

import json
from typing import Any

import pytest
from awq_cases import explain_awq
from helpers import Cli, refuses
from test_explain import text_of

from scaled_mm import _library
from scaled_mm.explain import DEVICES, explain, explain_mixed

TAKES_PACKED = "takes packed units"


def test_the_library_answers_for_int4():
    found = explain_awq(16, 4096, 8192, group=64, out_dtype="float16", device=DEVICES["H200"])
    assert (found.arch, found.group, found.notes) == ("sm90", 64, [])
    words = 4096 * 8192 // 2 + 128 * 4096 * 5 // 2
    assert found.weight_bytes == words
    assert found.bytes == words + 2 * 16 * (4096 + 8192)
    assert found.floor_us == pytest.approx(found.bytes / 4.8e6, rel=1e-3)
    assert found.weight_floor_us == pytest.approx(words / 4.8e6, rel=1e-3)
    assert sum(kernel.chosen for kernel in found.kernels) == 1
    for kernel in found.kernels:
        slower = kernel.reason.endswith("the kernel chosen")
        assert kernel.chosen or slower or kernel.reason == TAKES_PACKED
    for kernel in found.kernels:
        assert "slices of K" in kernel.what or not kernel.name.startswith("stream")
        assert kernel.name.startswith("packed") == (kernel.reason == TAKES_PACKED)


def test_the_library_answers_for_a_packed_weight():
    """One of its own kernels is chosen, for every size and every group that can be packed."""
    for m, n, k, group in ((1, 4096, 4096, 128), (300, 8, 96, 32), (64, 1000, 192, 192)):
        found = explain_awq(m, n, k, group=group, packed=True, device=DEVICES["H200"])
        assert found.chosen is not None
        assert found.chosen.what.startswith("from packed words") or found.chosen.name == "dense"
        for kernel in found.kernels:
            plain = kernel.name.startswith("stream")
            assert plain == (kernel.reason == "takes AWQ's words, not packed ones")


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
    dense, *others = found.kernels
    streams = [kernel for kernel in others if kernel.name.startswith("stream")]
    assert (dense.name, dense.chosen) == ("dense", True)
    assert {kernel.reason for kernel in streams} == {f"does not take the shape: {said}"}
    assert {kernel.predicted_us for kernel in streams} == {None}


def test_an_empty_int4_product():
    found = explain_awq(4, 64, 0, device=DEVICES["H200"])
    assert found.weight_bytes == 0
    assert found.notes == ["K is 0: no kernel runs, D is the bias"] and found.kernels == []
    assert "No kernels for" not in text_of(found)


AWQ_REFUSED = {
    "m must be at least 0, got -1": {"m": -1},
    "group must be a divisor of k=64, got 48": {"group": 48},
    "group must be a divisor of k=64, got 0": {"group": 0},
    "group must be a multiple of 32 where the weight is packed, got 16": {
        "group": 16,
        "packed": True,
    },
    "out_dtype must be one of bfloat16, float16, got float32": {"out_dtype": "float32"},
}
test_int4_refusals = refuses(AWQ_REFUSED, explain_awq, end="$", m=1, n=64, k=64, group=32)


COMMANDS = {  # what is asked: what is shown, and a field of the JSON
    "--awq --group 64": ("int4 in groups of 64, bfloat16", "weight_bytes", 18_087_936),
    "--bits 8 --group 128 --zeros integer --packed": ("int8 in groups of 128", "bits", 8),
    "--bits 8": ("K=8192, int8", "group", 8192),
    "--bits 4 --group 128 --int8-input": ("int8 wgmma from packed words", "int8_input", True),
    "--blocks": ("int8 in blocks of 128, bfloat16", "blocks", True),
}


@pytest.mark.parametrize("asked", COMMANDS)
def test_command(asked: str, cli: Cli) -> None:
    shown, field, value = COMMANDS[asked]
    line = f"explain 16 4096 8192 --device H200 {asked}"
    assert shown in cli(line)
    assert json.loads(cli(line, "--json"))[field] == value


def test_a_forced_kernel_of_int4():
    with _library.forced_kernels("dense"):
        kernel = explain_awq(1, 4096, 4096, device=DEVICES["H200"]).chosen
        assert kernel is not None and kernel.name == "dense"
    with _library.forced_kernels("stream_8"):
        found = explain_awq(1, 4096, 4096, group=16, device=DEVICES["H200"])
        assert len(found.notes) == 1
        assert found.notes[0].startswith("SCALED_MM_KERNEL=stream_8 does not serve: it does not")


@pytest.mark.parametrize(
    ("bits", "zeros", "of_group"),
    [(8, "none", 16), (8, "integer", 24), (8, "float", 32), (4, "none", 16), (4, "float", 32)],
)
@pytest.mark.parametrize("group", [64, None])
def test_the_library_answers_for_weight_only_products(bits, zeros, of_group, group):
    """Bytes of the weight: its values, and a group's scale and zero point for each column."""
    found = explain_mixed(16, 64, 256, bits=bits, zeros=zeros, group=group, device=DEVICES["H200"])
    groups = 256 // (group or 256)
    assert found.weight_bytes == 256 * 64 * bits // 8 + groups * 64 * of_group // 8
    assert (found.bits, found.group, found.arch) == (bits, group or 256, "sm90")
    assert found.kernels


REFUSED = {
    "bits must be 4 or 8, got 3": {"bits": 3},
    "zeros must be one of none, integer, float, got real": {"zeros": "real"},
    "group must be a divisor of k=64, got 48": {"group": 48},
    "group must be a multiple of 32 where the weight is packed, got 16": {"group": 16},
    "out_dtype must be one of bfloat16, float16, got float32": {"out_dtype": "float32"},
    "k must be at least 0, got -1": {"k": -1},
}
test_refusals_of_weight_only_products = refuses(REFUSED, explain_mixed, end="$", m=1, n=64, k=64)


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
    refused = {each.name: each.reason for each in found.kernels if each.predicted_us is None}
    of_groups = {"w4a8_128x192": "takes one scale along K"} if group else {}
    assert refused == {"blocks_128": OTHER["blocks"], **of_groups}


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
