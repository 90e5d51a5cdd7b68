"""Equalities of bits that need no reference: what the contract implies of the ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ISAS, assert_bits
from hypothesis import given
from hypothesis import strategies as st
from operands import GATED, MATRIX, OUT_DTYPES, VALUES
from torch import Tensor

from scaled_mm import (
    azp_adj,
    azp_with_adj,
    int8_mm,
    pack_weight_int8,
    quantize_int8,
    scaled_mm,
)
from scaled_mm._library import forced_cpu_isa
from scaled_mm.reference.functions import FUNCTIONS, GATES

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
        self.residual = self.vector(self.values, self.m, self.n)

    def int8(self, *shape: int) -> Tensor:
        return torch.from_numpy(MATRIX[self.matrix](self.rng, shape).astype(np.int8))

    def vector(self, values: str, *shape: int) -> Tensor:
        numbers = np.asarray(VALUES[values](self.rng, int(np.prod(shape))))
        return torch.from_numpy(numbers).float().reshape(shape)

    def permutation(self, n: int) -> Tensor:
        return torch.from_numpy(self.rng.permutation(n))

    def run(self, **changes: Any) -> Tensor:
        """The product with azp and bias, and `changes`; an operand that is None is left out. A
        residual only when it is among the changes."""
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
Residuals = st.sampled_from([torch.float32, None])  # their dtype; None: the output's
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


# --- a residual, an activation --------------------------------------------------------------------


def forms(p: Problem) -> list[dict[str, Any]]:
    """Each of the epilogues that a residual or an activation comes after."""
    with_adj = azp_with_adj(p.b, p.azp[:1])
    azps = ({}, WITHOUT_AZP, {**WITHOUT_AZP, "azp_with_adj": with_adj})
    return [{**azp, "bias": bias} for azp in azps for bias in (p.bias, None)]


@given(Problems, Residuals)
def test_a_residual_of_negative_zeros_is_none(p: Problem, dtype: torch.dtype | None) -> None:
    none = torch.full((p.m, p.n), -0.0, dtype=dtype or p.out_dtype)
    for form in forms(p):
        assert_bits(p.run(**form, residual=none), p.run(**form))
        assert_bits(p.run(**form, residual=none[:1, :1].expand(p.m, p.n)), p.run(**form))


@given(Problems)
def test_a_residual_of_positive_zeros_changes_only_the_sign_of_zeros(p: Problem) -> None:
    """x + 0 is x, but -0 + 0 is +0; of what is rounded to -0 later, nothing changes."""
    for form in forms(p):
        exact = p.run(**form, out_dtype=torch.float32)
        zero = torch.zeros(p.m, p.n)
        expected = torch.where(exact == 0, zero, exact).to(p.out_dtype)
        assert_bits(p.run(**form, residual=zero), expected)


@given(Problems, Residuals)
def test_a_residual_is_added_in_float32(p: Problem, dtype: torch.dtype | None) -> None:
    """To the output in float32, which is then rounded once."""
    residual = p.residual.to(dtype or p.out_dtype)
    for form in forms(p):
        expected = p.run(**form, out_dtype=torch.float32) + residual.float()
        assert_bits(p.run(**form, residual=residual), expected.to(p.out_dtype))
        assert_bits(p.run(**form, residual=residual.float()), expected.to(p.out_dtype))


@given(Problems, Residuals)
def test_permutations_and_slices_of_a_residual(p: Problem, dtype: torch.dtype | None) -> None:
    residual = p.residual.to(dtype or p.out_dtype)
    whole = p.run(residual=residual)
    rows, columns = p.permutation(p.m)[: 1 + p.m // 2], p.permutation(p.n)[: 1 + p.n // 2]
    by_row = {"a": p.a[rows], "scale_a": p.scale_a[rows], "azp": p.azp[rows]}
    assert_bits(p.run(**by_row, residual=residual[rows]), whole[rows])
    i, j = sorted(p.rng.integers(0, p.m + 1, 2).tolist())
    by_row = {"a": p.a[i:j], "scale_a": p.scale_a[i:j], "azp": p.azp[i:j]}
    assert_bits(p.run(**by_row, residual=residual[i:j]), whole[i:j])
    by_column = {"scale_b": p.scale_b[:, columns], "bias": p.bias[:, columns]}
    for b in (p.b[:, columns], pack_weight_int8(p.b[:, columns])):
        assert_bits(p.run(b=b, **by_column, residual=residual[:, columns]), whole[:, columns])
    i, j = sorted(p.rng.integers(0, p.n + 1, 2).tolist())
    by_column = {"scale_b": p.scale_b[:, i:j], "bias": p.bias[:, i:j]}
    for b in (p.b[:, i:j], pack_weight_int8(p.b[:, i:j])):
        assert_bits(p.run(b=b, **by_column, residual=residual[:, i:j]), whole[:, i:j])


@given(Problems)
def test_a_residual_may_be_the_output_before(p: Problem) -> None:
    """Where its elements lie does not matter, nor is it written to."""
    residual = p.run()
    kept = residual.clone()
    expected = p.run(residual=kept)
    assert_bits(p.run(residual=residual), expected)
    assert_bits(residual, kept)
    assert_bits(p.run(residual=residual.t().contiguous().t()), expected)
    wide = torch.stack([residual, residual], -1)
    assert_bits(p.run(residual=wide[..., 1]), expected)


def even(p: Problem) -> dict[str, Any]:
    """The changes that leave an even number of columns, at least two."""
    order = torch.arange(p.n + p.n % 2) % p.n
    names = {"b": p.b, "scale_b": p.scale_b, "bias": p.bias}
    return {name: x[:, order] for name, x in names.items()}


@pytest.mark.parametrize("activation", GATED)
@given(p=Problems)
def test_pairs_are_made_of_the_output_in_float32(activation: str, p: Problem) -> None:
    columns = even(p)
    for form in forms(p):
        same = {**columns, **form}
        if form["bias"] is not None:
            same["bias"] = columns["bias"]
        if "azp_with_adj" in form:
            same["azp_with_adj"] = azp_with_adj(columns["b"], p.azp[:1])
        x = p.run(**same, out_dtype=torch.float32)
        gate, value = x[:, 0::2], x[:, 1::2]
        with np.errstate(all="ignore"):
            made = FUNCTIONS[GATES[activation]].float32(gate.numpy())
        expected = torch.from_numpy(made) * value
        got = p.run(**same, activation=activation)
        assert_bits(got, expected.to(p.out_dtype))
        assert got.is_contiguous()


@pytest.mark.parametrize("activation", GATED)
@given(p=Problems)
def test_permutations_and_slices_of_pairs(activation: str, p: Problem) -> None:
    same = {**even(p), "activation": activation}
    whole = p.run(**same)
    i, j = sorted(p.rng.integers(0, p.m + 1, 2).tolist())
    rows = {"a": p.a[i:j], "scale_a": p.scale_a[i:j], "azp": p.azp[i:j]}
    assert_bits(p.run(**same, **rows), whole[i:j])
    order = p.permutation(whole.shape[1])[: 1 + whole.shape[1] // 2]
    columns = torch.stack([2 * order, 2 * order + 1], 1).flatten()
    part = {name: same[name][:, columns] for name in ("b", "scale_b", "bias")}
    assert_bits(p.run(**part, activation=activation), whole[:, order])
    part["azp_adj"] = azp_adj(part["b"])
    part["b"] = pack_weight_int8(part["b"])
    assert_bits(p.run(**part, activation=activation), whole[:, order])


@pytest.mark.parametrize("activation", (None, "gelu", "swiglu"))
@given(p=Problems)
def test_eight_bits_are_the_quantisers_of_the_output_in_float32(
    activation: str | None, p: Problem
) -> None:
    """No rounding in between: the formula of `quantize_int8` with a scale given, over float32."""
    same = {**even(p), "activation": activation}
    x = p.run(**same, out_dtype=torch.float32)
    scale = torch.from_numpy(p.rng.uniform(0.01, 1, (p.m, 1)).astype(np.float32))
    azp = torch.from_numpy(p.rng.integers(-128, 128, (p.m, 1), np.int32))
    for out_azp in (None, azp):
        given = {"scale": scale, "azp": out_azp, "symmetric": out_azp is None}
        expected, *_ = quantize_int8(x, **given)
        assert_bits(p.run(**same, out_dtype=torch.int8, out_scale=scale, out_azp=out_azp), expected)
    with np.errstate(all="ignore"):
        in_units = (x * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert_bits(p.run(**same, out_dtype=torch.float8_e4m3fn, out_scale=scale), in_units)


# --- other forms of the same ----------------------------------------------------------------------


@given(Problems)
def test_both_azp_forms(p: Problem) -> None:
    one = p.azp[:1]
    with_adj = {**WITHOUT_AZP, "azp_with_adj": azp_with_adj(p.b, one)}
    assert_bits(p.run(**with_adj), p.run(azp=one))
    assert_bits(p.run(azp=one.expand(p.m, 1)), p.run(azp=one))


@given(Problems)
def test_one_element_for_all(p: Problem) -> None:
    s_a, s_b = p.scale_a[:1], p.scale_b[:, :1]
    expected = p.run(scale_a=s_a.repeat(p.m, 1), scale_b=s_b.repeat(1, p.n))
    for form in ((), (1,), (1, 1)):
        assert_bits(p.run(scale_a=s_a.reshape(form), scale_b=s_b.reshape(form)), expected)
    assert_bits(p.run(scale_a=s_a.expand(p.m, 1), scale_b=s_b.expand(1, p.n)), expected)


@given(Problems)
def test_sign(p: Problem) -> None:
    expected = -p.run()
    assert_bits(p.run(scale_a=-p.scale_a, bias=-p.bias), expected)
    assert_bits(p.run(scale_b=-p.scale_b, bias=-p.bias), expected)


@given(Problems)
def test_identity_weight(p: Problem) -> None:
    eye = torch.eye(p.k, dtype=torch.int8)
    out = p.run(b=eye, scale_b=p.scale_b[:, :1], bias=None, **WITHOUT_AZP, out_dtype=torch.float32)
    assert_bits(out, p.scale_a * (p.scale_b[:, :1] * p.a.float()))
    assert_bits(int8_mm(p.a, eye), p.a.int())


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
