"""`pack_awq`: both layouts can be undone and are what docs/lowbit.md draws; products with a packed
weight have the same bits; `AWQLinear.pack`. (On a GPU: test_cuda_awq.py.)"""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from awq_cases import AWQ_CASES, DTYPES, FINITE, AwqCase
from helpers import assert_bits, bytes_of, each_isa
from torch import Tensor

import scaled_mm
from scaled_mm import awq
from scaled_mm.nn import AWQLinear
from scaled_mm.ops import packed_awq, units
from scaled_mm.ops.packed_awq import UNITS, WORDS, PackedAWQ
from scaled_mm.ops.packed_words import INTEGER

pytestmark = pytest.mark.usefixtures("poisoned")
NAMES = ("qweight", "scales", "qzeros")

# (K, N, G): every number of sets, padding of K and of N, a group for all rows.
SHAPES = [
    (128, 64, 128),
    (384, 8, 384),
    (256, 72, 64),
    (192, 136, 64),
    (192, 64, 192),
    (352, 200, 32),
    (96, 24, 96),
    (160, 56, 160),
]


def weight(k: int, n: int, group: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return AwqCase(f"pack-{k}-{n}-{group}-{dtype}", k, n, group, dtype, "special").weight()


def in_units(operands: dict[str, Tensor]) -> PackedAWQ:
    """Layout 1, on the CPU too."""
    (k, words), groups = operands["qweight"].shape, len(operands["scales"])
    q, z = awq.unpack(operands["qweight"]), awq.unpack(operands["qzeros"])
    data = units.to_units(q, operands["scales"], z, 4, INTEGER, k // groups)
    return PackedAWQ(data, k, 8 * words, k // groups, UNITS)


def assert_same(got: tuple[Tensor, ...], operands: dict[str, Tensor], *context: object) -> None:
    for name, x in zip(NAMES, got, strict=True):
        assert x.is_contiguous()
        assert_bits(x, operands[name].contiguous(), name, *context)


@pytest.mark.parametrize("name", AWQ_CASES)
def test_there_and_back(name: str) -> None:
    operands = AWQ_CASES[name].weight()
    before = bytes_of(operands.values())
    packed = scaled_mm.pack_awq(**operands)
    assert packed.layout == WORDS
    assert packed.shape == (AWQ_CASES[name].k, AWQ_CASES[name].n)
    assert_same(packed.unpack(), operands, name)
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(operands.values()), before, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n", "group"), SHAPES)
def test_units_there_and_back(k: int, n: int, group: int, dtype: torch.dtype) -> None:
    operands = weight(k, n, group, dtype)
    packed = in_units(operands)
    assert packed.data.shape == (packed_awq.packed_elements(k, n, group, UNITS),)
    assert_same(packed.unpack(), operands)


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product(name: str) -> None:
    operands = AWQ_CASES[name].product()
    packed = scaled_mm.pack_awq(*(operands[x] for x in NAMES))
    rest = {x: y for x, y in operands.items() if x not in (*NAMES, "x")}
    for isa in each_isa():
        expected = scaled_mm.awq_gemm(**operands)
        out = torch.empty_like(expected)
        assert_bits(scaled_mm.awq_gemm(operands["x"], packed, **rest), expected, isa)
        assert scaled_mm.awq_gemm(operands["x"], packed, **rest, out=out) is out
        assert_bits(out, expected, isa)


W = weight(128, 64, 64, torch.float16)
X = torch.linspace(-1, 1, 3 * 128).view(3, 128).half()


def test_packing_refuses() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"qweight": W["qweight"].long()}, "qweight must be int32, got int64"),
        ({"qzeros": W["qzeros"].float()}, "qzeros must be int32, got float32"),
        ({"scales": W["scales"].float()}, "scales must be float16 or bfloat16, got float32"),
        ({"scales": W["scales"][:, :8]}, "scales must have N=64 columns"),
        ({"qzeros": W["qzeros"][:1]}, "qzeros must have shape"),
    ]
    for change, message in wrong:
        with pytest.raises(ValueError, match=message):
            scaled_mm.pack_awq(**{**W, **change})
    with pytest.raises(TypeError, match="scales must be a Tensor, got list"):
        scaled_mm.pack_awq(W["qweight"], [], W["qzeros"])


