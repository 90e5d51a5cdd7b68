"""scaled_mm and int8_mm against the reference, on every instruction set: each case with a plain and
with a packed weight, poisoned outputs, operands that stay as they were. Tolerance zero."""

import numpy as np
import pytest
import torch
from cases import CASES, random_case
from helpers import assert_bits, each_isa
from operands import Case, Operands, Vector

import scaled_mm
from scaled_mm import reference

pytestmark = pytest.mark.usefixtures("poisoned")


def assert_case(case: Case, operands: Operands) -> None:
    a, b = operands["a"], operands["b"]
    expected, expected_int = reference.scaled_mm(**operands), reference.int8_mm(a, b)
    for isa in each_isa(operands.values()):
        plain, plain_int = scaled_mm.scaled_mm(**operands), scaled_mm.int8_mm(a, b)
        weight = scaled_mm.pack_weight_int8(b)
        packed = scaled_mm.scaled_mm(**{**operands, "b": weight})
        packed_int = scaled_mm.int8_mm(a, weight)
        assert_bits(plain, expected, isa, "plain", case)
        assert_bits(packed, expected, isa, "packed", case)
        assert_bits(plain_int, expected_int, isa, "int8_mm", case)
        assert_bits(packed_int, expected_int, isa, "int8_mm packed", case)
        assert plain.is_contiguous()
        assert plain_int.is_contiguous()


def assert_random(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        case = random_case(rng)
        assert_case(case, case.build(rng=rng))


@pytest.mark.parametrize("name", CASES)
def test_named(name: str) -> None:
    assert_case(CASES[name], CASES[name].build())


@pytest.mark.parametrize("seed", range(10))
def test_random(seed: int) -> None:
    assert_random(seed, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_random_many(seed: int) -> None:
    assert_random(seed, 5000)


BIAS = Vector("signed", dtype=torch.float32)
# Sizes that are cut into several blocks of rows and of columns, with a tail each.
BLOCKS = {
    case.name: case
    for case in (
        Case("both", 130, 193, 257, bias=BIAS),
        Case("rows", 300, 17, 64, azp=Vector("int8"), azp_adj=Vector("sums")),
        Case("rows-long-k", 70, 33, 20_001, a="extreme", b="extreme"),
        Case("columns", 5, 1025, 96, bias=BIAS),
        Case("columns-one-row", 1, 4111, 200, azp_with_adj=Vector("sums")),
        Case("lead", 6 * 29, 130, 80, (6, 29), azp=Vector("int8"), azp_adj=Vector("sums")),
    )
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    for out_dtype in (torch.bfloat16, torch.float32):
        assert_case(BLOCKS[name], {**BLOCKS[name].build(), "out_dtype": out_dtype})


@pytest.mark.parametrize("m", [1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97])
def test_every_height_of_tile(m: int) -> None:
    """Around the rows from which a plain weight is packed, and every rest of rows and panels."""
    for n in (1, 15, 16, 17, 33, 48, 64, 65):
        for k in (1, 4, 31, 64, 67):
            case = Case("height", m, n, k, bias=Vector("signed"), out_dtype=torch.float32)
            assert_case(case, case.build())


def test_bias_is_fused_to_the_last_bit() -> None:
    """scale_a scale_b is half an ulp of the bias but for less than float64 can hold of their sum:
    rounding that sum to float64 first makes a tie of it, and the tie is decided wrongly."""
    rng = np.random.default_rng(0)
    x = np.float32(rng.uniform(1, 2, 20_000))
    y = np.float32(1 / x)
    off = np.float64(x) * np.float64(y) - 1
    near = np.flatnonzero((off != 0) & (np.abs(off) < 2.0**-30))[:128]
    n = len(near)
    bias = np.float32(rng.choice([1, 1 + 2.0**-23, -1, -1 - 2.0**-23], n))
    operands = {
        "a": torch.ones(n, 1, dtype=torch.int8),
        "b": torch.ones(1, n, dtype=torch.int8),
        "scale_a": torch.from_numpy(y[near] * np.float32(2.0**-24) * np.sign(bias)),
        "scale_b": torch.from_numpy(x[near]),
        "bias": torch.from_numpy(bias),
        "out_dtype": torch.float32,
    }
    case = Case("fused", n, n, 1)
    assert_case(case, operands)
    twice = operands["scale_a"].double() * operands["scale_b"].double() + operands["bias"].double()
    wrong = twice.float() != reference.scaled_mm(**operands).diagonal()
    assert wrong.sum() > n // 4, "the operands show the difference"


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_nan_of_any_payload_stays_nan(isa: str, out_dtype: torch.dtype) -> None:
    """Signalling ones, and significands of all ones, out of which a rounding could carry."""
    patterns = (0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF)
    both = np.array([p | sign for p in patterns for sign in (0, 2**31)], np.uint32)
    nan = torch.from_numpy(both.view(np.float32))
    one, eight = torch.ones(1, 1, dtype=torch.int8), torch.ones(1, 8, dtype=torch.int8)
    scale = torch.ones(1)
    for operands in (
        {"a": one, "b": eight, "scale_a": scale, "scale_b": nan},
        {"a": one, "b": eight, "scale_a": scale, "scale_b": scale, "bias": nan},
        {"a": eight.t(), "b": one, "scale_a": nan, "scale_b": scale},
    ):
        out = scaled_mm.scaled_mm(**operands, out_dtype=out_dtype)
        assert out.isnan().all(), (out, operands)
    for half in {torch.bfloat16: [0x7F81, 0xFFFF], torch.float16: [0x7C01, 0xFFFF]}.get(
        out_dtype, []
    ):
        bias = torch.full((8,), half - 2**16 * (half > 2**15), dtype=torch.int16).view(out_dtype)
        out = scaled_mm.scaled_mm(one, eight, scale, scale, bias=bias, out_dtype=out_dtype)
        assert out.isnan().all(), (out, bias)
