"""Results in exact rationals, by docs/numerics.md alone: nothing is shared with `reference/`."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from helpers import each_isa
from torch import Tensor

import scaled_mm

FORMATS = {  # bits of the significand, least exponent of a normal number, largest finite number
    torch.float32: (24, -126, (2 - Fraction(1, 2**23)) * 2**127),
    torch.bfloat16: (8, -126, (2 - Fraction(1, 2**7)) * 2**127),
    torch.float16: (11, -14, Fraction(65504)),
    torch.float8_e4m3fn: (4, -6, Fraction(448)),
}
HALVES = (torch.float16, torch.bfloat16)
COUNTS = [pytest.param(40, id="40"), pytest.param(1000, id="1000", marks=pytest.mark.slow)]


def nearest(x: Fraction, dtype: torch.dtype) -> Fraction | float:
    """x rounded to the dtype, half to even; infinite beyond its largest number."""
    digits, least, most = FORMATS[dtype]
    exponent = max(least, x.numerator.bit_length() - x.denominator.bit_length() - 1)
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - digits + 1)
    rounded = round(x / unit) * unit  # Python's round is to even
    return rounded if abs(rounded) <= most else float("inf") if x > 0 else float("-inf")


def same(got: Tensor, expected: list[list[Any]]) -> bool:
    """The same numbers; the sign of a zero is not asked."""
    return bool(got.double().tolist() == [[float(x) for x in row] for row in expected])


def fractions(t: Tensor) -> list[list[Fraction]]:
    return [[Fraction(x) for x in row] for row in t.double().tolist()]


def scales_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of either sign and any size, zeros and subnormal numbers among them."""
    lowest, highest = (-26, 15) if dtype == torch.float16 else (-140, 40)
    size = np.ldexp(rng.uniform(1, 2, shape), rng.integers(lowest, highest, shape))
    return torch.from_numpy(size * rng.choice([-1, 0, 1, 1], shape)).to(dtype)


@pytest.mark.parametrize("count", COUNTS)
def test_weights(count: int) -> None:
    """W, by its dequantisation and by rows of the identity: q s, (q - z) s or q s + z, rounded
    once."""
    for case in range(count):
        rng = np.random.default_rng([1, case])
        bits, zero, dtype = 4 << case % 2, case % 3, HALVES[case // 2 % 2]
        groups, group, n = (int(x) for x in rng.integers(1, 6, 3))
        low = 0 if zero == 1 else -(1 << (bits - 1))
        q = rng.integers(low, low + (1 << bits), (groups * group, n))
        scales = scales_of(rng, (groups, n), dtype)
        zeros: Tensor | None = None
        if zero == 1:
            zeros = torch.from_numpy(rng.integers(0, 1 << bits, (groups, n))).to(torch.uint8)
        if zero == 2:
            zeros = scales_of(rng, (groups, n), dtype)
        stored = torch.from_numpy(q).to(torch.uint8 if zero == 1 else torch.int8)
        w = scaled_mm.pack_weight(stored, scales, zeros=zeros, bits=bits)

        s = fractions(scales)
        z = fractions(torch.zeros(groups, n) if zeros is None else zeros)
        expected = [
            [
                nearest((v - z[g][j]) * s[g][j] if zero == 1 else v * s[g][j] + z[g][j], dtype)
                for j, v in enumerate(row)
            ]
            for g, row in ((k // group, row) for k, row in enumerate(q.tolist()))
        ]
        finite = all(abs(x) < float("inf") for row in expected for x in row)
        identity = torch.eye(groups * group, dtype=dtype)
        for isa in each_isa():
            assert same(w.dequantize(), expected), (isa, case)
            assert not finite or same(scaled_mm.mixed_mm(identity, w), expected), (isa, case)


def dequantised(rng: np.random.Generator, m: int, n: int) -> tuple[dict[str, Tensor], Any]:
    """Operands of `scaled_mm`, and d of section 2 in exact steps."""
    k = int(rng.integers(0, 40))
    a, b = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
    azp = rng.integers(-128, 128, (m, 1))
    scale_a, scale_b, bias, residual = (
        torch.from_numpy(np.ldexp(rng.uniform(-1, 1, shape), rng.integers(low, 20, shape))).float()
        for shape, low in (((m, 1), -70), ((1, n), -70), ((1, n), -30), ((m, n), -30))
    )
    made = {
        "a": torch.from_numpy(a).to(torch.int8),
        "b": torch.from_numpy(b).to(torch.int8),
        "scale_a": scale_a,
        "scale_b": scale_b,
        "bias": bias,
        "azp": torch.from_numpy(azp).int(),
        "azp_adj": torch.from_numpy(b.sum(0)).int(),
        "residual": residual,
    }
    t = (a - azp) @ b  # the algebra of section 1: it fits int32
    s_a, s_b, add = fractions(scale_a), fractions(scale_b)[0], fractions(bias)[0]

    def element(i: int, j: int) -> Fraction:
        f = Fraction(nearest(Fraction(int(t[i, j])), torch.float32))
        f = Fraction(nearest(s_b[j] * f, torch.float32))
        return Fraction(nearest(s_a[i][0] * f + add[j], torch.float32))

    return made, [[element(i, j) for j in range(n)] for i in range(m)]


@pytest.mark.parametrize("count", COUNTS)
def test_endings(count: int) -> None:
    """A product with bias and zero points, whatever it ends in: a wide dtype, a residual, ReGLU,
    int8, e4m3."""
    for case in range(count):
        rng = np.random.default_rng([2, case])
        m, n = int(rng.integers(1, 5)), 2 * int(rng.integers(1, 6))
        given, d = dequantised(rng, m, n)
        residual = given.pop("residual")

        def ends(x: Any, dtype: torch.dtype) -> list[list[Any]]:
            return [[nearest(Fraction(y), dtype) for y in row] for row in x]

        wide, fp8 = (torch.float32, *HALVES)[case % 3], torch.float8_e4m3fn
        more = fractions(residual)
        total = [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(d, more, strict=True)]
        pairs = [[max(r[j], Fraction(0)) * r[j + 1] for j in range(0, n, 2)] for r in d]

        size = max(1e-30, max(abs(float(x)) for row in d for x in row))
        out_scale = torch.tensor([size / float(rng.uniform(1, 200))])
        s, azp = Fraction(out_scale.item()), int(rng.integers(-128, 128))
        levels = [[round(Fraction(nearest(x / s, torch.float32))) + azp for x in row] for row in d]
        inverse, most = Fraction(nearest(1 / s, torch.float32)), Fraction(448)
        units = ends([[x * inverse for x in row] for row in d], torch.float32)
        saturated = [[max(-most, min(most, Fraction(x))) for x in row] for row in units]

        eight = {"out_dtype": torch.int8, "out_azp": torch.tensor([azp], dtype=torch.int32)}
        forms: list[tuple[dict[str, Any], list[list[Any]]]] = [
            ({"out_dtype": wide}, ends(d, wide)),
            ({"out_dtype": wide, "residual": residual}, ends(ends(total, torch.float32), wide)),
            ({"out_dtype": wide, "activation": "reglu"}, ends(ends(pairs, torch.float32), wide)),
            (
                {**eight, "out_scale": out_scale},
                [[max(-128, min(127, x)) for x in row] for row in levels],
            ),
            ({"out_dtype": fp8, "out_scale": out_scale}, ends(saturated, fp8)),
        ]
        for isa in each_isa():
            for form, expected in forms:
                assert same(scaled_mm.scaled_mm(**given, **form), expected), (isa, case, [*form])
