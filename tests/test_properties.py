"""Equalities of bits that need no reference: what the contract implies of the ops."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ISAS, assert_bits
from hypothesis import given
from hypothesis import strategies as st
from operands import MATRIX, OUT_DTYPES, VALUES
from torch import Tensor

from scaled_mm import azp_adj, int8_mm, pack_weight_int8, quantize_int8, scaled_mm
from scaled_mm._library import forced_cpu_isa

pytestmark = pytest.mark.usefixtures("isa")
Seeds = st.integers(0, 2**32 - 1)


@dataclass
class Problem:
    """A product with one scale and zero point per row and one scale and bias per column."""

    seed: int
    m: int
    n: int
    k: int
    matrix: str
    values: str
    out_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.a, self.b = self.int8(self.m, self.k), self.int8(self.n, self.k).t()
        self.scale_a = self.vector(self.values, self.m, 1)
        self.scale_b = self.vector(self.values, 1, self.n)
        self.bias = self.vector("signed", 1, self.n)
        self.azp = self.vector("int8", self.m, 1).int()

    def int8(self, *shape: int) -> Tensor:
        return torch.from_numpy(MATRIX[self.matrix](self.rng, shape).astype(np.int8))

    def vector(self, values: str, *shape: int) -> Tensor:
        numbers = np.asarray(VALUES[values](self.rng, int(np.prod(shape))))
        return torch.from_numpy(numbers).float().reshape(shape)

    def permutation(self, n: int) -> Tensor:
        return torch.from_numpy(self.rng.permutation(n))

    def run(self, **changes: Any) -> Tensor:
        """The product with azp and bias, and `changes`; an operand that is None is left out."""
        b = changes.get("b", self.b)
        operands: dict[str, Any] = {
            "a": self.a,
            "b": b,
            "scale_a": self.scale_a,
            "scale_b": self.scale_b,
            "azp": self.azp,
            "azp_adj": azp_adj(b),
            "bias": self.bias,
            "out_dtype": self.out_dtype,
        }
        operands |= changes
        return scaled_mm(**{name: x for name, x in operands.items() if x is not None})


Problems = st.builds(
    Problem,
    Seeds,
    st.integers(1, 40),
    st.integers(1, 70),
    st.integers(1, 100),
    st.sampled_from(["full", "full", "extreme"]),
    st.sampled_from(["normal", "wide", "mixed"]),
    st.sampled_from(OUT_DTYPES),
)
WITHOUT_AZP = {"azp": None, "azp_adj": None}


@given(Problems)
def test_permutations(p: Problem) -> None:
    rows, columns = p.permutation(p.m), p.permutation(p.n)
    by_row = p.run(a=p.a[rows], scale_a=p.scale_a[rows], azp=p.azp[rows])
    assert_bits(by_row, p.run()[rows])
    b, scale_b, bias = p.b[:, columns], p.scale_b[:, columns], p.bias[:, columns]
    assert_bits(p.run(b=b, scale_b=scale_b, bias=bias), p.run()[:, columns])
    inner = p.permutation(p.k)
    assert_bits(p.run(a=p.a[:, inner], b=p.b[inner]), p.run())


@given(Problems, st.data())
def test_slices(p: Problem, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, p.m - 1))
    j = data.draw(st.integers(i + 1, p.m))
    rows = p.run(a=p.a[i:j], scale_a=p.scale_a[i:j], azp=p.azp[i:j])
    assert_bits(rows, p.run()[i:j])
    i = data.draw(st.integers(0, p.n - 1))
    j = data.draw(st.integers(i + 1, p.n))
    part = {"scale_b": p.scale_b[:, i:j], "bias": p.bias[:, i:j]}
    for b in (p.b[:, i:j], pack_weight_int8(p.b[:, i:j])):
        assert_bits(p.run(b=b, **part), p.run()[:, i:j])


@given(Problems)
def test_per_token_is_a_stack_of_rows(p: Problem) -> None:
    rows = [p.run(a=p.a[i], scale_a=p.scale_a[i], azp=p.azp[i].reshape(())) for i in range(p.m)]
    assert_bits(torch.stack(rows), p.run())


@given(Problems, st.data())
def test_k_splits(p: Problem, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, p.k))
    parts = int8_mm(p.a[:, :k], p.b[:k]) + int8_mm(p.a[:, k:], p.b[k:])
    assert_bits(int8_mm(p.a, p.b), parts)


@given(Problems, st.integers(1, 70))
def test_zeros_after_k(p: Problem, more: int) -> None:
    a = torch.cat([p.a, torch.zeros(p.m, more, dtype=torch.int8)], 1)
    b = torch.cat([p.b, p.int8(more, p.n)])
    assert_bits(p.run(a=a, b=b, azp_adj=azp_adj(p.b)), p.run())
    assert_bits(int8_mm(a, pack_weight_int8(b)), int8_mm(p.a, p.b))


@given(Problems, st.integers(-27, 27))
def test_shifted_zero_point(p: Problem, shift: int) -> None:
    a = (p.a.int() * 100 // 128).to(torch.int8)
    assert_bits(p.run(a=(a + shift).to(torch.int8), azp=p.azp + shift), p.run(a=a))


@given(Problems, st.integers(-8, 8))
def test_power_of_two(p: Problem, exponent: int) -> None:
    scale = p.vector("normal", p.m, 1)
    plain = {**WITHOUT_AZP, "bias": None, "scale_b": p.vector("normal", 1, p.n).abs()}
    for out_dtype in (torch.float32, torch.bfloat16):
        out = p.run(scale_a=scale, out_dtype=out_dtype, **plain)
        scaled = p.run(scale_a=scale * 2.0**exponent, out_dtype=out_dtype, **plain)
        assert_bits(scaled, out * 2.0**exponent)


@given(Problems)
def test_neutral_operands(p: Problem) -> None:
    zero, none = torch.zeros(1, dtype=torch.int32), torch.full((1, p.n), -0.0)
    for bias in (p.bias, None, none):
        without = p.run(**WITHOUT_AZP, bias=bias)
        assert_bits(p.run(azp=zero, bias=bias), without)
        zeros = torch.zeros(1, p.n, dtype=torch.int32)
        assert_bits(p.run(**WITHOUT_AZP, azp_with_adj=zeros, bias=bias), without)
    assert_bits(p.run(bias=none), p.run(bias=None))
    assert_bits(p.run(**WITHOUT_AZP, bias=none), p.run(**WITHOUT_AZP, bias=None))


@given(Problems)
def test_one_element_for_all(p: Problem) -> None:
    s_a, s_b = p.scale_a[:1], p.scale_b[:, :1]
    expected = p.run(scale_a=s_a.repeat(p.m, 1), scale_b=s_b.repeat(1, p.n))
    for form in ((), (1,), (1, 1)):
        assert_bits(p.run(scale_a=s_a.reshape(form), scale_b=s_b.reshape(form)), expected)
    assert_bits(p.run(scale_a=s_a.expand(p.m, 1), scale_b=s_b.expand(1, p.n)), expected)


@given(p=Problems)
def test_every_isa_packs_for_every_other(p: Problem) -> None:
    results = []
    for packs in ISAS:
        with forced_cpu_isa(packs):
            weight = pack_weight_int8(p.b)
        for multiplies in ISAS:
            with forced_cpu_isa(multiplies):
                results += [p.run(b=weight), p.run()]
    for out in results:
        assert_bits(out, results[0])


@given(Problems)
def test_quantising_is_idempotent_and_monotone(p: Problem) -> None:
    x = p.vector("normal", p.m, p.k)
    q, scale, _ = quantize_int8(x)
    assert_bits(quantize_int8(q * scale)[0], q)
    for symmetric in (True, False):
        rising = quantize_int8(x.sort(-1).values, symmetric=symmetric)[0]
        assert (rising.int().diff() >= 0).all()
