"""The quantisers against the reference, on every instruction set: tolerance zero."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits, each_isa
from quantize_cases import (
    IN_DTYPES,
    QUANTIZE_CASES,
    ROWS,
    QuantizeCase,
    half_integers,
    random_quantize_case,
)

import scaled_mm
from scaled_mm import reference

pytestmark = pytest.mark.usefixtures("poisoned")
FLT_MIN = 2.0**-126


def assert_all(got: Any, expected: Any, *context: object) -> None:
    """The same q, the same scale, the same azp where there is one."""
    for name, x, y in zip(("q", "scale", "azp")[: len(got)], got, expected, strict=True):
        assert_bits(x, y, name, *context)


def assert_case(case: QuantizeCase, rng: np.random.Generator | None = None) -> None:
    operands = case.build(rng=rng)
    expected = reference.quantize_int8(**operands)
    for isa in each_isa(operands.values()):
        got = scaled_mm.quantize_int8(**operands)
        assert_all(got, expected, isa, case)
        assert got[0].is_contiguous()


@pytest.mark.parametrize("name", QUANTIZE_CASES)
def test_named(name: str) -> None:
    assert_case(QUANTIZE_CASES[name])


@pytest.mark.parametrize("seed", range(5))
def test_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        assert_case(random_quantize_case(rng), rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5000):
        assert_case(random_quantize_case(rng), rng)


@pytest.mark.slow
def test_half_integers_at_every_width() -> None:
    for k in range(1, 1101):
        assert_case(half_integers(k))


# Enough elements for several tasks, whose ranges are put together when one scale serves all.
@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks(symmetric: bool, per_token: bool) -> None:
    for shape in ((700, 100), (3, 40_000), (40_000, 3), (1, 100_003), (50, 7, 300)):
        for data in ("scaled", "positive", "one-nan"):
            case = QuantizeCase("blocks", data, shape, symmetric=symmetric, per_token=per_token)
            assert_case(case)


@pytest.mark.parametrize("position", [0, 1, 16_383, 16_384, 50_000, 99_999])
@pytest.mark.parametrize("value", [1e4, -1e4, float("nan"), float("inf")])
def test_one_element_decides_the_scale_of_all(isa: str, position: int, value: float) -> None:
    x = torch.ones(1000, 100)
    x.view(-1)[position] = value
    for symmetric in (True, False):
        got = scaled_mm.quantize_int8(x, symmetric=symmetric, per_token=False)
        expected = reference.quantize_int8(x, symmetric=symmetric, per_token=False)
        assert_all(got, expected, isa, symmetric)


# What the contract says of a row in plain words: (row, symmetric) -> (q, scale, azp).
NAN, INF = float("nan"), float("inf")
BY_HAND = {
    "zeros": ([0.0, -0.0, 0.0], True, [0, 0, 0], FLT_MIN, None),
    "zeros-asymmetric": ([0.0, 0.0], False, [-128, -128], FLT_MIN, -128),
    "half-even": ([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], True, [127, 0, 2, 2, 0, -2, -2], 1, None),
    "zero-in-range": ([1000.0, 1001.0], False, [127, 127], 1001 / 255, -128),
    "all-negative": ([-1.0, -255.0], False, [126, -128], 1, 127),
    "never-minus-128": ([-127.0, 127.0, -126.6], True, [-127, 127, -127], 1, None),
    "nan": ([1.0, NAN], True, [0, 0], NAN, None),
    "nan-asymmetric": ([1.0, NAN], False, [0, 0], NAN, 0),
    "inf": ([1.0, INF, -1.0], True, [0, 0, 0], NAN, None),
    "minus-inf": ([1.0, -INF], False, [0, 0], NAN, 0),
    "denormal": ([1e-45, -1e-45], True, [0, 0], FLT_MIN, None),
    "range-overflows": ([-3e38, 3e38], False, [-128, 127], 3e38 / 127.5, 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(isa: str, name: str) -> None:
    x, symmetric, q, scale, azp = BY_HAND[name]
    got = scaled_mm.quantize_int8(torch.tensor([x]), symmetric=symmetric)
    assert got[0].tolist() == [q]
    assert_bits(got[1], torch.tensor([[scale]], dtype=torch.float32))
    assert_bits(got[2], None if azp is None else torch.tensor([[azp]], dtype=torch.int32))


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("data", ROWS)
def test_weight(data: str, per_channel: bool) -> None:
    for dtype in IN_DTYPES:
        for n, k in ((24, 40), (1, 1), (17, 1100), (1, 5), (5, 1), (0, 4), (4, 0)):
            w = QuantizeCase("weight", data, (n, k), dtype).build()["x"]
            for x in (w, w.t(), w[::2], w[:, 1::2]):
                expected = reference.quantize_weight_int8(x, per_channel=per_channel)
                for isa in each_isa([x]):
                    got = scaled_mm.quantize_weight_int8(x, per_channel=per_channel)
                    assert_all(got, expected, isa, data, dtype, x.shape, x.stride())
