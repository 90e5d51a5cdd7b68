"""The published accuracy: the ops' own outputs judged by `reference.check`, and what the usual way,
which rounds before the bias is added, costs in the same units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from operands import ACTIVATIONS, GATED, OUT_DTYPES, Case, Matrix, Vector
from torch import Tensor

import scaled_mm
from scaled_mm import reference
from scaled_mm.reference.int8 import ROUNDINGS

DTYPE_IDS = [str(dtype)[6:] for dtype in OUT_DTYPES]
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


def unfused(operands: dict[str, Any]) -> Tensor:
    """Dequantise, cast, then add the bias in the output's dtype: three kernels and two roundings
    in 8 or 11 bits."""
    acc = scaled_mm.int8_mm(operands["a"], operands["b"])
    product = (acc.float() * operands["scale_b"] * operands["scale_a"]).to(operands["out_dtype"])
    return product + operands["bias"].to(operands["out_dtype"])


# Least error in ulp of the unfused result on these operands; figures in docs/numerics.md.
UNFUSED = {torch.bfloat16: 128, torch.float16: 1024}


@pytest.mark.parametrize("dtype", UNFUSED, ids=["bfloat16", "float16"])
def test_unfused_is_off_by_hundreds_of_ulp(dtype: torch.dtype) -> None:
    """With a bias of the size of the product, of opposite sign in some elements."""
    rng = np.random.default_rng(0)
    case = Case("unfused", 512, 512, 512, out_dtype=dtype)
    operands = case.build(rng=rng)
    operands["scale_a"] = torch.full((1,), 2.0**-10)
    size = operands["scale_b"] * 2.0**-10 * (73.6**2 * 512**0.5)
    bias = torch.from_numpy(rng.standard_normal((1, 512))).float() * size
    operands["bias"] = bias.to(dtype)
    fused = judged(scaled_mm.scaled_mm(**operands), operands)
    usual = judged(unfused(operands), operands)
    print(f"\n{dtype}: fused {fused.worst_ulp:.5g} ulp, unfused {usual.worst_ulp:.5g} ulp")
    assert fused.ok
    assert usual.worst_ulp > UNFUSED[dtype]
