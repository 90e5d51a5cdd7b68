"""Units of packed weights: they can be undone, and are what docs/lowbit.md draws."""

import itertools

import numpy as np
import pytest
import torch
from helpers import assert_bits
from torch import Tensor

from scaled_mm.ops import units
from scaled_mm.ops.packed_words import FLOAT, INTEGER, NONE

pytestmark = pytest.mark.usefixtures("poisoned")

KINDS = list(itertools.product((4, 8), (NONE, INTEGER, FLOAT)))
kinds = pytest.mark.parametrize(("bits", "zero"), KINDS)

# (K, N, G): every number of sets, padding of K and of N, a group for all rows.
SHAPES = [(128, 64, 128), (384, 8, 384), (256, 72, 64), (192, 65, 96), (352, 200, 32)]
SHAPES += [(100, 7, 100), (1, 1, 1), (160, 56, 160)]


def weight(
    k: int, n: int, group: int, bits: int, zero: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Random stored values, scales and zeros as `to_units` takes them."""
    rng = np.random.default_rng(k * n + bits)
    shape = (k // group, n)

    def values(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, 1 << bits, shape, np.uint8))

    def floats() -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(dtype)

    q, scales = values(k, n), floats()
    return q, scales, None if zero == NONE else floats() if zero == FLOAT else values(*shape)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_there_and_back(
    k: int, n: int, group: int, bits: int, zero: int, dtype: torch.dtype
) -> None:
    q, scales, zeros = weight(k, n, group, bits, zero, dtype)
    data = units.to_units(q, scales, zeros, bits, zero, group)
    assert data.dtype == dtype
    assert data.shape == (units.units_elements(k, n, group, bits, zero),)
    back = units.from_units(data, k, n, group, bits, zero)
    for got, want in zip(back, (q, scales, zeros), strict=True):
        if want is None:
            assert got is None
            continue
        assert got is not None
        assert got.is_contiguous()
        assert_bits(got, want, bits, zero)


@kinds
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_as_drawn(k: int, n: int, group: int, bits: int, zero: int) -> None:
    """Every element, looked up digit by digit as docs/lowbit.md says; padding is zeros."""
    q, scales, zeros = weight(k, n, group, bits, zero, torch.bfloat16)
    data = units.to_units(q, scales, zeros, bits, zero, group)
    flat = data.view(torch.uint8).view(-1, units.unit_bytes(k, group, bits, zero)).int()
    panels, sets = -(-n // 64), units.sets_of(k, group)
    row, column = torch.meshgrid(
        torch.arange(-(-k // 128) * 128), torch.arange(panels * 64), indexing="ij"
    )
    unit = row // 128 * panels + column // 64
    w, g, h = column // 16 % 4, column // 2 % 8, column % 2
    t, r, i, step = row // 2 % 4, row % 2, row // 8 % 2, row // 16 % 8
    lane = 4 * g + t
    if bits == 4:
        word = ((step // 4 * 4 + w) * 32 + lane) * 4 + step % 4
        nibble = 2 * i + h + 4 * r
        got = flat[unit, 4 * word + nibble // 2] >> 4 * (nibble % 2) & 15
    else:
        word = ((step // 2 * 4 + w) * 32 + lane) * 4 + 2 * (step % 2) + i
        got = flat[unit, 4 * word + h + 2 * r]
    words, size = 1024 * bits, (flat.shape[1] - 1024 * bits) // sets
    at = words + row % 128 // (128 // sets) * size
    half = column % 64
    of_scale = flat[unit, at + 2 * half + 1] << 8 | flat[unit, at + 2 * half]

    inside = (row < k) & (column < n)
    groups, columns = torch.where(row < k, row // group, 0), torch.where(column < n, column, 0)
    looked_up = [
        (got, q.int()[torch.where(row < k, row, 0), columns]),
        (of_scale, scales.view(torch.int16)[groups, columns].int() & 0xFFFF),
    ]
    at = at + 128
    if zero == FLOAT:
        assert zeros is not None
        of_zero = flat[unit, at + 2 * half + 1] << 8 | flat[unit, at + 2 * half]
        looked_up.append((of_zero, zeros.view(torch.int16)[groups, columns].int() & 0xFFFF))
    elif bits == 4:  # the same without zero points, all of them 8
        plain = torch.full_like(scales, 8) if zeros is None else zeros
        looked_up.append((flat[unit, at + half // 2] >> 4 * h & 15, plain[groups, columns].int()))
    elif zeros is not None:
        looked_up.append((flat[unit, at + half], zeros[groups, columns].int()))
    # A set of which some rows are there is whole.
    begun = (row // (128 // sets) * (128 // sets) < k) & (column < n)
    for place, (found, plain) in enumerate(looked_up):
        assert torch.equal(found, torch.where(begun if place else inside, plain, 0))


@pytest.mark.parametrize(
    ("device", "k", "n", "group", "layout"),
    [
        ("cuda", 128, 64, 128, 1),
        ("cuda", 100, 7, 100, 1),
        ("cuda", 96, 8, 32, 1),
        ("cuda", 96, 8, 48, 0),
        ("cuda", 128, 0, 128, 0),
        ("cuda", 0, 8, 0, 0),
        ("cpu", 128, 64, 128, 2),
    ],
)
def test_who_gets_units(device: str, k: int, n: int, group: int, layout: int) -> None:
    assert units.layout_for(torch.device(device), k, n, group) == layout
