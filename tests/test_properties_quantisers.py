"""Equalities of bits that need no reference: what the contract implies of the quantisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import assert_bits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scaled_mm import (
    quantize_int8,
)

pytestmark = pytest.mark.usefixtures("isa")
Seeds = st.integers(0, 2**32 - 1)


# --- quantisers -----------------------------------------------------------------------------------


def activations(seed: int, m: int, k: int, kind: str) -> Tensor:
    rng = np.random.default_rng(seed)
    x = {
        "normal": rng.standard_normal((m, k)),
        "positive": np.abs(rng.standard_normal((m, k))) + 1,
        "wide": rng.standard_normal((m, k)) * 10 ** rng.uniform(-30, 30, (m, k)),
        "grid": rng.integers(-255, 256, (m, k)) / 2,
    }[kind]
    return torch.from_numpy(x).float()


Activations = st.builds(
    activations,
    Seeds,
    st.integers(1, 20),
    st.integers(1, 100),
    st.sampled_from(["normal", "positive", "wide", "grid"]),
)
KINDS = pytest.mark.parametrize("symmetric", [True, False])


@given(Activations)
def test_symmetric_quantiser_is_idempotent(x: Tensor) -> None:
    for per_token in (True, False):
        q, scale, _ = quantize_int8(x, per_token=per_token)
        assert_bits(quantize_int8(q * scale, per_token=per_token)[0], q)
        assert_bits(quantize_int8(q * scale, scale=scale)[0], q)


@KINDS
@given(x=Activations)
def test_monotone(x: Tensor, symmetric: bool) -> None:
    x = x.sort(-1).values
    assert (quantize_int8(x, symmetric=symmetric)[0].int().diff() >= 0).all()
    everything = x.flatten().sort().values
    q, _, _ = quantize_int8(everything, symmetric=symmetric, per_token=False)
    assert (q.int().diff() >= 0).all()


@KINDS
@given(x=Activations)
def test_half_a_step_at_most(x: Tensor, symmetric: bool) -> None:
    q, scale, azp = quantize_int8(x, symmetric=symmetric)
    z = 0 if azp is None else azp.double()
    error = (x.double() - scale.double() * (q.double() - z)).abs()
    # Asymmetric, the ends of the range may be rounded out of it by the zero point's half a step;
    # the quotient, below 128, is rounded by up to 2^-18 before it meets a half-integer.
    allowed = (0.5 if symmetric else 1.0) + 2.0**-18
    assert (error <= scale.double() * allowed).all()


@KINDS
@given(x=Activations)
def test_zero_is_exact(x: Tensor, symmetric: bool) -> None:
    q, _, azp = quantize_int8(torch.cat([x, torch.zeros(len(x), 1)], 1), symmetric=symmetric)
    assert_bits(q[:, -1:].int(), torch.zeros(len(x), 1).int() if azp is None else azp)


@KINDS
@given(x=Activations, seed=Seeds)
def test_quantised_rows_stand_alone(x: Tensor, symmetric: bool, seed: int) -> None:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(x.shape[1]))
    whole = quantize_int8(x, symmetric=symmetric)
    rows = [quantize_int8(row, symmetric=symmetric) for row in x]
    permuted = quantize_int8(x[:, order], symmetric=symmetric)
    assert_bits(permuted[0], whole[0][:, order])
    for i in range(2 if symmetric else 3):
        assert_bits(torch.stack([row[i] for row in rows]), whole[i])
        if i > 0:
            assert_bits(permuted[i], whole[i])


@KINDS
@given(x=Activations)
def test_own_scale_given_back(x: Tensor, symmetric: bool) -> None:
    for per_token in (True, False):
        q, scale, azp = quantize_int8(x, symmetric=symmetric, per_token=per_token)
        again = quantize_int8(x, scale=scale, azp=azp, symmetric=symmetric)
        assert_bits(again[0], q)
        assert again[1:] == (scale, azp)


@given(Activations, st.integers(-10, 10))
def test_quantiser_symmetries(x: Tensor, exponent: int) -> None:
    q, scale, _ = quantize_int8(x)
    assert_bits(quantize_int8(-x)[0], -q)
    scaled = quantize_int8(x * 2.0**exponent)
    assert_bits(scaled[0], q)
    assert_bits(scaled[1], scale * 2.0**exponent)


@KINDS
@given(x=Activations)
def test_halves_are_widened(x: Tensor, symmetric: bool) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        half = x.to(dtype)
        got = quantize_int8(half, symmetric=symmetric)
        expected = quantize_int8(half.float(), symmetric=symmetric)
        for i in range(2 if symmetric else 3):
            assert_bits(got[i], expected[i])
