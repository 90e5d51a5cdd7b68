"""The producers on the GPU: the tables of produce_cases.py and random ones against the CPU backend,
the named ones against the reference too; every 16-bit input; launches that begin early. Tolerance
zero."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cuda_support import DEVICE, GPU, assert_outputs, assert_unchanged, on_device, streams_only
from helpers import assert_bits
from operands import Vector
from produce_cases import FUNCTIONS, PRODUCE_CASES, PRODUCERS, ProduceCase, random_produce_case
from test_produce import OUTPUTS, every_16_bit_float, produce
from torch import Tensor

import scaled_mm
from scaled_mm import reference

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]


def named(outputs: Any) -> dict[str, Tensor]:
    return {n: x for n, x in zip(OUTPUTS, outputs, strict=True) if x is not None}


def assert_case(case: ProduceCase, operands: dict[str, Any], *, r1: bool = False) -> None:
    expected = named(produce(**operands))
    if r1:
        exact = named(reference.produce_int8(**operands))
        for name, x in expected.items():
            assert_bits(x, exact[name], "CPU", name, case)
    there = on_device(operands)
    moved = {name: x.to(DEVICE) for name, x in expected.items()}
    assert_outputs("produce_int8", named(produce(**there)), moved, case)
    assert_unchanged(there, operands, case)


@pytest.mark.parametrize("name", PRODUCE_CASES)
def test_named(name: str) -> None:
    case = PRODUCE_CASES[name]
    assert_case(case, case.build(), r1=True)


@pytest.mark.parametrize("seed", range(5))
def test_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(500):
        case = random_produce_case(rng)
        assert_case(case, case.build(rng))


SHAPES = (
    (1, 4096),
    (1, 14336),
    (33, 1032),
    (2, 32768),
    (16, 28672),
    (700, 4096),
    (600, 14336),
    (9000, 768),
    (400, 5120),
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_shapes_of_models(producer: str, shape: tuple[int, int]) -> None:
    for dtype, symmetric in itertools.product((torch.bfloat16, torch.float32), (True, False)):
        more: dict[str, Any] = {"dtype": dtype, "other": True, "symmetric": symmetric}
        case = ProduceCase("model", producer, "scaled", shape, **more)
        assert_case(case, case.build())


@pytest.mark.parametrize("wide", ["weight", "bias"])
def test_a_weight_and_a_bias_of_two_dtypes(wide: str) -> None:
    case = ProduceCase("mixed", "layer_norm", shape=(5, 1032), dtype=torch.bfloat16)
    operands = case.build()
    operands[wide] = operands[wide].float() + 1e-3
    assert_case(case, operands)


@pytest.mark.parametrize("producer", FUNCTIONS)
def test_bits_of_every_16_bit_input(producer: str) -> None:
    x = every_16_bit_float().reshape(-1, 1)
    case = ProduceCase("every", producer, shape=tuple(x.shape))
    assert_case(case, {"producer": producer, "x": x, "symmetric": False})


@pytest.mark.parametrize("columns", [96, 1024, 3072, 11008, 16384])
@pytest.mark.parametrize("producer", ["silu", "gelu", "gelu_tanh"])
def test_many_smoothed_rows(producer: str, columns: int) -> None:
    shape = (2**23 // columns + 5, columns)
    given = {"scale": Vector(), "azp": Vector("int8"), "symmetric": False}
    for data, more in (
        ("scaled", {}),
        ("scaled", {"other": True}),
        ("normal", {}),
        ("normal", given),
        ("one-nan", {}),
    ):
        case = ProduceCase("many", producer, data, shape, torch.bfloat16, smooth=True, **more)
        assert_case(case, case.build())


@streams_only
def test_a_chain_that_begins_early() -> None:
    """Products and producers in turn, each launched before the one before has ended: what is read
    is what was written, every time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, 512, generator=generator).bfloat16().to(DEVICE)
    w = torch.randint(-128, 128, (512, 512), dtype=torch.int8, generator=generator).to(DEVICE)
    s = torch.full((1, 512), 1e-4, device=DEVICE)

    def chain(x: Tensor) -> Tensor:
        for _ in range(20):
            q, scale, _, x, _ = scaled_mm.rms_norm_quantize_int8(x, None, 1e-5, residual=x.flip(0))
            y = scaled_mm.scaled_mm(q, w.t(), scale, s)
            q, scale, _ = scaled_mm.gelu_quantize_int8(y)
            x = scaled_mm.scaled_mm(q, w.t(), scale, s, residual=x)
        return x

    expected = chain(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain(x)
    for _ in range(50):
        graph.replay()
        assert_bits(got.cpu(), expected.cpu())
