"""int8: guards for what tables of random operands do not reach. Each stands in catalogue.md."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_bits
from torch import Tensor

import scaled_mm
from scaled_mm import reference

pytestmark = pytest.mark.usefixtures("poisoned")


def int8(*shape: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng((seed, *shape))
    return torch.from_numpy(rng.integers(-128, 128, shape, np.int8))


# --- strides of 0 ---------------------------------------------------------------------------------

SIZES = ((1, 1), (2, 3), (4, 16), (16, 17), (37, 64), (64, 1), (67, 70), (130, 33))
EXPANDED = {
    "rows": lambda k, n: int8(1, n).expand(k, n),
    "columns": lambda k, n: int8(k, 1).expand(k, n),
    "both": lambda k, n: int8(1, 1, seed=k).expand(k, n),
    "rows, sliced": lambda k, n: int8(1, 2 * n)[:, ::2].expand(k, n),
    "columns, sliced": lambda k, n: int8(2 * k, 1)[::2].expand(k, n),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_an_expanded_weight(isa: str, name: str) -> None:
    """One row, column or element that is read as all of them."""
    for k, n in SIZES:
        b = EXPANDED[name](k, n)
        dense = b.contiguous()
        packed = scaled_mm.pack_weight_int8(b)
        assert torch.equal(packed.data, scaled_mm.pack_weight_int8(dense).data), (name, k, n)
        assert_bits(scaled_mm.azp_adj(b), reference.azp_adj(dense), name, k, n)
        for m in (1, 5, 17, 40):  # multiplied in place, and packed on the way
            a = int8(m, k, seed=1)
            expected = reference.int8_mm(a, dense)
            assert_bits(scaled_mm.int8_mm(a, b), expected, name, m, k, n)
            assert_bits(scaled_mm.int8_mm(a, packed), expected, name, m, k, n)


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_activations(isa: str, name: str) -> None:
    for m, k in SIZES:
        a, b = EXPANDED[name](m, k), int8(k, 20, seed=1)
        expected = reference.int8_mm(a.contiguous(), b)
        assert_bits(scaled_mm.int8_mm(a, b), expected, name, m, k)
        assert_bits(scaled_mm.int8_mm(a, scaled_mm.pack_weight_int8(b)), expected, name, m, k)


def test_windows_over_one_memory(isa: str) -> None:
    """Token j of sequence i is token i + j of a memory: both dimensions have one stride, which does
    not lead from each token to the next."""
    rng = np.random.default_rng(3)
    tokens = torch.from_numpy(rng.standard_normal((4, 24)).astype(np.float32))
    x = tokens.as_strided((2, 3, 24), (24, 24, 1))
    q, scale, _ = scaled_mm.quantize_int8(x.contiguous())
    assert_bits(scaled_mm.quantize_int8(x)[0], q)
    scales = scale.flatten()[:4].contiguous().as_strided((2, 3, 1), (1, 1, 1))
    given, _, _ = scaled_mm.quantize_int8(x, scale=scales.contiguous())
    assert_bits(scaled_mm.quantize_int8(x, scale=scales)[0], given)


# --- the packed buffer ----------------------------------------------------------------------------

PANEL, GROUP = 16, 4


def packed_by_hand(b: Tensor) -> Tensor:
    """csrc/cpu/packed.h's layout in numpy: panels of 16 columns, groups of 4 k, 128 added, zeros
    past K and N and in the 64 bytes behind each panel."""
    k, n = b.shape
    panels, groups = -(-n // PANEL), -(-k // GROUP)
    padded = np.zeros((panels * PANEL, (groups + 1) * GROUP), np.uint8)
    padded[:n, :k] = b.t().contiguous().numpy().view(np.uint8) ^ 0x80
    by_panel = padded.reshape(panels, PANEL, groups + 1, GROUP)
    return torch.from_numpy(by_panel.transpose(0, 2, 1, 3).reshape(-1).copy())


@pytest.mark.parametrize(("k", "n"), [*SIZES, (0, 3), (3, 0), (300, 100)])
def test_every_byte_of_a_packed_weight(isa: str, k: int, n: int) -> None:
    """Padding and skew too: what is saved to a file or compared must not hold old memory."""
    for b in (int8(k, n), int8(n, k).t(), int8(k, 2 * n)[:, ::2]):
        assert torch.equal(scaled_mm.pack_weight_int8(b).data, packed_by_hand(b))


def packed_calls(b_shape: tuple[int, int], buffer: Tensor) -> dict[str, Any]:
    """Every op that takes a packed weight, on a weight of this shape."""
    ops, k = torch.ops.scaled_mm, min(b_shape[0], 2**20)
    a = torch.ones(1, k, dtype=torch.int8)
    one = torch.ones(1)
    return {
        "int8_mm": lambda: ops.int8_mm(a, buffer, b_shape=b_shape),
        "scaled_mm": lambda: ops.scaled_mm(a, buffer, one, one, b_shape=b_shape),
        "azp_adj": lambda: ops.azp_adj(buffer, b_shape=b_shape),
        "azp_with_adj": lambda: ops.azp_with_adj(buffer, one.int(), b_shape=b_shape),
    }


def bytes_for(k: int, n: int) -> int:
    return -(-n // PANEL) * (-(-k // GROUP) + 1) * GROUP * PANEL


@pytest.mark.parametrize("op", ["int8_mm", "scaled_mm", "azp_adj", "azp_with_adj"])
def test_k_of_a_packed_weight(op: str) -> None:
    """A buffer of the right size for a K whose sums could wrap; the K before it runs."""
    for k, wraps in ((131071, False), (131072, True)):
        buffer = torch.zeros(bytes_for(k, 1), dtype=torch.uint8)
        call = packed_calls((k, 1), buffer)[op]
        if wraps:
            with pytest.raises(ValueError, match=r"^b must have K <= 131071 rows .*got K=131072$"):
                call()
        else:
            call()


@pytest.mark.parametrize("op", ["int8_mm", "scaled_mm", "azp_adj", "azp_with_adj"])
@pytest.mark.parametrize("n", [2**40 + 1, 2**60, 2**63 - 1])
def test_n_of_a_packed_weight(op: str, n: int) -> None:
    """Beyond the limit the size of its buffer would overflow, to 0 at last."""
    with pytest.raises(ValueError, match=rf"^b_shape must be .*N <= {2**40}, got \(0, {n}\)$"):
        packed_calls((0, n), torch.zeros(0, dtype=torch.uint8))[op]()


def test_n_at_the_limit_is_a_matter_of_memory() -> None:
    """The limit itself is no refusal: what is asked for does not fit, that is all."""
    b = torch.ones((), dtype=torch.int8).expand(131071, 2**40)
    with pytest.raises(torch.OutOfMemoryError):
        scaled_mm.pack_weight_int8(b)
    with pytest.raises(ValueError, match=rf"^b must have N <= {2**40} columns, got N={2**40 + 1}$"):
        scaled_mm.pack_weight_int8(torch.ones((), dtype=torch.int8).expand(131071, 2**40 + 1))


# --- state from call to call ----------------------------------------------------------------------


def test_calls_in_between_leave_nothing(isa: str) -> None:
    """AMX keeps the shape of its tiles in registers that outlive a call: heights in every order,
    and torch's own bfloat16 products, which shape them otherwise, in between."""
    b = int8(100, 70)
    packed = scaled_mm.pack_weight_int8(b)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    square = x @ x
    for rows in (32, 32, 5, 32, 33, 1, 1, 17, 16, 48, 5, 5):
        a = int8(rows, 100, seed=rows)
        assert_bits(scaled_mm.int8_mm(a, packed), reference.int8_mm(a, b), rows)
        assert torch.equal(x @ x, square), rows
        assert_bits(scaled_mm.int8_mm(a, packed), reference.int8_mm(a, b), rows, "again")


