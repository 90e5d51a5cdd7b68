"""Weights of 4 and 8 bits: every value becomes the weight it stands for, to the bit, with scales
and zero points at both ends (what is packed: test_mixed_weights.py)."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import assert_bits, each_isa
from mixed_cases import DTYPES, KINDS, MixedCase
from test_awq import assert_bounded
from torch import Tensor

import scaled_mm
from scaled_mm import mixed_mm, pack_weight, reference
from scaled_mm.ops.packed_words import pack_words, unpack_words

pytestmark = pytest.mark.usefixtures("poisoned")
dtypes = pytest.mark.parametrize("dtype", DTYPES)
kinds = pytest.mark.parametrize(("bits", "zero"), KINDS)


def every_value(bits: int, zero: str, scales: Tensor, zeros: Tensor | None) -> dict[str, Any]:
    """Row u of each group of 2^bits rows holds the u-th value in all columns."""
    low = 0 if zero == "integer" else -(1 << (bits - 1))
    dtype = torch.uint8 if zero == "integer" else torch.int8
    values = torch.arange(low, low + (1 << bits)).to(dtype)
    groups, n = scales.shape
    plain = {"q": values.repeat(groups)[:, None].repeat(1, n), "scales": scales, "bits": bits}
    return plain | ({} if zeros is None else {"zeros": zeros})


def columns_of(bits: int, zero: str, dtype: torch.dtype) -> dict[str, Any]:
    """Every value with every significand of a scale, and zero points of several sizes."""
    one = torch.ones((), dtype=dtype).view(torch.int16)
    step = 2.0 ** (-10 if dtype == torch.float16 else -7)
    scales = (one + torch.arange(round(1 / step), dtype=torch.int16)).view(dtype)
    if zero == "none":
        return every_value(bits, zero, scales[None] * 2**-4, None)
    generator = torch.Generator().manual_seed(bits)
    s = (scales[None] * 2.0 ** torch.tensor([-14, -9, -5, -1])[:, None]).to(dtype)
    if zero == "integer":
        z = torch.randint(0, 1 << bits, s.shape, generator=generator).to(torch.uint8)
        z[:2, :4] = torch.tensor([0, 1, (1 << bits) - 1, 1 << (bits - 1)])
        return every_value(bits, zero, s, z)
    sizes = 2.0 ** torch.randint(-13, 12, s.shape, generator=generator)
    z = (torch.randn(s.shape, generator=generator) * sizes).to(dtype)
    z[:, ::7] = 0
    return every_value(bits, zero, s, z)


@dtypes
@kinds
def test_every_value_with_every_significand(bits: int, zero: str, dtype: torch.dtype) -> None:
    """Dequantised, and by a product with the identity, of few rows (words to sums) and of many."""
    plain = columns_of(bits, zero, dtype)
    w = pack_weight(**plain)
    q, scales, zeros = plain["q"], plain["scales"], plain.get("zeros")
    expected = reference.mixed_dequantize(q, scales, zeros)
    finite = expected.isfinite().all(0)
    eye = torch.eye(w.k, dtype=dtype)
    some = torch.cat([eye[: 1 << bits : 5], eye[-3:]])  # a row of each phase in the last group too
    for isa in each_isa():
        assert_bits(w.dequantize(), expected, isa)
        whole = scaled_mm.mixed_mm(eye, w)
        assert torch.equal(whole[:, finite], expected[:, finite]), isa  # but for a zero's sign
        for rows in (1, 3):
            got = torch.cat([scaled_mm.mixed_mm(x, w) for x in some.split(rows)])
            wanted = torch.cat([expected[: 1 << bits : 5], expected[-3:]])
            assert torch.equal(got[:, finite], wanted[:, finite]), (isa, rows)


@kinds
def test_weights_at_both_ends(isa: str, bits: int, zero: str) -> None:
    """Scales around the least and the largest that float32 can stand in for. A column with an
    infinite weight is infinite or NaN throughout, since 0 times that is NaN; others are exact."""
    edges = {
        torch.float16: (-24, -20, -16, -15, -14, -13, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        torch.bfloat16: (-133, -126, -101, -100, -99, 99, 100, 101, 118, 120, 126, 127),
    }
    for dtype, exponents in edges.items():
        sizes = [factor * 2.0**e for e in exponents for factor in (1.0, 1.3, -1.7)]
        scales = torch.tensor(sizes).to(dtype)[None]
        zeros = None if zero == "none" else (3 * scales.flip(1)).to(dtype)
        if zero == "integer":
            zeros = (torch.arange(scales.shape[1]) % (1 << bits)).to(torch.uint8)[None]
        plain = every_value(bits, zero, scales, zeros)
        w = pack_weight(**plain)
        expected = reference.mixed_dequantize(plain["q"], scales, zeros)
        assert_bits(w.dequantize(), expected)
        finite = expected.isfinite().all(0)
        assert bool(finite.any()) and not bool(finite.all())
        eye = torch.eye(1 << bits, dtype=dtype)
        for rows in (4, 1 << bits):
            got = torch.cat([scaled_mm.mixed_mm(x, w) for x in eye.split(rows)])
            assert torch.equal(got[:, finite], expected[:, finite]), (dtype, rows)
            assert not got[:, ~finite].isfinite().any(), (dtype, rows)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_float_zero_point_is_added_before_the_one_rounding(isa: str, bits: int) -> None:
    """Products halfway between two numbers of 16 bits, which the least zero point decides; rounded
    to float32 in between, it would be lost."""
    cases = {torch.float16: (1 + 2**-10, 2.0**-24), torch.bfloat16: (1 + 2**-7, 2.0**-60)}
    for dtype, (scale, least) in cases.items():
        zeros = torch.tensor([[0.0, least, -least, 2.0**-20, -(2.0**-20)]]).to(dtype)
        plain = every_value(bits, "float", torch.full((1, 5), scale).to(dtype), zeros)
        w = pack_weight(**plain)
        expected = reference.mixed_dequantize(plain["q"], plain["scales"], zeros)
        assert_bits(w.dequantize(), expected)
        assert bool((expected != expected[:, :1]).any())
        for rows in (1, 1 << bits):
            eye = torch.eye(1 << bits, dtype=dtype)
            got = torch.cat([scaled_mm.mixed_mm(x, w) for x in eye.split(rows)])
            assert torch.equal(got, expected)


@kinds
def test_layouts_of_the_cpu_are_as_drawn(bits: int, zero: str) -> None:
    """Section by section, as docs/lowbit.md has it: rows of 24 columns for 21; q is in blocks of
    128 columns."""
    k, n, group = 20, 21, 10
    plain = MixedCase("drawn", bits, zero, k, n, group, torch.bfloat16).plain()
    memory = pack_weight(**plain).data.view(torch.uint8)

    def stored(x: Tensor, columns: int = 24) -> Tensor:
        values = x.int() + (0 if zero == "integer" else 1 << (bits - 1))
        padded = torch.zeros(len(x), columns, dtype=torch.uint8)
        padded[:, :n] = values.to(torch.uint8)
        if bits == 8:
            return padded
        nibble = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # of column 0 .. 7
        words = (padded.long().view(len(x), -1, 8) << 4 * nibble).sum(-1)
        return _wrapped(words)

    def halves(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 24 - n))

    sections = [stored(plain["q"], 128), halves(plain["scales"])]
    if zero != "none":
        sections.append(stored(plain["zeros"]) if zero == "integer" else halves(plain["zeros"]))
    begin = 0
    for section in sections:
        expected = section.contiguous().view(-1).view(torch.uint8)
        assert torch.equal(memory[begin : begin + len(expected)], expected)
        end = begin + -(-len(expected) // 16) * 16
        assert not memory[begin + len(expected) : end].any()
        begin = end
    assert begin == len(memory)


@kinds
def test_a_buffer_of_whole_rows(isa: str, bits: int, zero: str) -> None:
    """Layout 0, which a GPU packs where no kernel wants another, gives the bits of layout 2."""
    w = pack_weight(**MixedCase("moved", bits, zero, 96, 200, 32, torch.bfloat16).plain())
    stored, scales, zeros = unpack_words(w.data, *w.sizes[:5], blocks=True)
    rows = replace(w, data=pack_words(stored, scales, zeros, bits), layout=0)
    x = torch.randn(12, 96).bfloat16()
    for m in (1, 3, 12):
        assert_bits(scaled_mm.mixed_mm(x[:m], rows), scaled_mm.mixed_mm(x[:m], w), isa, m)
    assert_bits(rows.dequantize(), w.dequantize(), isa)


def _wrapped(words: Tensor) -> Tensor:
    """As int32, bit 31 its sign."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


@dtypes
def test_columns_that_are_all_beyond_16_bits(isa: str, dtype: torch.dtype) -> None:
    """Eight columns are split, or none of them: here all have one scale, around the largest."""
    largest = 7 if dtype == torch.float16 else 119
    for exponent, factor in itertools.product(range(largest - 1, largest + 6), (1.0, 1.3, -1.7)):
        scales = torch.full((1, 32), factor * 2.0**exponent).to(dtype)
        plain = every_value(8, "none", scales, None)
        expected = reference.mixed_dequantize(plain["q"], scales)
        finite = expected.isfinite().all(0)
        eye = torch.eye(256, dtype=dtype)
        for rows in (4, 256):
            got = torch.cat([scaled_mm.mixed_mm(x, pack_weight(**plain)) for x in eye.split(rows)])
            assert torch.equal(got[:, finite], expected[:, finite]), (exponent, factor, rows)
            assert not got[:, ~finite].isfinite().any(), (exponent, factor, rows)


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
