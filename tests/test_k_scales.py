"""Scales along K: the reference's sum over groups against fractions, and within its bound."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from operands import GATED
from test_reference import nearest
from torch import Tensor

from scaled_mm import reference
from scaled_mm.reference.arithmetic import FLOAT32


def f32(x: Fraction) -> Fraction:
    return Fraction(nearest(x, FLOAT32))


def in_order(terms: list[tuple[int, Fraction, int]], k: int) -> Fraction:
    """The definition again: terms (first column, scale, sum) of the groups of one element."""
    columns = 1024
    while 8 * columns < k:
        columns += 128
    slices: dict[int, Fraction] = {}
    for first, scale, t in terms:
        at = first // columns
        slices[at] = f32(scale * f32(Fraction(t)) + slices.get(at, Fraction(0)))
    total = Fraction(0)
    for at in sorted(slices):
        total = f32(total + slices[at])
    return total


def ints(rng: np.random.Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.from_numpy(rng.integers(low, high, shape))


def floats(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy((0.02 * rng.random(shape) + 0.001).astype(np.float32))


def int4(seed: int, m: int, n: int, k: int, group: int, zeros: bool, azp: bool) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {
        "x": ints(rng, -128, 128, m, k).to(torch.int8),
        "q": ints(rng, 0, 16, k, n).byte() if zeros else ints(rng, -8, 8, k, n).to(torch.int8),
        "scales": floats(rng, k // group, n).bfloat16(),
        "scale_a": floats(rng, m, 1),
        "bias": floats(rng, n),
    }
    if zeros:
        made["zeros"] = ints(rng, 0, 16, k // group, n).byte()
    if azp:
        made["azp"] = ints(rng, -128, 128, m, 1).int()
    return made


SIZES = [(2304, 32), (2304, 128), (2304, 768), (1536, 1536), (96, 32), (5120, 2560), (8320, 64)]


@pytest.mark.parametrize(("k", "group"), SIZES)
@pytest.mark.parametrize(("zeros", "azp"), [(False, False), (True, True)])
def test_w4a8_is_the_sequence_of_the_contract(k: int, group: int, zeros: bool, azp: bool) -> None:
    given = int4(k + group, 2, 3, k, group, zeros, azp)
    got = reference.w4a8_mm(**given, out_dtype=torch.float32)
    x, q = given["x"].long(), given["q"].long()
    d = q - given["zeros"].long().repeat_interleave(group, 0) if zeros else q
    z = given["azp"].long() if azp else torch.zeros(2, 1, dtype=torch.long)
    for m in range(2):
        for n in range(3):
            terms = [
                (first, Fraction(given["scales"][first // group, n].item()), int(t))
                for first in range(0, k, group)
                for t in [((x[m, first:][:group] - z[m]) * d[first:, n][:group]).sum()]
            ]
            bias = Fraction(given["bias"][n].item())
            expected = f32(Fraction(given["scale_a"][m].item()) * in_order(terms, k) + bias)
            assert got[m, n].item() == float(expected), (m, n)


@pytest.mark.parametrize("k", [200, 1024, 2500, 9300])
def test_blocks_are_the_sequence_of_the_contract(k: int) -> None:
    rng, n = np.random.default_rng(k), 130
    a, b = (ints(rng, -128, 128, *shape).to(torch.int8) for shape in [(2, k), (k, n)])
    scale_a, scale_b = floats(rng, 2, -(-k // 128)), floats(rng, -(-k // 128), 2)
    got = reference.scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    for m, column in ((0, 0), (0, 127), (1, 128), (1, 129)):
        terms = []
        for first in range(0, k, 128):
            t = (a[m, first:][:128].long() * b[first:, column][:128].long()).sum()
            s_a, s_b = scale_a[m, first // 128], scale_b[first // 128, column // 128]
            terms.append((first, f32(Fraction(s_a.item()) * Fraction(s_b.item())), int(t)))
        assert got[m, column].item() == float(in_order(terms, k)), (m, column)


def test_one_group_has_the_bits_of_scaled_mm() -> None:
    given = int4(0, 5, 24, 3000, 3000, True, False)
    d = (given["q"].short() - given["zeros"]).to(torch.int8)
    s_a, s_b = given["scale_a"], given["scales"].float()
    expected = reference.scaled_mm(given["x"], d, s_a, s_b, bias=given["bias"])
    assert torch.equal(reference.w4a8_mm(**given), expected)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu_tanh", *GATED])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_reference_is_within_its_bound(activation: str | None, out_dtype: torch.dtype) -> None:
    for seed, (k, group) in enumerate(SIZES):
        given = int4(seed, 3, 16, k, group, seed % 2 == 0, seed % 3 == 0) | {"bias": None}
        given["scales"][:, ::2] *= -1
        if activation is None:  # what cancels nearly all of it
            given["residual"] = -reference.w4a8_mm(**given, out_dtype=out_dtype)
        given["activation"] = activation
        report = reference.w4a8_check(reference.w4a8_mm(**given, out_dtype=out_dtype), **given)
        assert report.ok, report
        assert report.worst_of_bound > 0, report
