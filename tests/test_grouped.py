"""Weights in groups: the quantisers against plain numpy, and compressed-tensors' words."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits, refuses
from torch import Tensor

import scaled_mm
from scaled_mm.lowbit.grouped import GroupedWeight, quantize_weight_grouped

K, N = 24, 13
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
kinds = pytest.mark.parametrize(
    ("bits", "group", "symmetric"), [*itertools.product((4, 8), (-1, 1, 6, 8), (True, False))]
)


def weight(dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(K, N, generator=generator) * torch.logspace(-2, 1, N)).to(dtype)


def rounded(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(np.asarray(x)).to(dtype).float().numpy()


def plainly(w: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype) -> list[Any]:
    """q, scales, zeros by loops over groups; float32 as numpy divides it."""
    values, (k, n), half = w.float().numpy(), w.shape, 2 ** (bits - 1)
    group = k if group == -1 else group
    q, s, z = np.zeros((k, n)), np.zeros((k // group, n)), np.zeros((k // group, n))
    tiny = np.float32(torch.finfo(dtype).tiny)
    for g, column in itertools.product(range(k // group), range(n)):
        rows = slice(g * group, (g + 1) * group)
        part = values[rows, column]
        low, high = min(part.min(), np.float32(0)), max(part.max(), np.float32(0))
        reach = np.abs(part).max() / np.float32(half - 0.5)
        whole = (high - low) / np.float32(2 * half - 1)
        scale = max(rounded(reach if symmetric else whole, dtype).item(), tiny)
        zero = 0 if symmetric else np.clip(np.rint(-low / np.float32(scale)), 0, 2 * half - 1)
        ends = (-half, half - 1) if symmetric else (0, 2 * half - 1)
        q[rows, column] = np.clip(np.rint(part / np.float32(scale)) + zero, *ends)
        s[g, column], z[g, column] = scale, zero
    return [q, s, None if symmetric else z]


def dequantised(made: GroupedWeight) -> Tensor:
    group = len(made.q) // len(made.scales)
    zeros = 0 if made.zeros is None else made.zeros.double().repeat_interleave(group, 0)
    return (made.q.double() - zeros) * made.scales.double().repeat_interleave(group, 0)


@pytest.mark.parametrize("dtype", HALVES)
@kinds
def test_it_is_the_formula(bits: int, group: int, symmetric: bool, dtype: str) -> None:
    kind = HALVES[dtype]
    w = weight()
    made = quantize_weight_grouped(
        w.t(), bits=bits, group_size=group, symmetric=symmetric, dtype=kind
    )
    q, scales, zeros = plainly(w, bits, group, symmetric, kind)
    assert made.q.dtype == (torch.int8 if symmetric else torch.uint8)
    assert made.scales.dtype == kind and (made.zeros is None) == symmetric
    np.testing.assert_array_equal(made.q.numpy(), q)
    np.testing.assert_array_equal(made.scales.double().numpy(), scales)
    if made.zeros is not None:
        assert made.zeros.dtype == torch.uint8
        np.testing.assert_array_equal(made.zeros.numpy(), zeros)
    levels = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    assert levels[0] <= int(made.q.min()) and int(made.q.max()) <= levels[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_scales_dtype_is_the_weight_s(dtype: torch.dtype) -> None:
    made = scaled_mm.quantize_weight_grouped(weight(dtype).t(), bits=8)
    assert made.scales.dtype == (torch.bfloat16 if dtype.itemsize > 2 else dtype)
    assert made.scales.shape == (1, N)


def test_it_is_done_in_parts_of_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from scaled_mm.lowbit import grouped

    options: dict[str, Any] = {"bits": 4, "group_size": 8, "symmetric": False}
    whole = quantize_weight_grouped(weight().t(), **options)
    monkeypatch.setattr(grouped, "_AT_ONCE", 2 * K)
    for part, same in zip(quantize_weight_grouped(weight().t(), **options), whole, strict=True):
        assert_bits(part, same)


@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_of_zeros_and_of_the_smallest_numbers(symmetric: bool) -> None:
    """A scale is a normal number, so that nothing is divided by 0 and every level is finite."""
    w = torch.zeros(8, 3)
    w[:, 1] = 1e-45
    w[::2, 2] = -1e-30
    for dtype in HALVES.values():
        made = quantize_weight_grouped(w.t(), bits=8, symmetric=symmetric, dtype=dtype)
        assert bool((made.scales >= torch.finfo(dtype).tiny).all())
        error = (dequantised(made) - w.double()).abs()
        assert bool((error <= 0.505 * made.scales.double()).all())


def test_a_range_on_one_side_of_zero_holds_zero() -> None:
    w = torch.linspace(3, 4, 16).unsqueeze(1)
    made = quantize_weight_grouped(w.t(), bits=4, symmetric=False, dtype=torch.float16)
    assert made.zeros is not None and int(made.zeros) == 0 and int(made.q.max()) == 15
    made = quantize_weight_grouped(-w.t(), bits=4, symmetric=False, dtype=torch.float16)
    assert made.zeros is not None and int(made.zeros) == 15 and int(made.q.min()) == 0


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_empty_weights(shape: tuple[int, int]) -> None:
    made = quantize_weight_grouped(torch.ones(shape).t(), bits=4, symmetric=False)
    assert made.q.shape == shape
    assert made.scales.shape == ((1 if shape[0] else 0), shape[1])


REFUSED = {
    "bits must be 4 or 8, got 3": {"bits": 3},
    r"group_size must divide K=24 \(or be -1\), got 5": {"group_size": 5},
    r"group_size must divide K=24 \(or be -1\), got 0": {"group_size": 0},
    "dtype must be float16 or bfloat16, got float32": {"dtype": torch.float32},
    r"w must be floating of shape \[N, K": {"w": torch.ones(2, 2, dtype=torch.int8)},
    r"w must be floating of shape \[N, K\], got float32 of shape": {"w": torch.ones(4)},
    "w must be finite, .* got a largest .* nan": {"w": torch.full((2, 8), torch.nan)},
    "w must be finite, .* magnitude of inf": {"w": torch.full((2, 8), -torch.inf)},
    "w must be finite, and in float16 too once it is multiplied back, got .* 65504": [
        {"w": torch.full((2, 8), 65504.0), "dtype": torch.float16},
        {"w": torch.tensor([[-65504.0, 65504.0]]), "dtype": torch.float16, "symmetric": False},
    ],
}
test_refused = refuses(REFUSED, quantize_weight_grouped, w=weight().t(), bits=8)
test_refused_too = refuses(
    REFUSED, quantize_weight_grouped, w=weight().t(), bits=8, symmetric=False
)
