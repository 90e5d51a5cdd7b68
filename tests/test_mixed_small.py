"""`mixed_mm` where numbers are small: some machines multiply bfloat16 in pairs and take subnormals
for zero, which nobody may see (csrc/cpu/lowbit_pairs.h)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from helpers import assert_bits, each_isa
from test_awq import assert_bounded

from scaled_mm import mixed_mm, pack_weight, reference

K, N, GROUP = 256, 72, 64
X = (-133, -126, -100, -77, -76, -75, -50, 0)  # -50: small enough beside a small scale
SCALES = (-130, -100, -60, -37, -36, -35, 0)
ROWS = (1, 3, 8, 13)


def plain_weight(bits: int, zero: str, exponent: int) -> dict[str, Any]:
    torch.manual_seed(bits)
    shape = (K // GROUP, N)
    scales = (torch.rand(shape) + 1).bfloat16() * 2.0**exponent * (torch.randint(2, shape) * 2 - 1)
    if zero == "integer":
        q = torch.randint(2**bits, (K, N), dtype=torch.uint8)
        zeros = torch.randint(2**bits, shape, dtype=torch.uint8)
        return {"q": q, "scales": scales, "zeros": zeros, "bits": bits}
    q = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (K, N), dtype=torch.int8)
    return {"q": q, "scales": scales, "bits": bits}


def assert_exact_enough(plain: dict[str, Any], x: torch.Tensor, *context: object) -> None:
    """Within the bound, which is relative, so that a zero in a subnormal's place is not; and the
    same bits on every instruction set that has an fma."""
    w = pack_weight(**plain)
    exact, bound = reference.mixed_mm_bound(
        x, plain["q"], plain["scales"], zeros=plain.get("zeros")
    )
    fused = []
    for isa in each_isa():
        got = mixed_mm(x, w)
        assert_bounded(got, exact, bound, isa, *context)
        if isa != "portable":
            fused.append(got)
    for got in fused[1:]:
        assert_bits(got, fused[0], *context)


@pytest.mark.parametrize(("bits", "zero"), [*itertools.product((4, 8), ("none", "integer"))])
def test_no_subnormal_is_lost(bits: int, zero: str) -> None:
    torch.manual_seed(0)
    signs = torch.randint(2, (max(ROWS), K)) * 2 - 1
    values = (torch.rand(max(ROWS), K) + 1).bfloat16() * signs  # none is smaller than 1
    for of_x, of_scales in itertools.product(X, SCALES):
        plain = plain_weight(bits, zero, of_scales)
        assert_exact_enough(plain, values[: ROWS[of_x % 4]] * 2.0**of_x, of_x, of_scales)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_small_sum_lives_through_groups_that_add_nothing(bits: int, rows: int) -> None:
    """Something small in one group, by x or by its scales; then numbers of a usual size and
    weights of zero."""
    for small_x in (True, False):
        plain = plain_weight(bits, "none", 0)
        plain["q"][GROUP:] = 0
        x = torch.ones(rows, K, dtype=torch.bfloat16)
        if small_x:
            x[:, :GROUP] *= 2.0**-100
            plain["scales"][0] = 2.0**-30
        else:
            plain["scales"][0] = 2.0**-130
        assert_exact_enough(plain, x, small_x)
        assert mixed_mm(x, pack_weight(**plain)).count_nonzero() > 0


@pytest.mark.parametrize("group", [1, 2, 129, 130])
def test_groups_of_odd_and_even_length(isa: str, group: int) -> None:
    torch.manual_seed(group)
    q = torch.randint(-8, 8, (2 * group, N), dtype=torch.int8)
    scales = (torch.rand(2, N) + 1).bfloat16()
    x = torch.randn(9, 2 * group).bfloat16()
    for rows in (1, 9):
        got = mixed_mm(x[:rows], pack_weight(q, scales, bits=4))
        assert_bounded(got, *reference.mixed_mm_bound(x[:rows], q, scales), isa, rows)