def test_a_taller_tile_after_a_shorter(isa: str, threads: None) -> None:
    """For one thread 65 rows are blocks of 33 and 32. Where tiles have 32 rows, the first block is
    tiles of 17 and 16, and the second one of 32: no height may be that of a tile before."""
    torch.set_num_threads(1)
    b = int8(100, 100)
    packed = scaled_mm.pack_weight_int8(b)
    for rows in (65, 33, 65, 50):
        a = int8(rows, 100, seed=rows)
        assert_bits(scaled_mm.int8_mm(a, packed), reference.int8_mm(a, b), rows)


# --- ties of the fused multiply-add ---------------------------------------------------------------

# scale_b is an even float of 24 bits, bias 1: scale_b + 1 is half way between two floats, exactly.
TIES = [2.0**24 + 2 * i for i in range(64)] + [2.0**25 - 2, 2.0**25 + 4]


@pytest.mark.parametrize("sign", [1, -1])
def test_exact_ties_go_to_even(isa: str, sign: int) -> None:
    """Without the instruction a sum is rounded to odd first: only where that is not exact."""
    one = torch.ones(1, 1, dtype=torch.int8)
    b = one.expand(1, len(TIES))
    scale_b = torch.tensor(TIES)[None]
    for bias in (1.0, -1.0, 0.0):
        expected = torch.tensor([sign * x + bias for x in TIES], dtype=torch.float64).float()[None]
        got = scaled_mm.scaled_mm(
            sign * one,
            b,
            torch.ones(1),
            scale_b,
            bias=torch.full((len(TIES),), bias),
            out_dtype=torch.float32,
        )
        assert_bits(got, expected, sign, bias)
