"""Epilogues of one's own on the GPU, interpreted: the bits of the reference, and of the CPU."""

import warnings

import pytest
import torch
from cuda_support import DEVICE, GPU, assert_same, on_device, streams_only
from program_cases import int8, operands_of, pressed, problem, requantized
from torch import Tensor

import scaled_mm
from scaled_mm import epilogue as ep
from scaled_mm.ops import epilogue_mm as ops
from scaled_mm.ops.epilogue_mm import epilogue_mm

pytestmark = GPU


def moved(operands: list[Tensor]) -> list[Tensor]:
    """On the device, with the gaps that they have."""
    return list(on_device({str(i): x for i, x in enumerate(operands)}).values())


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 50):
        a, b, operands, ints, expected, text = problem(seed)
        there, weight = moved(operands), b.to(DEVICE)
        for each in (weight, scaled_mm.pack_weight_int8(weight)):
            assert_same(epilogue_mm(a.to(DEVICE), each, there, ints), expected, text)


@ep.epilogue
def gated(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, residual: ep.Full):
    gate, value = ep.pairs(scale_a * (scale_b * ep.to_float(acc)))
    return ep.gelu(gate) * value / (1.0 + abs(residual)), ep.quantize(value, 0.5, torch.int8, 3)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("epilogue", [requantized, gated], ids=["requantized", "gated"])
def test_several_blocks(epilogue: ep.Epilogue, out_dtype: torch.dtype) -> None:
    for m, n, k in ((1, 4096, 64), (333, 2050, 128), (1000, 1026, 48), (2500, 64, 32), (70, 6, 16)):
        a, b, given = int8(m, k), int8(n, k).t(), operands_of(epilogue, m, n)
        expected = epilogue(a, b, **given, out_dtype=out_dtype)
        got = epilogue(a.to(DEVICE), b.to(DEVICE), **on_device(given), out_dtype=out_dtype)
        assert_same(list(got), list(expected), m, n, k)


@pytest.mark.parametrize("count", [2, 12, 40])
def test_many_values_at_once(count: int) -> None:
    """A block has fewer threads where each has more slots."""
    epilogue = pressed(count)
    for m, n in ((5, 7), (300, 1024)):
        a, b, scale = int8(m, 8), int8(n, 8).t(), torch.randn(m, n)
        expected = epilogue(a, b, scale=scale, out_dtype=torch.float32)
        there = {"scale": scale.to(DEVICE), "out_dtype": torch.float32}
        assert_same([epilogue(a.to(DEVICE), b.to(DEVICE), **there)], [expected], count, m, n)


@streams_only
def test_graphs_and_streams() -> None:
    m, n, k = 64, 512, 96
    a, b, given = int8(m, k), int8(n, k).t(), operands_of(requantized, m, n)
    a_there, b_there, there = a.to(DEVICE), b.to(DEVICE), on_device(given)
    with torch.cuda.stream(torch.cuda.Stream()):
        got = requantized(a_there, b_there, **there)
    torch.cuda.synchronize()
    assert_same(list(got), list(requantized(a, b, **given)), "stream")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = requantized(a_there, b_there, **there)
    for seed in range(5):
        a, given["gate"] = int8(m, k, seed=seed), given["gate"] * 3
        a_there.copy_(a)
        there["gate"].copy_(given["gate"])
        graph.replay()
        assert_same(list(got), list(requantized(a, b, **given)), "graph", seed)


def test_compiled_and_checked() -> None:
    m, n, k = 33, 130, 64
    a, b, given = int8(m, k), int8(n, k).t(), operands_of(gated, m, n)
    expected = list(gated(a, b, **given))
    there = [a.to(DEVICE), b.to(DEVICE)]
    compiled = torch.compile(lambda a, b, x: gated(a, b, **x), fullgraph=True, backend="aot_eager")
    assert_same(list(compiled(*there, on_device(given))), expected, "compiled")
    ints, operands = gated.program.encoded(torch.bfloat16), moved(list(given.values()))
    op = torch.ops.scaled_mm.epilogue_mm.default
    torch.library.opcheck(op, (*there, operands, ints))


@streams_only
def test_it_says_once_that_it_is_interpreted() -> None:
    ops.note_interpreted.cache_clear()
    a, b = int8(4, 16).to(DEVICE), int8(8, 16).t().to(DEVICE)
    given = on_device(operands_of(requantized, 4, 8))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            requantized(a, b, **given)
    assert [str(each.message) for each in told] == [ops.INTERPRETED]