def test_products_refuse() -> None:
    packed = scaled_mm.pack_awq(**W)
    op = torch.ops.scaled_mm.mixed_mm
    long = torch.cat([packed.data, packed.data])
    wrong: list[tuple[Any, str]] = [
        (lambda: scaled_mm.awq_gemm(X.bfloat16(), packed), "packed must be of x's dtype bfloat16"),
        (lambda: scaled_mm.awq_gemm(X[:, 1:], packed), "x must have K=128 columns"),
        (lambda: scaled_mm.awq_gemm(X, in_units(W)), "packed must be of layout 0 on the CPU"),
        (
            lambda: op(X, long, [128, 64, 64, 4, 1, 0]),
            "packed must be a contiguous buffer of shape",
        ),
        (lambda: op(X, long[::2], [128, 64, 64, 4, 1, 0]), "packed must be a contiguous buffer"),
        (lambda: op(X, long[1:], [128, 64, 64, 4, 1, 0]), "packed must be a contiguous buffer"),
        (
            lambda: op(X, long.view(torch.int16), [128, 64, 64, 4, 1, 0]),
            "packed must be float16 or",
        ),
        (lambda: scaled_mm.awq_gemm(X, packed, out=packed.data[: 3 * 64].view(3, 64)), "out must"),
        (lambda: PackedAWQ(long, 128, 64, 64, 0).unpack(), "data must be of shape"),
    ]
    sizes = ([128, 64, 48, 4, 1, 0], [-1, 64, 64, 4, 1, 0], [128, 64, 64, 4, 1, 2])
    sizes += ([128, 64, 16, 4, 1, 1], [0, 64, 0, 4, 1, 1], [2**40, 64, 2**40, 4, 1, 0])
    for bad in (*sizes, [128, 64, 64, 4, 1], [128, 64, 0, 4, 1, 0]):
        wrong.append((lambda bad=bad: op(X, packed.data, bad), "sizes must be"))
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    for more in ({"scales": W["scales"]}, {"qzeros": W["qzeros"]}):
        with pytest.raises(TypeError, match="scales and qzeros must be absent"):
            scaled_mm.awq_gemm(X, packed, **more)


# --- AWQLinear ------------------------------------------------------------------------------------


def layer(bias: bool = True, dtype: torch.dtype = torch.float16) -> AWQLinear:
    made = AWQLinear(128, 64, bias=bias, group_size=64, dtype=dtype)
    state = {**W, "scales": W["scales"].nan_to_num(0.1, 0.1, 0.1).to(dtype)}
    made.load_state_dict(state | ({"bias": torch.linspace(-1, 1, 64)} if bias else {}))
    return made


@pytest.mark.parametrize("bias", [False, True])
def test_layer(bias: bool) -> None:
    plain = layer(bias)
    packed = copy.deepcopy(plain).pack()
    assert packed.pack() is packed
    assert "packed" in repr(packed)
    assert packed.qweight is packed.scales is packed.qzeros is None
    for made in (packed, copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert made.packed is not None
        assert_bits(made(X), plain(X))
    saved, expected = packed.state_dict(), plain.state_dict()
    assert saved.keys() == expected.keys()
    for name, x in expected.items():
        assert_bits(saved[name], x, name)
    unpacked = packed.unpack()
    assert unpacked.packed is None
    assert_bits(unpacked(X), plain(X))
    for name, x in expected.items():
        assert_bits(getattr(unpacked, name), x, name)


def test_layer_is_packed_again() -> None:
    """After it is loaded, converted and moved."""
    packed, other = layer().pack(), layer()
    other.qweight.bitwise_not_()
    packed.load_state_dict(other.state_dict())
    assert packed.packed is not None
    assert_bits(packed(X), other(X))
    packed.bfloat16()
    assert packed.packed is not None
    assert packed.packed.data.dtype == torch.bfloat16
    assert_bits(packed(X), other.bfloat16()(X))
    assert packed.to("meta").packed is None
    assert packed.qweight.is_meta


def test_programs() -> None:
    """Compiled and exported, in either mode."""
    packed = layer().pack()
    expected = packed(X)
    assert_bits(torch.compile(packed, fullgraph=True, backend="aot_eager")(X), expected)
    for strict, bias in itertools.product((False, True), repeat=2):
        made = layer(bias).pack()
        program = torch.export.export(made, (X,), strict=strict)
        assert_bits(program.module()(X), made(X), strict, bias)
