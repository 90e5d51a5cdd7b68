"""int4: packings there and back, dequantisation bit for bit, products within their bound."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from awq_cases import AWQ_CASES, DTYPES, FINITE, AwqCase
from helpers import assert_bits, bytes_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import scaled_mm
from scaled_mm import awq, reference
from scaled_mm.awq_linear import AWQLinear

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
ORDERS = {"interleaved": awq.INTERLEAVED, "sequential": awq.SEQUENTIAL}
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def words(*shape: int, seed: int = 0) -> Tensor:
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)
    return torch.from_numpy(bits.view(np.int32))


# --- words ----------------------------------------------------------------------------------------

CORNERS = [0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xF0000000, 0xFFFFFFFF, 0x0F0F0F0F, 0x75316420]


def test_the_packing_of_awq() -> None:
    assert awq.pack(torch.arange(8)).item() == 0x75316420
    assert awq.pack(torch.arange(8), awq.SEQUENTIAL).item() == 0x76543210
    assert [awq.INTERLEAVED[column] for column in reference_columns()] == list(range(8))


def reference_columns() -> tuple[int, ...]:
    from scaled_mm.reference_awq import COLUMNS

    return COLUMNS


@pytest.mark.parametrize("order", ORDERS)
def test_every_value_in_every_lane(order: str) -> None:
    nibble_of = ORDERS[order]
    for lane, value, others in itertools.product(range(8), range(16), (0, 15, 9)):
        q = torch.full((8,), others)
        q[lane] = value
        word = awq.pack(q, nibble_of)
        expected = sum(int(q[j]) << 4 * nibble_of[j] for j in range(8))
        assert word.item() % 2**32 == expected
        assert awq.unpack(word, nibble_of).tolist() == q.tolist()


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


# --- checkpoints ----------------------------------------------------------------------------------

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


@pytest.mark.parametrize("version", [1, 2])
def test_awq_to_gptq_to_awq(version: int) -> None:
    w = awq_weight(3)
    gptq = awq.to_gptq(awq.from_awq(*w), version=version)
    assert_same(awq.to_awq(awq.from_gptq(*gptq, version=version)), w)


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


def test_sorted_g_idx_is_no_act_order() -> None:
    ordered, order = awq.from_gptq(*gptq_weight(), version=1).in_order()
    assert (order, ordered.g_idx) == (None, None)


def test_groups_of_unequal_size_are_refused() -> None:
    w = gptq_weight()
    assert w.g_idx is not None
    w.g_idx[0] = 1
    with pytest.raises(ValueError, match=r"^g_idx must give each of the 6 groups"):
        awq.from_gptq(*w, version=1).in_order()


# --- awq_dequantize -------------------------------------------------------------------------------


def in_torch(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return awq.Int4(awq.unpack(qweight), scales, awq.unpack(qzeros)).dequantize()


@pytest.mark.parametrize("name", AWQ_CASES)
def test_dequantize(isa: str, name: str) -> None:
    operands = AWQ_CASES[name].weight()
    before = bytes_of(operands.values())
    got = scaled_mm.awq_dequantize(**operands)
    assert_bits(got, reference.awq_dequantize(**operands), name)
    assert_bits(got, in_torch(**operands), name)
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(operands.values()), before, strict=True))


def all_pairs(dtype: torch.dtype, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row 16 z + q has that q in all lanes and that z in its group of 16 rows; a word for each
    eight of the scales."""
    q = torch.arange(16).repeat(16)[:, None].expand(256, len(scales))
    z = torch.arange(16)[:, None].expand(16, len(scales))
    return awq.pack(q), scales.to(dtype).expand(16, -1), awq.pack(z)


@dtypes
def test_every_pair_in_every_lane(isa: str, dtype: torch.dtype) -> None:
    for lane, background in itertools.product(range(8), (0, 15)):
        q = torch.full((256, 8), background)
        z = torch.full((16, 8), 15 - background)
        q[:, lane], z[:, lane] = torch.arange(16).repeat(16), torch.arange(16)
        s = torch.linspace(0.3, 2, 128).reshape(16, 8).to(dtype)
        w = scaled_mm.awq_dequantize(awq.pack(q), s, awq.pack(z))
        d = (q.reshape(16, 16, 8) - z[:, None]).to(dtype)
        assert_bits(w, (d * s[:, None]).reshape(256, 8), lane)


