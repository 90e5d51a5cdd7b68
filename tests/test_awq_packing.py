"""int4: words, AWQ and GPTQ there and back, and the layer made of them."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from awq_cases import AWQ_CASES, DTYPES, FINITE, AwqCase
from helpers import assert_bits, bytes_of, each_isa, refuses
from torch import Tensor

import scaled_mm
from scaled_mm import MixedWeight, awq
from scaled_mm.nn import AWQLinear, WeightOnlyLinear
from scaled_mm.ops import units
from scaled_mm.ops.packed_words import INTEGER

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
ORDERS = {"interleaved": awq.INTERLEAVED, "sequential": awq.SEQUENTIAL}
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def words(*shape: int, seed: int = 0) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)
    return torch.from_numpy(bits.view(np.int32))


CORNERS = [0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xF0000000, 0xFFFFFFFF, 0x0F0F0F0F, 0x75316420]


def test_the_packing_of_awq() -> None:
    assert awq.pack(torch.arange(8)).item() == 0x75316420
    assert awq.pack(torch.arange(8), awq.SEQUENTIAL).item() == 0x76543210
    assert [awq.INTERLEAVED[column] for column in reference_columns()] == list(range(8))


def reference_columns() -> tuple[int, ...]:
    from scaled_mm.reference.lowbit import COLUMNS

    return COLUMNS


@pytest.mark.parametrize("order", ORDERS)
def test_pack_undoes_unpack(order: str) -> None:
    corners = torch.tensor(CORNERS).to(torch.int32)
    bit_31 = words(1000) | -(2**31)
    for w in (corners, bit_31, words(7, 5, 3), words(0, 4), words(6, 10).t(), words(9, 8)[:, ::2]):
        assert_bits(awq.pack(awq.unpack(w, ORDERS[order]), ORDERS[order]), w.contiguous())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_pack_takes_any_integers(dtype: torch.dtype) -> None:
    q = torch.arange(16).repeat(3).to(dtype)
    assert_bits(awq.pack(q), awq.pack(q.to(torch.int64)))
    if dtype != torch.uint8:
        assert_bits(awq.pack(q - 16), awq.pack(q))


def test_words_refused() -> None:
    for q in (torch.zeros(8), torch.zeros(9, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"^q must be integer with a multiple of 8"):
            awq.pack(q)
    with pytest.raises(ValueError, match=r"^words must be int32, got int64$"):
        awq.unpack(torch.zeros(3, dtype=torch.int64))


K, N, G = 96, 24, 16


def awq_weight(seed: int = 0, dtype: torch.dtype = torch.float16) -> awq.Awq:
    scales = torch.rand(K // G, N, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return awq.Awq(words(K, N // 8, seed=seed), scales, words(K // G, N // 8, seed=seed + 1))


def gptq_weight(seed: int = 0, act_order: bool = False) -> awq.Gptq:
    g_idx = torch.arange(K, dtype=torch.int32) // G
    if act_order:
        g_idx = g_idx[torch.randperm(K, generator=torch.Generator().manual_seed(seed))]
    w = awq_weight(seed)
    return awq.Gptq(words(K // 8, N, seed=seed + 2), w.scales, w.qzeros, g_idx)


def assert_same(got: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    for x, y in zip(got, expected, strict=True):
        assert_bits(x, y)


def test_awq_and_back() -> None:
    w = awq_weight()
    assert_same(awq.to_awq(awq.from_awq(*w)), w)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_gptq_and_back(version: int, act_order: bool) -> None:
    w = gptq_weight(act_order=act_order)
    assert_same(awq.to_gptq(awq.from_gptq(*w, version=version), version=version), w)


def test_gptq_by_hand() -> None:
    """Row 8 r + j is nibble j of word r; version 1 stores z - 1 modulo 16."""
    w = gptq_weight(act_order=True)
    for version, below in ((1, 1), (2, 0)):
        plain = awq.from_gptq(*w, version=version)
        for k, n in itertools.product(range(K), range(N)):
            q = (w.qweight[k // 8, n].item() >> 4 * (k % 8)) & 15
            assert plain.q[k, n] == q
        for g, n in itertools.product(range(K // G), range(N)):
            z = (w.qzeros[g, n // 8].item() >> 4 * (n % 8)) + below & 15
            assert plain.zeros[g, n] == z


def test_versions_of_gptq() -> None:
    plain = awq.from_awq(*awq_weight())
    first, second = (awq.to_gptq(plain, version=v) for v in (1, 2))
    assert not torch.equal(first.qzeros, second.qzeros)
    for got in (awq.from_gptq(*first, version=1), awq.from_gptq(*second, version=2)):
        assert_bits(got.q, plain.q)
        assert_bits(got.zeros, plain.zeros)
    zero = awq.Int4(plain.q, plain.scales, torch.zeros_like(plain.zeros))
    assert (awq.to_gptq(zero, version=1).qzeros == -1).all()  # 15 in every nibble
    with pytest.raises(ValueError, match=r"^version must be 1 .* or 2, got 3$"):
        awq.to_gptq(plain, version=3)
    rows = awq.Int4(plain.q[:12], plain.scales, plain.zeros)
    with pytest.raises(ValueError, match=r"^q must have a multiple of 8 rows, got 12$"):
        awq.to_gptq(rows, version=2)


def test_act_order_to_awq_and_back() -> None:
    w = gptq_weight(act_order=True)
    plain = awq.from_gptq(*w, version=1)
    ordered, order = plain.in_order()
    assert order is not None
    assert_bits(ordered.dequantize(), plain.dequantize()[order])
    packed = awq.to_awq(ordered)
    assert_bits(scaled_mm.awq_dequantize(*packed), plain.dequantize()[order])
    again = awq.from_awq(*packed).out_of_order(order)
    assert_same(awq.to_gptq(again, version=1), w)
    with pytest.raises(ValueError, match=r"^weight must have its groups in order"):
        awq.to_awq(plain)


@pytest.mark.parametrize("value", [19, -1])
@pytest.mark.parametrize("name", ["q", "zeros"])
def test_values_of_more_than_4_bits_are_refused(name: str, value: int) -> None:
    weight = replace(awq.from_gptq(*gptq_weight(act_order=False), version=1), g_idx=None)
    wrong = getattr(weight, name).to(torch.int8)
    wrong[0, 0] = value
    weight = replace(weight, **{name: wrong})
    for packed in (awq.to_awq, lambda w: awq.to_gptq(w, version=2)):
        with pytest.raises(ValueError, match=rf"^{name} must be in 0\.\.15, got .*{value}"):
            packed(weight)


def test_sorted_g_idx_is_no_act_order() -> None:
    ordered, order = awq.from_gptq(*gptq_weight(), version=1).in_order()
    assert (order, ordered.g_idx) == (None, None)


def test_groups_of_unequal_size_are_refused() -> None:
    w = gptq_weight()
    assert w.g_idx is not None
    w.g_idx[0] = 1
    with pytest.raises(ValueError, match=r"^g_idx must give each of the 6 groups"):
        awq.from_gptq(*w, version=1).in_order()


def test_groups_must_divide_k() -> None:
    q, zeros = (torch.zeros(rows, 8, dtype=torch.uint8) for rows in (10, 3))
    weight = awq.Int4(q, torch.ones(3, 8), zeros)
    with pytest.raises(ValueError, match=r"^scales must have .* dividing K=10, got 3 groups$"):
        weight.dequantize()


@pytest.mark.parametrize("group", [-1, 6, 2**31 - 1])
def test_groups_that_are_not_there_are_refused(group: int) -> None:
    w = gptq_weight(act_order=True)
    assert w.g_idx is not None
    w.g_idx[5] = group
    plain = awq.from_gptq(*w, version=1)
    for act in (plain.in_order, plain.dequantize, plain.group_of_rows):
        with pytest.raises(ValueError, match=rf"^g_idx must be in 0\.\.5, got .*{group}"):
            act()


@dtypes
def test_layer(dtype: torch.dtype) -> None:
    w, bias = awq_weight(5, dtype), torch.linspace(-1, 1, N)
    layer = WeightOnlyLinear.from_awq(*w, bias=bias)
    assert layer.packed is not None
    x = torch.randn(2, 3, K, generator=torch.Generator().manual_seed(0))
    expected = scaled_mm.awq_gemm(x.to(dtype), *w, bias=bias)
    assert_bits(layer(x.to(dtype)), expected)
    assert_bits(layer(x), expected.float())


def test_the_name_of_before() -> None:
    with pytest.warns(FutureWarning, match="^AWQLinear is deprecated: use WeightOnlyLinear$"):
        layer = AWQLinear(K, N, False, group_size=G)
    filled = WeightOnlyLinear.from_awq(*awq_weight(6))
    layer.load_state_dict(filled.state_dict())
    x = torch.ones(4, K).half()
    assert_bits(layer(x), filled(x))


NAMES = ("qweight", "scales", "qzeros")


def assert_unpacked(packed: MixedWeight, operands: dict[str, Tensor], *context: object) -> None:
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
    assert_unpacked(packed, operands, name)
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


PACKING = {
    "qweight must be int32 of two dimensions, got int64": {"qweight": W["qweight"].long()},
    "qzeros must be int32 of two dimensions, got float32": {"qzeros": W["qzeros"].float()},
    "scales must be float16 or bfloat16, got float32": {"scales": W["scales"].float()},
    "scales must have N=64 columns": {"scales": W["scales"][:, :8]},
    "qzeros must have shape": {"qzeros": W["qzeros"][:1]},
}
test_packing_refuses = refuses(PACKING, MixedWeight.from_awq, **W)
NO_SCALES = {"scales must be a Tensor, got list": {"scales": []}}
test_what_is_no_tensor = refuses(NO_SCALES, MixedWeight.from_awq, error=TypeError, **W)

PACKED = MixedWeight.from_awq(**W)
FOR_A_GPU = PACKED.data[: units.units_elements(128, 64, 64, 4, INTEGER)]
PRODUCTS = {
    "packed must be of x's dtype bfloat16": {"x": X.bfloat16()},
    "x must have K=128 columns": {"x": X[:, 1:]},
    ".*must be of layout 0 or 2 on the CPU": {"qweight": replace(PACKED, data=FOR_A_GPU, layout=1)},
    "out must": {"out": PACKED.data[: 3 * 64].view(3, 64)},
}
test_products_refuse = refuses(PRODUCTS, scaled_mm.awq_gemm, x=X, qweight=PACKED)
ABSENT = {"scales and qzeros must be absent": [{"scales": W["scales"]}, {"qzeros": W["qzeros"]}]}
test_words_beside_a_packed_weight = refuses(
    ABSENT, scaled_mm.awq_gemm, error=TypeError, x=X, qweight=PACKED
)

LONG = torch.cat([PACKED.data, PACKED.data])
SIZES = ([128, 64, 48, 4, 1, 0], [-1, 64, 64, 4, 1, 0], [128, 64, 64, 4, 1, 3])
SIZES += ([128, 64, 16, 4, 1, 1], [0, 64, 0, 4, 1, 1], [2**40, 64, 2**40, 4, 1, 0])
SIZES += ([128, 64, 64, 4, 1], [128, 64, 0, 4, 1, 0])
OP = {
    "packed must be a contiguous buffer of shape": {"packed": LONG},
    "packed must be a contiguous buffer": [{"packed": LONG[::2]}, {"packed": LONG[1:]}],
    "packed must be float16 or": {"packed": LONG.view(torch.int16)},
    "sizes must be": [{"packed": PACKED.data, "sizes": sizes} for sizes in SIZES],
}
test_the_op_refuses = refuses(OP, torch.ops.scaled_mm.mixed_mm, x=X, sizes=[128, 64, 64, 4, 1, 2])
DATA = {"data must be a buffer of pack_weight": lambda: replace(PACKED, data=LONG).unpack()}
test_data_of_another_size = refuses(DATA)
