"""AWQ's weights packed: the CPU's layout can be undone, and products have the bits of the words.
(Units: test_units.py; on a GPU: test_cuda_awq.py.)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from awq_cases import AWQ_CASES, FINITE, AwqCase
from helpers import assert_bits, bytes_of, each_isa
from torch import Tensor

import scaled_mm
from scaled_mm import MixedWeight, awq
from scaled_mm.ops import units
from scaled_mm.ops.packed_words import INTEGER

pytestmark = pytest.mark.usefixtures("poisoned")
NAMES = ("qweight", "scales", "qzeros")


def assert_same(packed: MixedWeight, operands: dict[str, Tensor], *context: object) -> None:
    q, scales, zeros, order = packed.unpack()
    assert zeros is not None and order is None
    for name, x in zip(NAMES, (awq.pack(q), scales, awq.pack(zeros)), strict=True):
        assert x.is_contiguous()
        assert_bits(x, operands[name].contiguous(), name, *context)


@pytest.mark.parametrize("name", AWQ_CASES)
def test_there_and_back(name: str) -> None:
    operands = AWQ_CASES[name].weight()
    before = bytes_of(operands.values())
    packed = MixedWeight.from_awq(**operands)
    assert packed.layout == 2
    assert packed.shape == (AWQ_CASES[name].k, AWQ_CASES[name].n)
    assert_same(packed, operands, name)
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(operands.values()), before, strict=True))


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product(name: str) -> None:
    operands = AWQ_CASES[name].product()
    packed = MixedWeight.from_awq(*(operands[x] for x in NAMES))
    rest = {x: y for x, y in operands.items() if x not in (*NAMES, "x")}
    for isa in each_isa():
        expected = scaled_mm.awq_gemm(**operands)
        out = torch.empty_like(expected)
        assert_bits(scaled_mm.awq_gemm(operands["x"], packed, **rest), expected, isa)
        assert scaled_mm.awq_gemm(operands["x"], packed, **rest, out=out) is out
        assert_bits(out, expected, isa)


W = AwqCase("packed", 128, 64, 64, torch.float16, "special").weight()
X = torch.linspace(-1, 1, 3 * 128).view(3, 128).half()


def test_packing_refuses() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"qweight": W["qweight"].long()}, "qweight must be int32 of two dimensions, got int64"),
        ({"qzeros": W["qzeros"].float()}, "qzeros must be int32 of two dimensions, got float32"),
        ({"scales": W["scales"].float()}, "scales must be float16 or bfloat16, got float32"),
        ({"scales": W["scales"][:, :8]}, "scales must have N=64 columns"),
        ({"qzeros": W["qzeros"][:1]}, "qzeros must have shape"),
    ]
    for change, message in wrong:
        with pytest.raises(ValueError, match=message):
            MixedWeight.from_awq(**{**W, **change})
    with pytest.raises(TypeError, match="scales must be a Tensor, got list"):
        MixedWeight.from_awq(W["qweight"], [], W["qzeros"])


def test_products_refuse() -> None:
    packed = MixedWeight.from_awq(**W)
    op = torch.ops.scaled_mm.mixed_mm
    long = torch.cat([packed.data, packed.data])
    size = units.units_elements(128, 64, 64, 4, INTEGER)
    for_a_gpu = replace(packed, data=packed.data[:size], layout=1)
    wrong: list[tuple[Any, str]] = [
        (lambda: scaled_mm.awq_gemm(X.bfloat16(), packed), "packed must be of x's dtype bfloat16"),
        (lambda: scaled_mm.awq_gemm(X[:, 1:], packed), "x must have K=128 columns"),
        (lambda: scaled_mm.awq_gemm(X, for_a_gpu), "must be of layout 0 or 2 on the CPU"),
        (
            lambda: op(X, long, [128, 64, 64, 4, 1, 2]),
            "packed must be a contiguous buffer of shape",
        ),
        (lambda: op(X, long[::2], [128, 64, 64, 4, 1, 2]), "packed must be a contiguous buffer"),
        (lambda: op(X, long[1:], [128, 64, 64, 4, 1, 2]), "packed must be a contiguous buffer"),
        (
            lambda: op(X, long.view(torch.int16), [128, 64, 64, 4, 1, 2]),
            "packed must be float16 or",
        ),
        (lambda: scaled_mm.awq_gemm(X, packed, out=packed.data[: 3 * 64].view(3, 64)), "out must"),
        (lambda: replace(packed, data=long).unpack(), "data must be a buffer of pack_weight"),
    ]
    sizes = ([128, 64, 48, 4, 1, 0], [-1, 64, 64, 4, 1, 0], [128, 64, 64, 4, 1, 3])
    sizes += ([128, 64, 16, 4, 1, 1], [0, 64, 0, 4, 1, 1], [2**40, 64, 2**40, 4, 1, 0])
    for bad in (*sizes, [128, 64, 64, 4, 1], [128, 64, 0, 4, 1, 0]):
        wrong.append((lambda bad=bad: op(X, packed.data, bad), "sizes must be"))
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    for more in ({"scales": W["scales"]}, {"qzeros": W["qzeros"]}):
        with pytest.raises(TypeError, match="scales and qzeros must be absent"):
            scaled_mm.awq_gemm(X, packed, **more)