@dtypes
def test_every_pair_with_every_scale(isa: str, dtype: torch.dtype) -> None:
    """Every 16-bit scale there is: subnormal, infinite and NaN ones too."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    operands = all_pairs(dtype, every)
    assert_bits(scaled_mm.awq_dequantize(*operands), in_torch(*operands))


# --- awq_gemm -------------------------------------------------------------------------------------


def assert_within(got: Tensor, operands: dict[str, Any], *context: object) -> None:
    exact, bound = reference.awq_gemm_bound(**operands)
    error = (got.double() - exact).abs()
    limit = torch.finfo(got.dtype).max
    overflow = got.isinf() & (exact.abs() + bound >= limit) & (got.double().sign() == exact.sign())
    bad = ~((error <= bound) | overflow | (got.isnan() & exact.isnan()))
    assert not bad.any(), (int(bad.sum()), got[bad][:3], exact[bad][:3], bound[bad][:3], context)


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product_within_the_bound(isa: str, name: str) -> None:
    operands = AWQ_CASES[name].product()
    before = bytes_of(operands.values())
    got = scaled_mm.awq_gemm(**operands)
    expected = reference.awq_gemm(**operands)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert_within(got, operands, name)
    assert all(torch.equal(x, y) for x, y in zip(bytes_of(operands.values()), before, strict=True))


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 256])
def test_identity_gives_the_weight(isa: str, dtype: torch.dtype, rows: int) -> None:
    """x = I in slices of so many rows: every kernel multiplies by exactly the dequantised weight,
    for every (q, z) and every finite scale."""
    finite = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = finite[finite.isfinite()]
    if rows < 256:
        finite = finite[torch.randperm(len(finite), generator=torch.Generator().manual_seed(0))]
        finite = finite[: 8 * 130]
    operands = all_pairs(dtype, finite)
    expected = scaled_mm.awq_dequantize(*operands)
    columns = expected.isfinite().all(0)
    eye = torch.eye(256, dtype=dtype)
    got = torch.cat([scaled_mm.awq_gemm(x, *operands) for x in eye.split(rows)])
    assert torch.equal(got[:, columns], expected[:, columns])  # but for the sign of a zero


LARGE = AwqCase("large", 640, 392, 64, torch.bfloat16, "signed", (70,), torch.float32)


def test_bits_depend_on_neither_threads_nor_other_rows(isa: str, threads: None) -> None:
    for dtype in DTYPES:
        operands = AwqCase("large", 640, 392, 64, dtype, "signed", (300,)).product()
        whole = scaled_mm.awq_gemm(**operands)
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            assert_bits(scaled_mm.awq_gemm(**operands), whole, count)
        x = operands.pop("x")
        for i, j in ((0, 1), (5, 7), (9, 12), (20, 24), (30, 35), (100, 170)):
            assert_bits(scaled_mm.awq_gemm(x[i:j], **operands), whole[i:j], i, j)


def test_special_values_reach_the_output(isa: str) -> None:
    operands = LARGE.product()
    operands["scales"][3, 17] = torch.nan
    operands["scales"][1, 200] = torch.inf
    for rows in (1, 3, 70):
        got = scaled_mm.awq_gemm(**{**operands, "x": operands["x"][:rows]})
        assert got[:, 17].isnan().all()
        assert not got[:, 200].isfinite().any()
        rest = [n for n in range(392) if n not in (17, 200)]
        assert got[:, rest].isfinite().all()


def test_flush_denormal_changes_nothing(isa: str) -> None:
    case = AWQ_CASES["scales-subnormal-bfloat16"]
    operands = case.weight()
    operands["scales"] *= 2.0**-110  # subnormal in bfloat16 and in float32
    expected = scaled_mm.awq_dequantize(**operands)
    assert_bits(expected, reference.awq_dequantize(**operands))
    torch.set_flush_denormal(True)
    try:
        assert_bits(scaled_mm.awq_dequantize(**operands), expected)
    finally:
        torch.set_flush_denormal(False)


# --- refusals -------------------------------------------------------------------------------------

GOOD = AwqCase("good", 96, 64, 32, rows=(5,)).product()
Z = torch.int32
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "qweight-int64": ({"qweight": GOOD["qweight"].long()}, "qweight", "int64"),
    "qweight-1d": ({"qweight": GOOD["qweight"][0]}, "qweight", "(8,)"),
    "scales-float32": ({"scales": GOOD["scales"].float()}, "scales", "float32"),
    "scales-1d": ({"scales": GOOD["scales"][0]}, "scales", "(64,)"),
    "scales-n": ({"scales": torch.ones(3, 60).half()}, "scales", "N=60"),
    "scales-other-n": ({"scales": torch.ones(3, 72).half()}, "scales", "(3, 72)"),
    "group": ({"scales": torch.ones(5, 64).half()}, "scales", "5 groups"),
    "no-group": ({"scales": torch.ones(0, 64).half()}, "scales", "0 groups"),
    "groups-above-k": ({"scales": torch.ones(97, 64).half()}, "scales", "97 groups"),
    "qzeros-int8": ({"qzeros": GOOD["qzeros"].to(torch.int8)}, "qzeros", "int8"),
    "qzeros-rows": ({"qzeros": torch.zeros(4, 8, dtype=Z)}, "qzeros", "(4, 8)"),
    "qzeros-columns": ({"qzeros": torch.zeros(3, 7, dtype=Z)}, "qzeros", "(3, 7)"),
    "qzeros-3d": ({"qzeros": torch.zeros(3, 8, 1, dtype=Z)}, "qzeros", "(3, 8, 1)"),
    "scales-grad": ({"scales": torch.ones(3, 64).half().requires_grad_()}, "scales", "requires"),
    "qzeros-meta": ({"qzeros": GOOD["qzeros"].to("meta")}, "", ""),
}
X_REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "x-float32": ({"x": torch.ones(5, 96)}, "x", "float32"),
    "x-0d": ({"x": torch.ones((), dtype=torch.float16)}, "x", "()"),
    "x-columns": ({"x": torch.ones(5, 95).half()}, "x", "(5, 95)"),
    "other-dtype": ({"x": torch.ones(5, 96).bfloat16()}, "scales", "float16"),
    "bias-other": ({"bias": torch.ones(64).bfloat16()}, "bias", "bfloat16"),
    "bias-short": ({"bias": torch.ones(63)}, "bias", "(63,)"),
    "bias-grad": ({"bias": torch.ones(64, requires_grad=True)}, "bias", "requires"),
}
del REFUSED["qzeros-meta"]


def weight_only(operands: dict[str, Any]) -> dict[str, Any]:
    return {name: operands[name] for name in ("qweight", "scales", "qzeros")}


@pytest.mark.parametrize("name", [*REFUSED, *X_REFUSED])
def test_refused(name: str) -> None:
    change, argument, value = (REFUSED | X_REFUSED)[name]
    operands = {**GOOD, **change}
    message = rf"^{argument} must [^\n]*, got [^\n]*{value.replace('(', '[(]').replace(')', '[)]')}"
    with pytest.raises(ValueError, match=message):
        scaled_mm.awq_gemm(**operands)
    if name in REFUSED:
        with pytest.raises(ValueError, match=message):
            scaled_mm.awq_dequantize(**weight_only(operands))


def test_a_group_size_that_does_not_divide_names_both() -> None:
    with pytest.raises(ValueError, match=r"^scales must .* K=96, .*, got 5 groups, G=96/5"):
        scaled_mm.awq_gemm(**{**GOOD, "scales": torch.ones(5, 64).half()})


@pytest.mark.parametrize("name", GOOD)
def test_not_a_tensor(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be a Tensor, got list$"):
        scaled_mm.awq_gemm(**{**GOOD, name: [1]})


# --- as ops of torch ------------------------------------------------------------------------------

CALLS: dict[str, dict[str, Any]] = {
    "2d": GOOD,
    "bias": {**GOOD, "bias": torch.ones(64)},
    "1d": {**GOOD, "x": GOOD["x"][0]},
    "3d": {**GOOD, "x": GOOD["x"].expand(2, 5, 96)},
    "empty": {**GOOD, "x": GOOD["x"][:0]},
    "bfloat16": LARGE.product(),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operands = dict(CALLS[name])
    bias = {"bias": operands.pop("bias")} if "bias" in operands else {}
    torch.library.opcheck(torch.ops.scaled_mm.awq_gemm.default, tuple(operands.values()), bias)
    weight = tuple(weight_only(operands).values())
    torch.library.opcheck(torch.ops.scaled_mm.awq_dequantize.default, weight)


@pytest.mark.parametrize("name", CALLS)
def test_fake_metadata_is_real(name: str) -> None:
    operands = CALLS[name]
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(x) for name, x in operands.items()}
        pairs = [
            (scaled_mm.awq_gemm(**fakes), scaled_mm.awq_gemm),
            (scaled_mm.awq_dequantize(**weight_only(fakes)), scaled_mm.awq_dequantize),
        ]
    for (fake, op), given in zip(pairs, (operands, weight_only(operands)), strict=True):
        real = op(**given)
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_compiled() -> None:
    def both(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor]:
        plain = scaled_mm.awq_dequantize(qweight, scales, qzeros)
        return scaled_mm.awq_gemm(x, qweight, scales, qzeros), plain

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 3):
        operands = {**GOOD, "x": GOOD["x"][:rows]}
        for got, expected in zip(compiled(**operands), both(**operands), strict=True):
            assert_bits(got, expected)


# --- AWQLinear ------------------------------------------------------------------------------------


@dtypes
def test_linear(dtype: torch.dtype) -> None:
    w = awq_weight(5, dtype)
    bias = torch.linspace(-1, 1, N)
    layer = AWQLinear.from_int4(awq.from_awq(*w), bias)
    assert_same((layer.qweight, layer.scales, layer.qzeros), w)
    x = torch.randn(2, 3, K, generator=torch.Generator().manual_seed(0))
    expected = scaled_mm.awq_gemm(x.to(dtype), *w, bias=bias)
    assert_bits(layer(x.to(dtype)), expected)
    assert_bits(layer(x), expected.float())


def test_linear_loads_what_a_checkpoint_holds() -> None:
    w = awq_weight(6)
    layer = AWQLinear(K, N, bias=False, group_size=G)
    layer.load_state_dict(w._asdict())
    x = torch.ones(4, K).half()
    assert_bits(layer(x), scaled_mm.awq_gemm(x, *w))


def test_linear_of_act_order() -> None:
    w = gptq_weight(act_order=True)
    layer = AWQLinear.from_gptq(*w, version=1)
    x = torch.eye(K).half()
    assert torch.equal(layer(x), awq.from_gptq(*w, version=1).dequantize())
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    again = AWQLinear(K, N, bias=False, group_size=G)
    again.load_state_dict(torch.load(file))
    assert_bits(again(x), layer(x))


def test_linear_keeps_sixteen_bits() -> None:
    layer = AWQLinear.from_int4(awq.from_awq(*awq_weight()), torch.ones(N))
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    for moved in (layer.float(), layer.double(), layer.to("cpu")):
        assert_same(tuple(moved.state_dict().values()), tuple(before.values()))
    layer.bfloat16()
    assert (layer.scales.dtype, layer.qweight.dtype) == (torch.bfloat16, torch.int32)
    assert layer(torch.ones(1, K).bfloat16()).dtype == torch.bfloat16


def test_linear_refuses() -> None:
    with pytest.raises(ValueError, match=r"^group_size must divide in_features=96 .* got 36$"):
        AWQLinear(K, N, group_size=36)
    with pytest.raises(ValueError, match=r"^out_features must be a multiple of 8, got 20$"):
        AWQLinear(K, 20, group_size=G)
    assert AWQLinear(K, N, group_size=-1).group_size == K
