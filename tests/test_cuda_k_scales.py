"""Products with scales along K on the GPU: the bits of the CPU backend, which test_w4a8.py holds to
the reference; in graphs, and into tensors that are given."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cuda_support import DEVICE, GPU, assert_unchanged, forced, kernels, on_device, streams_only
from cuda_support import assert_outputs as assert_all
from operands import ACTIVATIONS, COLUMN, GATED, Layout
from test_w4a8 import CASES, ENDINGS, OUTS, Case, blocks
from torch import Tensor

import scaled_mm
from scaled_mm import pack_weight, w4a8_mm

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]
ROWS = ["", *kernels("k_scales")]


def packed_there(w: scaled_mm.MixedWeight) -> scaled_mm.MixedWeight:
    """The weight, packed on the device."""
    q, scales, zeros, order = w.unpack()
    plain = {"q": q, "scales": scales, "zeros": zeros}
    there = pack_weight(**on_device(plain), bits=4)
    return there if order is None else replace(there, order=order.to(DEVICE))


def assert_case(case: Case) -> None:
    given, _ = case.build()
    there = on_device({name: x for name, x in given.items() if name != "w"})
    w, expected = packed_there(given["w"]), {"d": w4a8_mm(**given).to(DEVICE)}
    for row in ROWS:
        with forced(row):
            assert_all(f"w4a8_mm {row}", {"d": w4a8_mm(w=w, **there)}, expected, case)
    assert_unchanged(there, {name: given[name] for name in there}, case)


def more_cases() -> Iterator[Case]:
    """Tiles of every length, several slices, endings of every kind; groups that cut units."""
    rows = itertools.cycle((1, 2, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 257))
    sizes = [(64, 72, 32), (128, 64, 128), (1056, 65, 96), (1472, 224, 64), (4096, 1032, 128)]
    sizes += [(2080, 264, 2080), (1000, 136, 1000), (2176, 1, 128), (300, 24, 300), (96, 8, 32)]
    sizes += [(4096, 200, 32), (2304, 130, 768), (3200, 96, 160), (8192, 40, 2048), (33, 3, 33)]
    sizes += [(14336, 520, 128), (9344, 136, 32), (9216, 72, 2304)]
    endings = itertools.cycle(("", *ACTIVATIONS, "residual"))
    azps = itertools.cycle(("", "token", "", "one", "wraps"))
    for i, ((k, n, group), zeros, out) in enumerate(
        itertools.product(sizes, (False, True), OUTS * 2)
    ):
        ending = next(endings)
        yield Case(
            *(f"more{i}", (next(rows),), n, k, group, zeros, next(azps)),
            scales="signed" if i % 7 == 0 else "usual",
            dtype=OUTS[i % 2],
            one_scale=i % 5 == 0,
            ending="" if ending in GATED and n % 2 else ending,
            bias=i % 3 > 0,
            shuffled=i % 4 == 3 and group < k,
            x=(Layout(), COLUMN, Layout(step=2), Layout(pad=5))[i % 4 if i % 3 == 0 else 0],
            out_dtype=out,
        )


MORE = {case.name: case for case in more_cases()}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_cpu(name: str) -> None:
    assert_case(CASES[name])


@pytest.mark.parametrize("part", range(12))
def test_more_shapes(part: int) -> None:
    for case in list(MORE.values())[part::12]:
        assert_case(case)


def test_one_group_has_the_bits_of_scaled_mm() -> None:
    for m, n, k in ((1, 4096, 4096), (17, 1030, 2500), (300, 520, 4096)):
        given, _ = Case("channel", (m,), n, k, k, True, "token", bias=True).build()
        there = on_device({name: x for name, x in given.items() if name != "w"})
        w = packed_there(given["w"]).unpack()
        b = (w.q.short() - w.zeros.short()).to(torch.int8)
        x, scales = there["x"], (there["scale_a"], w.scales.float())
        terms = {"azp": there["azp"], "azp_adj": scaled_mm.azp_adj(b), "bias": there["bias"]}
        expected = scaled_mm.scaled_mm(x, b, *scales, **terms)
        got = w4a8_mm(w=packed_there(given["w"]), **there)
        assert_all("w4a8_mm", {"d": got}, {"d": expected}, m, n, k)


BLOCK_SIZES = [(1, 256, 128), (3, 130, 200), (7, 1, 300), (40, 300, 2500), (130, 128, 1024)]
BLOCK_SIZES += [(34, 140, 0), (1, 4097, 4096), (65, 1031, 1160), (257, 384, 3000), (16, 64, 1025)]
BLOCK_SIZES += [(20, 260, 9300), (300, 130, 14336)]


@pytest.mark.parametrize("size", BLOCK_SIZES)
def test_blocks_have_the_bits_of_the_cpu(size: tuple[int, int, int]) -> None:
    m, n, _ = size
    endings = dict(ENDINGS)
    endings["residual"] = {"residual": torch.randn(n, m).t(), "bias": torch.randn(n)}
    endings["geglu int8"] = {**ENDINGS["int8"], "activation": "geglu"}
    for name, ending in endings.items():
        if n % 2 and "glu" in ending.get("activation", ""):
            continue
        given = blocks(*size, **ending)
        expected = {"d": scaled_mm.scaled_mm(**given).to(DEVICE)}
        there = on_device(given)
        b = there["b"]
        for weight in (b, scaled_mm.pack_weight_int8(b), b.t().contiguous().t()):
            for row in ROWS:
                with forced(row):
                    got = {"d": scaled_mm.scaled_mm(**{**there, "b": weight})}
                    assert_all(f"blocks {row}", got, expected, size, name)
        assert_unchanged(there, given, size, name)


def calls() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Calls of both ops, their operands on the device."""
    for rows, k, group in ((1, 4096, 128), (33, 1280, 64), (130, 640, 640)):
        given, _ = Case("calls", (rows,), 264, k, group, True, "token", ending="silu").build()
        there: dict[str, Any] = on_device({x: t for x, t in given.items() if x != "w"})
        yield w4a8_mm, {**there, "w": packed_there(given["w"])}
    yield scaled_mm.scaled_mm, on_device(blocks(40, 300, 2500))


def test_into_tensors_that_are_given() -> None:
    for call, given in calls():
        expected = call(**given)
        out = torch.full_like(expected, 77.0)
        assert call(**given, out=out) is out
        assert_all("out", {"d": out}, {"d": expected}, call)


@streams_only
def test_graphs_are_replayed_with_other_activations() -> None:
    for call, given in calls():
        call(**given)
        name = "x" if "x" in given else "a"
        x: Tensor = given[name]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = call(**given)
        for _ in range(3):
            x.copy_(torch.randint_like(x, -128, 128))
            graph.replay()
            got, fresh = d.clone(), call(**given)
            assert_all("replayed", {"d": got}, {"d": fresh}, call)
