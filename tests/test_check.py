"""`reference.check`: what it counts, what it lets pass, and that the published bounds hold of the
ops' own outputs; what the usual way, which rounds before the bias is added, costs."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import PLAIN_CASES, random_case
from operands import ACTIVATIONS, GATED, OUT_DTYPES, Case, Matrix, Vector
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.reference.accuracy import AccuracyReport
from scaled_mm.reference.arithmetic import FORMATS, ulp
from scaled_mm.reference.int8 import ROUNDINGS

DTYPE_IDS = [str(dtype)[6:] for dtype in OUT_DTYPES]


def check(operands: dict[str, Any], out: torch.Tensor | None = None) -> AccuracyReport:
    operands = dict(operands)
    out = reference.scaled_mm(**operands) if out is None else out
    operands.pop("out_dtype")
    return reference.check(out, **operands)


def plain(**changes: Any) -> dict[str, Any]:
    return Case("check", 9, 21, 33, **changes).build()


def test_reference_passes() -> None:
    """R1 is within its bound everywhere, and R0 within half an ulp of itself."""
    rng = np.random.default_rng(1)
    named = (case.build() for case in PLAIN_CASES.values())
    for operands in itertools.chain(
        named, (random_case(rng, endings=False).build(rng=rng) for _ in range(1000))
    ):
        report = check(operands)
        assert report.ok, report
        exact = check(operands, reference.scaled_mm_exact(**operands))
        assert exact.beyond == 0
        assert exact.worst_ulp <= 0.5


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=DTYPE_IDS)
def test_every_wrong_bit_counts(dtype: torch.dtype) -> None:
    operands = plain(out_dtype=dtype, lead=(3, 3))
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    for bit, index in ((0, (0, 0, 0)), (3, (2, 2, 20)), (9, (1, 0, 7))):
        out = reference.scaled_mm(**operands)
        out.view(bits)[index] ^= 1 << bit
        report = check(operands, out)
        assert (report.different, report.first_different) == (1, (index,))
        assert not report.ok
        assert f"first at                {index}" in str(report)
        if bit:  # 8 ulp and more; the last bit may stay within the bound
            assert (report.worst_index, report.beyond) == (index, 1)


def test_rows_are_judged_in_blocks() -> None:
    """Indices survive the cut: an output large enough to be judged in several pieces."""
    operands = Case("blocks", 70, 3000, 3).build()
    out = reference.scaled_mm(**operands)
    wrong = ((0, 0), (21, 2999), (43, 1), (69, 2999))
    for index in wrong:
        out[index] = math.nan
    report = check(operands, out)
    assert (report.different, report.beyond, report.first_different) == (4, 4, wrong)
    assert (report.worst_index, report.worst_ulp) == ((0, 0), math.inf)


def test_zeros_and_nans() -> None:
    """-0 is not +0; a NaN is any NaN; a NaN is not a number, an infinity not a finite value."""
    zero = plain(scale_a=Vector((0.0,)), scale_b=Vector((1.0,)))
    out = reference.scaled_mm(**zero)
    assert check(zero, -out).different == out.numel()
    assert check(zero, -out).accurate
    nan = plain(bias=Vector((math.nan,)))
    payload = reference.scaled_mm(**nan)
    payload.view(torch.int16)[0, 0] = 0x7FC1
    assert check(nan, payload).ok
    for value in (0.0, math.inf, -math.inf):
        wrong = check(nan, torch.full_like(payload, value))
        assert (wrong.different, wrong.beyond) == (out.numel(), out.numel())


def test_overflow() -> None:
    """An infinity is right from half an ulp below the next power of two on, and wrong before."""
    scales = (65519.99, 65520.0, 65504.0, 70000.0, 1e9)
    case = Case(
        "overflow", 5, 1, 1, a="one", b="one", scale_a=Vector(scales), scale_b=Vector((1.0,))
    )
    operands = {**case.build(), "out_dtype": torch.float16}
    assert check(operands).ok
    inf = check(operands, torch.full((5, 1), math.inf, dtype=torch.float16))
    assert (inf.different, inf.beyond) == (2, 1)  # 65519.99 is 0.50025 ulp away, and allowed 0.5004
    largest = check(operands, torch.full((5, 1), 65504.0, dtype=torch.float16))
    assert (largest.different, largest.beyond) == (3, 2)


def test_outside_the_exact_domain() -> None:
    """t beyond int32 and products that under- or overflow float32 are counted, not judged."""
    wraps = plain(azp=Vector((2**31 - 1,)), azp_adj=Vector((2**20,)))
    report = check(wraps)
    assert report.ok
    assert report.outside == report.elements
    assert not check(wraps, reference.scaled_mm_exact(**wraps)).ok
    tiny = plain(scale_a=Vector((1e20,)), scale_b=Vector((1e-44,)))
    assert check(tiny).outside == check(tiny).elements
    assert check(plain()).outside == 0


def test_someone_elses_epilogue() -> None:
    """Rounding before the bias, as unfused code does: most elements differ, many by far."""
    operands = plain(bias=Vector("cancel"))
    a, b, bias = operands["a"], operands["b"], operands["bias"]
    dequantised = (a.int() @ b.int()).float() * operands["scale_a"] * operands["scale_b"]
    report = check(operands, dequantised.bfloat16() + bias)
    assert not report.ok
    assert not report.accurate
    assert report.worst_of_bound > 10
    assert str(report).startswith("NOT OK")


def test_empty() -> None:
    for name in ("empty-m-none-False", "empty-n-none-False"):
        report = check(PLAIN_CASES[name].build())
        assert report.ok
        assert report.elements == 0
        assert report.worst_index is None


def test_ulp() -> None:
    for dtype, to in FORMATS.items():
        x = torch.tensor([1.0, 1.5, 3.0, torch.finfo(dtype).smallest_normal], dtype=dtype)
        expected = [torch.finfo(dtype).eps * e for e in (1, 1, 2)] + [2.0**to.min_exponent]
        assert ulp(x.double().numpy(), to).tolist() == expected


EPILOGUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": Vector("signed")},
    "cancelling bias": {"bias": Vector("cancel", dtype=torch.float32)},
    "azp_with_adj": {"azp_with_adj": Vector("sums"), "bias": Vector("signed")},
    "azp": {"azp": Vector("int8"), "azp_adj": Vector("sums")},
    "azp and bias": {"azp": Vector("int8"), "azp_adj": Vector("sums"), "bias": Vector("signed")},
    "residual": {"bias": Vector("signed"), "residual": Matrix()},
    "cancelling residual": {
        "bias": Vector("signed"),
        "residual": Matrix("cancel", dtype=torch.float32),
    },
    "pairs": {"bias": Vector("signed", dtype=torch.float32), "activation": "reglu"},
    **{name: {"bias": Vector("signed"), "activation": name} for name in ACTIVATIONS},
    "cancelling silu": {"bias": Vector("cancel", dtype=torch.float32), "activation": "silu"},
    "cancelling geglu": {"bias": Vector("cancel", dtype=torch.float32), "activation": "geglu"},
    "cancelling pairs": {"bias": Vector("cancel", dtype=torch.float32), "activation": "reglu"},
}


def judged(out: Tensor, operands: dict[str, Any]) -> reference.AccuracyReport:
    return reference.check(out, **{k: x for k, x in operands.items() if k != "out_dtype"})


@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_within_the_published_bound(isa: str, epilogue: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(len(epilogue))
    for k in (1, 64, 1024, 5000):
        case = Case("in-domain", 48, 160, k, out_dtype=dtype, **EPILOGUES[epilogue])
        operands = case.build(rng=rng)
        report = judged(scaled_mm.scaled_mm(**operands), operands)
        assert report.ok, report
        assert report.outside == 0
        assert report.elements == 48 * (80 if case.activation in GATED else 160)
        sums = {"residual": 5, "bias": 4}
        rounded = next((n for x, n in sums.items() if x in operands), 0)
        assert report.roundings == ROUNDINGS.get(case.activation, rounded)
