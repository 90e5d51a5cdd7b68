"""`scaled-mm explain`: what it makes of the library's answer."""

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
from helpers import refuses
from rich.console import Console

import scaled_mm
from scaled_mm import _library
from scaled_mm.explain import DEVICES, Device, explain
from scaled_mm_cli.commands.explain import show


def text_of(found):
    console = Console(width=100, record=True, file=io.StringIO())
    show(found, console)
    return console.export_text()


@pytest.mark.parametrize(("m", "n"), [(0, 4096), (1, 0)])
def test_an_empty_product(m, n):
    found = explain(m, n, 4096, device=DEVICES["H200"])
    assert (found.kernels, found.chosen) == ([], None)
    assert found.notes == ["D is empty: no kernel runs"]
    text = text_of(found)
    assert "operations: 0" in text and "No kernels for" not in text


REFUSED = {
    "m must be at least 0, got -1": {"m": -1},
    "n must be at least 0, got -2": {"n": -2},
    "k must be at least 0, got -3": {"k": -3},
    "out_dtype must be one of .*, int8, float8_e4m3fn, got int4": {"out_dtype": "int4"},
    "m must be at most 2147483647, got 2147483648": {"m": 2**31},
    f"n must be at most 2147483647, got {10**30}": {"n": 10**30},
}
test_refusals = refuses(REFUSED, explain, end="$", m=1, n=1, k=1)


@pytest.mark.parametrize(
    ("m", "n", "k", "activation"),
    [
        (1, 1, 131072, None),
        (0, 4, 131072, None),
        (1, 0, 131072, "reglu"),
        (1, 3, 4, "reglu"),
        (1, 4, 4, "swish"),
    ],
)
def test_what_the_op_refuses(m, n, k, activation):
    """In the words of the op, whatever they are."""
    a, b = torch.zeros(m, k, dtype=torch.int8), torch.zeros(k, n, dtype=torch.int8)
    with pytest.raises(ValueError) as of_the_op:
        scaled_mm.scaled_mm(a, b, torch.ones(1), torch.ones(1), activation=activation)
    with pytest.raises(ValueError, match=f"^{re.escape(str(of_the_op.value))}$"):
        explain(m, n, k, activation=activation, device=DEVICES["H200"])


def test_what_the_op_accepts():
    """Asking it takes neither the memory nor the time of the product."""
    assert explain(2**31 - 1, 2**20, 131071, device=DEVICES["H200"]).chosen is not None


@pytest.mark.parametrize("m", [0, 1, 17, 8192])
def test_the_library_answers(m):
    found = explain(m, 4096, 4096, device=DEVICES["H200"])
    assert found.arch == "sm90" and "sm90" in found.archs
    assert found.bytes >= m * 4096 + 4096 * 4096 + m * 4096 * 2
    assert found.floor_us == pytest.approx(found.bytes / 4.8e6, rel=1e-3)
    if m:
        assert sum(kernel.chosen for kernel in found.kernels) == 1
        assert all(kernel.chosen or kernel.reason for kernel in found.kernels)
        assert found.chosen is found.kernels[0] and found.cpu_isa == _library.cpu_isa()
        times = [x.predicted_us for x in found.kernels if x.predicted_us is not None]
        assert times == sorted(times)


def test_a_device_without_kernels():
    found = explain(64, 4096, 4096, device=Device("an old one", 70, 80, 0.9))
    assert (found.arch, found.chosen, found.predicted_tops) == (None, None, None)
    assert "No kernels for compute capability 7.0" in text_of(found)


def test_products_of_experts():
    """The weights of those that are hit count; many rows go to pairs of blocks."""
    sizes = {"n": 4096, "k": 7168, "experts": 256, "device": DEVICES["H200"]}
    token = explain(8, **sizes)
    assert token.chosen.name == "grouped_ping_32"
    assert 7 < token.weight_bytes / (4096 * 7168) <= 8
    tokens = explain(32_768, **sizes)
    assert tokens.chosen.name == "grouped_ping_160"
    assert tokens.weight_bytes == 256 * 4096 * 7168
    assert token.experts == 256 and "256 experts, bfloat16" in text_of(token)
    few = explain(1, **{**sizes, "experts": 1})
    assert few.weight_bytes == 4096 * 7168
    assert explain(8, **{**sizes, "experts": 2000}).chosen.name == "grouped_8x64"
    with pytest.raises(ValueError, match=r"^experts must be in 1\.\.2147483647, got 0$"):
        explain(8, **{**sizes, "experts": 0})


