"""int4: dequantisation bit for bit, products within their bound (packings: test_awq_packing.py)."""

import itertools
from typing import Any

import pytest
import torch
from awq_cases import AWQ_CASES, DTYPES, FINITE, AwqCase
from helpers import assert_bits, each_isa, refuses
from torch import Tensor

import scaled_mm
from scaled_mm import awq, reference

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


# --- awq_dequantize -------------------------------------------------------------------------------


def in_torch(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return awq.Int4(awq.unpack(qweight), scales, awq.unpack(qzeros)).dequantize()


@pytest.mark.parametrize("name", AWQ_CASES)
def test_dequantize(name: str) -> None:
    operands = AWQ_CASES[name].weight()
    expected = reference.awq_dequantize(**operands)
    assert_bits(in_torch(**operands), expected, name)
    for isa in each_isa(operands.values()):
        assert_bits(scaled_mm.awq_dequantize(**operands), expected, isa, name)


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
def test_every_pair_with_every_scale(dtype: torch.dtype) -> None:
    """Every 16-bit scale there is: subnormal, infinite and NaN ones too."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    operands = all_pairs(dtype, every)
    expected = in_torch(*operands)
    for isa in each_isa():
        assert_bits(scaled_mm.awq_dequantize(*operands), expected, isa)


# --- awq_gemm -------------------------------------------------------------------------------------


def assert_bounded(got: Tensor, exact: Tensor, bound: Tensor, *context: object) -> None:
    error = (got.double() - exact).abs()
    limit = torch.finfo(got.dtype).max
    overflow = got.isinf() & (exact.abs() + bound >= limit) & (got.double().sign() == exact.sign())
    bad = ~((error <= bound) | overflow | (got.isnan() & exact.isnan()))
    assert not bad.any(), (int(bad.sum()), got[bad][:3], exact[bad][:3], bound[bad][:3], context)


@pytest.mark.parametrize("name", [n for n, c in AWQ_CASES.items() if c.scales in FINITE])
def test_product_within_the_bound(name: str) -> None:
    operands = AWQ_CASES[name].product()
    expected = reference.awq_gemm(**operands)
    exact, bound = reference.awq_gemm_bound(**operands)
    for isa in each_isa(operands.values()):
        got = scaled_mm.awq_gemm(**operands)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        assert_bounded(got, exact, bound, isa, name)


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

GOOD = AwqCase("good", 96, 64, 32, rows=(5,)).product()
WORDS = {name: GOOD[name] for name in ("qweight", "scales", "qzeros")}
Z = torch.int32
REFUSED = {
    "qweight must .* int64": {"qweight": GOOD["qweight"].long()},
    r"qweight must .* \(8,\)": {"qweight": GOOD["qweight"][0]},
    "scales must .* float32": {"scales": GOOD["scales"].float()},
    r"scales must .* \(64,\)": {"scales": GOOD["scales"][0]},
    "scales must .* N=60": {"scales": torch.ones(3, 60).half()},
    r"scales must .* \(3, 72\)": {"scales": torch.ones(3, 72).half()},
    "scales must .*, got 5 groups": {"scales": torch.ones(5, 64).half()},
    "scales must .*, got 0 groups": {"scales": torch.ones(0, 64).half()},
    "scales must .*, got 97 groups": {"scales": torch.ones(97, 64).half()},
    "qzeros must .* int8": {"qzeros": GOOD["qzeros"].to(torch.int8)},
    r"qzeros must .* \(4, 8\)": {"qzeros": torch.zeros(4, 8, dtype=Z)},
    r"qzeros must .* \(3, 7\)": {"qzeros": torch.zeros(3, 7, dtype=Z)},
    r"qzeros must .* \(3, 8, 1\)": {"qzeros": torch.zeros(3, 8, 1, dtype=Z)},
    "scales must .*, got .*requires": {"scales": torch.ones(3, 64).half().requires_grad_()},
}
X_REFUSED = {
    "x must .* float32": {"x": torch.ones(5, 96)},
    r"x must .* \(\)": {"x": torch.ones((), dtype=torch.float16)},
    r"x must .* \(5, 95\)": {"x": torch.ones(5, 95).half()},
    "scales must .*, got .*float16": {"x": torch.ones(5, 96).bfloat16()},
    "bias must .*, got .*bfloat16": {"bias": torch.ones(64).bfloat16()},
    r"bias must .* \(63,\)": {"bias": torch.ones(63)},
    r"residual must .* \(5, 63\)": {"residual": torch.ones(5, 63).half()},
    "residual must .*, got .*float32": {"residual": torch.ones(5, 64)},
    "activation must .*, got .*tanh": {"activation": "tanh"},
    "bias must .*, got .*requires": {"bias": torch.ones(64, requires_grad=True)},
}
test_a_product_refuses = refuses(REFUSED | X_REFUSED, scaled_mm.awq_gemm, **GOOD)
test_dequantizing_refuses = refuses(REFUSED, scaled_mm.awq_dequantize, **WORDS)


def test_a_group_size_that_does_not_divide_names_both() -> None:
    with pytest.raises(ValueError, match=r"^scales must .* K=96, .*, got 5 groups, G=96/5"):
        scaled_mm.awq_gemm(**{**GOOD, "scales": torch.ones(5, 64).half()})


NO_TENSORS = {f"{name} must be a Tensor, got list": {name: [1]} for name in GOOD}
test_not_a_tensor = refuses(NO_TENSORS, scaled_mm.awq_gemm, error=TypeError, end="$", **GOOD)


CALLS: dict[str, dict[str, Any]] = {
    "2d": GOOD,
    "bias": {**GOOD, "bias": torch.ones(64)},
    "residual": {**GOOD, "residual": torch.ones(5, 64).half()},
    "gated": {**GOOD, "activation": "swiglu"},
    "1d": {**GOOD, "x": GOOD["x"][0]},
    "3d": {**GOOD, "x": GOOD["x"].expand(2, 5, 96)},
    "empty": {**GOOD, "x": GOOD["x"][:0]},
    "bfloat16": LARGE.product(),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operands = dict(CALLS[name])
    named = ("bias", "residual", "activation")
    ending = {name: operands.pop(name) for name in named if name in operands}
    torch.library.opcheck(torch.ops.scaled_mm.awq_gemm.default, tuple(operands.values()), ending)
    weight = tuple(operands[name] for name in WORDS)
    torch.library.opcheck(torch.ops.scaled_mm.awq_dequantize.default, weight)


def test_compiled() -> None:
    def both(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor]:
        plain = scaled_mm.awq_dequantize(qweight, scales, qzeros)
        return scaled_mm.awq_gemm(x, qweight, scales, qzeros), plain

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 3):
        operands = {**GOOD, "x": GOOD["x"][:rows]}
        for got, expected in zip(compiled(**operands), both(**operands), strict=True):
            assert_bits(got, expected)
