"""The reference against definitions that share nothing with it: Python integers and fractions."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from cases import PLAIN_CASES, random_case
from helpers import extra
from operands import OUT_DTYPES
from quantize_cases import QUANTIZE_CASES, random_quantize_case

from scaled_mm import reference
from scaled_mm.reference.arithmetic import FLOAT32, FORMATS, Format, fma32, round_to, sum_to_odd

DTYPE_IDS = [str(dtype)[6:] for dtype in OUT_DTYPES]


def nearest(x: Fraction, to: Format, zero: float = 0.0) -> float:
    """x rounded to nearest even by integer arithmetic; `zero` is what an exact zero reads as."""
    if x == 0:
        return zero
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()  # floor(log2) or + 1
    exponent -= abs(x) < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent + 1 - to.bits, to.min_exponent)
    y = round(abs(x) / quantum) * quantum  # Fraction rounds half to even
    return math.copysign(float(y) if y <= Fraction(to.max) else math.inf, x)


def same(x: Any, y: Any) -> bool:
    """The same bits, or both NaN."""
    return (x == y and math.copysign(1, x) == math.copysign(1, y)) or (x != x and y != y)


def float32s(rng: np.random.Generator, n: int) -> np.ndarray:
    """Any float32 bit pattern, and many of moderate size or with few bits set."""
    any_bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    moderate = (rng.standard_normal(n) * 2.0 ** rng.integers(-20, 20, n)).astype(np.float32)
    few = (rng.integers(-64, 65, n) * 2.0 ** rng.integers(-149, 120, n)).astype(np.float32)
    kind = rng.integers(0, 3, n)
    return np.where(kind == 0, any_bits, np.where(kind == 1, moderate, few))


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=DTYPE_IDS)
def test_round_to(dtype: torch.dtype) -> None:
    to, rng = FORMATS[dtype], np.random.default_rng(1)
    least = 2.0**to.min_exponent
    x = np.concatenate(
        [
            rng.standard_normal(2000) * 2.0 ** rng.integers(-160, 135, 2000),
            rng.integers(0, 2 ** (to.bits + 2), 2000) * least / 4,  # ties of the subnormals
            rng.integers(0, 2 ** (to.bits + 2), 2000) * 2.0**-to.bits,
            to.max * (1 + np.arange(-4, 5) * 2.0 ** -(to.bits + 2)),
            [least, least / 2, np.nextafter(least / 2, 1), 1e-300, 1e300, 0.0],
        ]
    )
    for value in (x, -x):
        expected = [nearest(Fraction(v), to, math.copysign(0.0, v)) for v in value]
        with np.errstate(all="ignore"):
            assert all(map(same, round_to(value, to), expected))
    assert np.isnan(round_to(np.array([np.nan]), to))[0]
    assert round_to(np.array([-np.inf]), to)[0] == -np.inf
    assert to.max == torch.finfo(dtype).max
    assert least == torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def test_sum_to_odd() -> None:
    """Any number of overlapping terms, cancelling ones among them: exact, or the odd neighbour."""
    rng = np.random.default_rng(2)
    for terms in (1, 2, 3, 5, 9):
        parts = list(rng.standard_normal((terms, 400)) * 2.0 ** rng.integers(-70, 70, (terms, 400)))
        parts += [-p * (rng.random(400) < 0.5) for p in parts[1:3]]
        parts.append(np.ldexp(rng.choice([-1.0, 0, 1], 400), rng.integers(-300, -100, 400)))
        for i, got in enumerate(sum_to_odd(parts)):
            exact = sum(Fraction(p[i]) for p in parts)
            if Fraction(got) != exact:
                assert np.float64(got).view(np.int64) & 1
                assert abs(Fraction(got) - exact) < Fraction(float(np.spacing(abs(got))))


def test_fma32() -> None:
    rng = np.random.default_rng(3)
    x, y, z = (float32s(rng, 20_000) for _ in range(3))
    with np.errstate(all="ignore"):
        product = x * y
        cancel = -product * (1 + rng.integers(-2, 3, len(x)) * np.float32(2.0**-23))
        halfway = product * np.float32(2.0**24) * (1 + rng.integers(0, 2, len(x)))
        kind = rng.integers(0, 3, len(x))
        z = np.where(kind == 0, z, np.where(kind == 1, cancel, halfway)).astype(np.float32)
        got = fma32(x, y, z)
        ieee = np.float64(x) * np.float64(y) + np.float64(z)
    for i in np.flatnonzero(np.isfinite(ieee)):
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
        assert same(got[i], nearest(exact, FLOAT32, ieee[i])), (x[i], y[i], z[i])
    special = ~np.isfinite(ieee)
    assert special.any()
    assert np.array_equal(got[special], ieee[special].astype(np.float32), equal_nan=True)


def wrap32(t: int) -> int:
    return (t + 2**31) % 2**32 - 2**31


Exact = tuple[float, Fraction | None]
"""A value of plain IEEE float64 arithmetic, and the exact one where that is finite."""


def before_rounding(case: dict[str, Any], m: int, n: int) -> tuple[float, Exact]:
    """One element of X: R1 of it in float32, and R0."""
    case = {name: x for name, x in case.items() if torch.is_tensor(x)}
    width = case["b"].shape[1]
    residual = case.pop("residual", None)
    extra = None if residual is None else residual.reshape(-1, width)[m, n].item()
    a = case.pop("a").flatten(0, -2)[m].tolist() if case["a"].dim() > 1 else case.pop("a").tolist()
    b = case.pop("b")[:, n].tolist()
    acc = sum(x * y for x, y in zip(a, b, strict=True))
    at = {
        name: x.flatten()[min(m if name in ("scale_a", "azp") else n, x.numel() - 1)].item()
        for name, x in case.items()
    }
    t = acc - at.get("azp", 0) * at.get("azp_adj", 0) - at.get("azp_with_adj", 0)
    s_a, s_b, bias = at["scale_a"], at["scale_b"], at.get("bias", -0.0)

    def fma(x: float, y: float, z: float) -> float:
        ieee = x * y + z  # the sign of an exact zero, NaN, infinity
        finite = math.isfinite(x) and math.isfinite(y) and math.isfinite(z)
        return nearest(Fraction(x) * Fraction(y) + Fraction(z), FLOAT32, ieee) if finite else ieee

    f = fma(s_b, nearest(Fraction(wrap32(t)), FLOAT32), -0.0)
    d = fma(s_a, f, bias)
    ieee = s_a * s_b * t + bias
    if extra is not None:
        d = fma(d, 1.0, extra)
        ieee += extra
    if not math.isfinite(ieee):
        return d, (ieee, None)
    exact = Fraction(s_a) * Fraction(s_b) * t + Fraction(bias)
    return d, (ieee, exact + Fraction(extra or 0.0))


def product32(x: float, y: float) -> float:
    """RN32(x y) of float32."""
    finite = math.isfinite(x) and math.isfinite(y)
    return nearest(Fraction(x) * Fraction(y), FLOAT32, x * y) if finite else x * y


def by_hand(case: dict[str, Any], m: int, n: int) -> tuple[float, float]:
    """R1 and R0 of one element of D, by Python integers, fractions and `nearest`."""
    to = FORMATS[case["out_dtype"]]
    if "activation" not in case:
        d, (ieee, exact) = before_rounding(case, m, n)
    else:
        gate, (gate_ieee, gate_exact) = before_rounding(case, m, 2 * n)
        value, (value_ieee, value_exact) = before_rounding(case, m, 2 * n + 1)
        d = product32(0.0 if gate <= 0 else gate, value)
        ieee = (0.0 if gate_ieee <= 0 else gate_ieee) * value_ieee
        exact = None
        if gate_exact is not None and value_exact is not None:
            exact = max(gate_exact, Fraction(0)) * value_exact
    r1 = nearest(Fraction(d), to, d) if math.isfinite(d) else d
    return r1, ieee if exact is None else nearest(exact, to, ieee)


def assert_by_hand(case: dict[str, Any], rng: np.random.Generator, elements: int) -> None:
    r1 = reference.scaled_mm(**case)
    r0 = reference.scaled_mm_exact(**case)
    width = case["b"].shape[1] // (2 if "activation" in case else 1)
    assert r1.shape == r0.shape == (*case["a"].shape[:-1], width)
    assert r1.dtype == r0.dtype == case["out_dtype"]
    r1, r0 = r1.double().flatten(), r0.double().flatten()
    for i in rng.integers(0, len(r1), min(elements, len(r1))).tolist():
        expected = by_hand(case, *divmod(i, width))
        assert same(r1[i].item(), expected[0])
        assert same(r0[i].item(), expected[1])


@pytest.mark.parametrize("name", [name for name, case in PLAIN_CASES.items() if case.k < 5000])
def test_scaled_mm_by_hand(name: str) -> None:
    assert_by_hand(PLAIN_CASES[name].build(), np.random.default_rng(4), 4)


def test_scaled_mm_by_hand_random() -> None:
    rng = np.random.default_rng(5)
    for _ in range(1000):
        assert_by_hand(random_case(rng, endings=False).build(rng=rng), rng, 8)


@pytest.mark.slow
def test_scaled_mm_by_hand_random_many() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50_000):
        assert_by_hand(random_case(rng, endings=False).build(rng=rng), rng, 8)


def test_int8_mm_and_column_sums() -> None:
    dgemm = extra("scipy.linalg.blas").dgemm
    rng = np.random.default_rng(7)
    for _ in range(200):
        case = random_case(rng, endings=False).build(rng=rng)
        a, b = case["a"], case["b"]
        product = reference.int8_mm(a, b)
        assert product.dtype == torch.int32
        assert torch.equal(product, (a.long().unsqueeze(-1) * b.long()).sum(-2).int())
        if 0 not in (a.numel(), b.numel()):
            again = dgemm(1.0, a.reshape(-1, a.shape[-1]).double().numpy(), b.double().numpy())
            assert np.array_equal(product.reshape(again.shape).numpy(), again)
        assert torch.equal(reference.azp_adj(b), b.long().sum(0, keepdim=True).int())
        azp = torch.tensor([int(rng.integers(-(2**31), 2**31))], dtype=torch.int32)
        wrapped = [wrap32(int(azp) * s) for s in b.long().sum(0).tolist()]
        assert reference.azp_with_adj(b, azp).tolist() == [wrapped]


def quantized_in_torch(
    x: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    azp: torch.Tensor | None = None,
    symmetric: bool,
    per_token: bool,
    rotate: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """NUMERICS' quantiser section in torch float32."""
    x = x.float()
    if rotate:
        bits = rotate.bit_length() - 1
        t = x.reshape(-1, *[2] * bits)
        for bit in range(bits, 0, -1):  # the last dimension is the lowest bit of a column's number
            a, b = t.unbind(bit)
            t = torch.stack((a + b, a - b), bit)
        x = t.reshape(x.shape) * torch.tensor(rotate**-0.5, dtype=torch.float32)
    rows = x if per_token else x.reshape(1, -1)
    if scale is not None:
        lead = (*x.shape[:-1], 1)
        s = scale if scale.numel() == 1 else scale.reshape(lead)
        z = 0 if azp is None else azp if azp.numel() == 1 else azp.reshape(lead)
    else:
        zero = torch.zeros((*rows.shape[:-1], 1))
        low = torch.cat([rows, zero], -1).amin(-1, keepdim=True)
        high = torch.cat([rows, zero], -1).amax(-1, keepdim=True)
        bad = ~torch.isfinite(low + high / 4).logical_and(torch.isfinite(high))
        if symmetric:
            s = torch.maximum(-low, high) / 127
        else:
            spread = high - low
            s = torch.where(spread.isinf(), (high / 2 - low / 2) / 127.5, spread / 255)
        s = s.clamp(min=torch.finfo(torch.float32).smallest_normal).masked_fill(bad, math.nan)
        z = torch.zeros_like(s)
        if not symmetric:
            z = (-128 - low / s).round().clamp(-128, 127).nan_to_num(0)
        scale = s.reshape((*x.shape[:-1], 1) if per_token else (1,))
        azp = None if symmetric else z.reshape(scale.shape).int()
        if not per_token:
            s, z = s.reshape(1), z.reshape(1)
    q = ((x / s).round() + z).clamp(-127 if symmetric else -128, 127)
    return q.nan_to_num(0).to(torch.int8), scale, azp


