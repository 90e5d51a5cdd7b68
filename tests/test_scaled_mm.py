"""scaled_mm and int8_mm against the reference, on every instruction set: each case with a plain and
with a packed weight, poisoned outputs, operands that stay as they were. Tolerance zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import CASES, Case, Operands, Vector, random_case
from helpers import assert_bits, bytes_of

import scaled_mm
from scaled_mm import reference

pytestmark = pytest.mark.usefixtures("poisoned")


def assert_case(case: Case, operands: Operands, isa: str) -> None:
    a, b = operands["a"], operands["b"]
    before = bytes_of(operands.values())
    plain, plain_int = scaled_mm.scaled_mm(**operands), scaled_mm.int8_mm(a, b)
    weight = scaled_mm.pack_weight_int8(b)
    packed = scaled_mm.scaled_mm(**{**operands, "b": weight})
    packed_int = scaled_mm.int8_mm(a, weight)
    for x, y in zip(bytes_of(operands.values()), before, strict=True):
        assert torch.equal(x, y), (isa, case)

    expected, expected_int = reference.scaled_mm(**operands), reference.int8_mm(a, b)
    assert_bits(plain, expected, isa, "plain", case)
    assert_bits(packed, expected, isa, "packed", case)
    assert_bits(plain_int, expected_int, isa, "int8_mm", case)
    assert_bits(packed_int, expected_int, isa, "int8_mm packed", case)
    assert plain.is_contiguous()
    assert plain_int.is_contiguous()


def assert_random(isa: str, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        case = random_case(rng)
        assert_case(case, case.build(rng=rng), isa)


@pytest.mark.parametrize("name", CASES)
def test_named(isa: str, name: str) -> None:
    assert_case(CASES[name], CASES[name].build(), isa)


@pytest.mark.parametrize("seed", range(10))
def test_random(isa: str, seed: int) -> None:
    assert_random(isa, seed, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_many(isa: str, seed: int) -> None:
    assert_random(isa, seed, 5000)


# Sizes that are cut into several blocks of rows and of columns, with a tail each.
BLOCKS = {
    case.name: case
    for case in (
        Case("both", 130, 193, 257, bias=Vector("signed")),
        Case("rows", 300, 17, 64, azp=Vector("int8"), azp_adj=Vector("sums")),
        Case("rows-long-k", 70, 33, 20_001, a="extreme", b="extreme"),
        Case("columns", 5, 1025, 96, bias=Vector("signed")),
        Case("columns-one-row", 1, 4111, 200, azp_with_adj=Vector("sums")),
        Case("lead", 6 * 29, 130, 80, (6, 29), azp=Vector("int8"), azp_adj=Vector("sums")),
    )
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(isa: str, name: str) -> None:
    for out_dtype in (torch.bfloat16, torch.float32):
        operands = {**BLOCKS[name].build(), "out_dtype": out_dtype}
        operands.pop("bias", None)
        assert_case(BLOCKS[name], operands, isa)


@pytest.mark.parametrize("m", [1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97])
def test_every_height_of_tile(isa: str, m: int) -> None:
    """Around the rows from which a plain weight is packed, and every rest of rows and panels."""
    for n in (1, 15, 16, 17, 33, 48, 64, 65):
        for k in (1, 4, 31, 64, 67):
            case = Case("height", m, n, k, bias=Vector("signed"), out_dtype=torch.float32)
            assert_case(case, case.build(), isa)


@pytest.mark.parametrize(("a", "b"), [(-128, -128), (127, -128), (-128, 127), (127, 127)])
def test_largest_k(isa: str, a: int, b: int) -> None:
    """The largest sums int32 holds; an operand offset to u8 wraps on the way to them."""
    k = 131071
    product = scaled_mm.int8_mm(
        torch.full((2, k), a, dtype=torch.int8), torch.full((3, k), b, dtype=torch.int8).t()
    )
    assert product.tolist() == [[a * b * k] * 3] * 2