def test_choices_at_shapes_that_no_fit_saw():
    """Times of every near kernel on one H200 at 60 random shapes, none of which the tables' numbers
    were fitted to: the kernel chosen is nearly the fastest."""
    text = (Path(__file__).parent / "vectors/h200_unseen.json").read_text()
    lost = []
    for shape in json.loads(text):
        chosen = explain(shape["m"], shape["n"], shape["k"], device=DEVICES["H200"]).chosen
        lost.append(shape["us"][chosen.name] / min(shape["us"].values()))
    assert len(lost) == 60
    assert math.prod(lost) ** (1 / 60) < 1.01 and max(lost) < 1.08


@pytest.mark.parametrize(
    ("m", "n", "k", "bands"),
    [
        (8192, 14336, 3662, {"ping_128x128_2x1": 1, "coop_128x256_1x1": 1}),  # A has 30 MB
        (8192, 14336, 3663, {"ping_128x128_2x1": 8, "coop_128x256_1x1": 8}),
        (4096, 4096, 14336, {"ping_128x128_2x1": 8, "coop_128x256_1x1": 4}),
        (4096, 384, 16384, {"ping_128x128_2x1": 1}),  # three columns: two are no band of them
    ],
)
def test_bands_of_tiles(m: int, n: int, k: int, bands: dict[str, int]) -> None:
    """Where A does not stay in L2, as wide as the weight's part does."""
    kernels = {x.name: x.what for x in explain(m, n, k, device=DEVICES["H200"]).kernels}
    for name, width in bands.items():
        assert ("bands" in kernels[name]) == (width > 1)
        assert width == 1 or f" in bands of {width}" in kernels[name]


def test_a_forced_kernel(cli):
    with _library.forced_kernels("ping_64x128_2x1"):
        kernel = explain(1, 4096, 4096, device=DEVICES["H200"]).chosen
        assert kernel is not None and kernel.name == "ping_64x128_2x1"
        found = explain(1, 4096, 0, device=DEVICES["H200"])
        assert found.chosen.name.startswith("stream_")
        assert found.notes[0].startswith(
            "SCALED_MM_KERNEL=ping_64x128_2x1 does not serve: it needs"
        )
    with _library.forced_kernels("dense"):  # of the other family: this one is not touched
        assert explain(1, 4096, 4096, device=DEVICES["H200"]).chosen.name == "stream_8x64"
    with _library.forced_kernels("none"):
        said = cli("explain 1 4096 4096 --device H200", code=2)
    assert said.startswith("scaled-mm: SCALED_MM_KERNEL must be one of sm")
    assert "sm90/stream_8x64, " in said and said.endswith(", got none\n")


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "reglu", "swiglu", "geglu"])
def test_kernels_have_activations_or_refuse_them(activation):
    found = explain(4096, 4096, 4096, activation=activation, device=DEVICES["H200"])
    refusals = {each.name: each.reason for each in found.kernels if each.predicted_us is None}
    assert set(refusals) == {"ping_128x192_2x1"}
    assert "no registers for a residual, an activation" in refusals["ping_128x192_2x1"]
    columns = 2048 if activation.endswith("glu") else 4096
    assert found.bytes == 4096 * (4096 + 4096 + 2 * columns)
    ragged = explain(4096, 4094, 4096, activation=activation, device=DEVICES["H200"])
    padded = [each.name for each in ragged.kernels if "bytes are not 16-byte aligned" in each.what]
    assert {name[:4] for name in padded} == {"ping", "coop"}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_endings_hide_behind_the_other_warpgroup(activation: str, dtype: str):
    """A cooperative kernel's two end their tiles together, and nothing hides that."""
    found = explain(
        1024, 14336, 4096, activation=activation, out_dtype=dtype, device=DEVICES["H100"]
    )
    assert found.chosen.name.startswith("ping")


def test_more_tiles_than_a_grid_has_rows():
    """Kernels of mma.sync count tiles in one dimension of the grid, whose end is far away."""
    found = explain(16, 65536 * 256, 64, device=DEVICES["A100"])
    assert all(kernel.predicted_us is not None for kernel in found.kernels)


def test_notes_of_the_library():
    aligned = explain(4096, 4096, 4096, device=DEVICES["H200"])
    assert aligned.notes == []
    ragged = explain(4096, 4095, 4095, device=DEVICES["H200"])
    assert len(ragged.notes) == 1 and "K=4095" in ragged.notes[0]
    padded = {kernel.name[:4] for kernel in ragged.kernels if "8190 bytes" in kernel.what}
    assert padded == {"ping", "coop"}