def assert_quantized(case: dict[str, Any]) -> None:
    got, expected = reference.quantize_int8(**case), quantized_in_torch(**case)
    for x, y in zip(got, expected, strict=True):
        if y is None:
            assert x is None
        else:
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    exact, scale, azp = reference.quantize_int8_exact(**case)
    assert (exact.int() - got[0].int()).abs().max() <= 1 if exact.numel() else True
    assert torch.equal(scale.nan_to_num(7), got[1].nan_to_num(7))
    assert azp is None or torch.equal(azp, got[2])


@pytest.mark.parametrize("name", QUANTIZE_CASES)
def test_quantize(name: str) -> None:
    assert_quantized(QUANTIZE_CASES[name].build())


def test_quantize_random() -> None:
    rng = np.random.default_rng(8)
    for _ in range(2000):
        assert_quantized(random_quantize_case(rng).build(rng=rng))


def test_quantize_exact_by_hand() -> None:
    """The exact quotient, where rounding it to float32 first would land on a half-integer too."""
    rng = np.random.default_rng(9)
    s = np.float32(2.0 ** rng.uniform(-20, 20, 4000))
    near = s * (rng.integers(-127, 127, 4000) + 0.5)
    x = np.nextafter(near.astype(np.float32), np.float32(rng.choice([-1, 1], 4000) * np.inf))
    x = np.where(rng.random(4000) < 0.5, x, near.astype(np.float32))
    columns = {"x": torch.from_numpy(x)[:, None], "scale": torch.from_numpy(s)[:, None]}
    exact = reference.quantize_int8_exact(**columns)[0].flatten().tolist()
    for q, v, w in zip(exact, x, s, strict=True):
        assert q == max(-127, min(127, round(Fraction(float(v)) / Fraction(float(w)))))
    assert exact != reference.quantize_int8(**columns)[0].flatten().tolist()


def test_quantize_weight() -> None:
    w = torch.randn(24, 40, generator=torch.Generator().manual_seed(10)).bfloat16()
    for per_channel, shape in ((True, (1, 24)), (False, (1, 1))):
        q, scale = reference.quantize_weight_int8(w, per_channel=per_channel)
        assert (q.shape, q.dtype, scale.shape) == (w.shape, torch.int8, shape)
        assert torch.equal((w.float() / scale.t()).round().to(torch.int8), q)
        assert q.abs().amax() == 127
