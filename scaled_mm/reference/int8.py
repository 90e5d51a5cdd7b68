"""The int8 products and their epilogues: R1, the bits, and R0, the exact result rounded once."""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .accuracy import AccuracyReport, judge
from .arithmetic import FORMATS, Array, Exact, Float32, Format, Magnitude, round_to
from .arrays import matrix_product, to_float64, to_numpy, to_tensor
from .epilogues import evaluate, name_epilogue
from .float_mode import ieee

# A signature is written out wherever an op has one: help(), mypy and a reader see all of it.

E4M3 = Format("float8_e4m3fn", 4, -9, 448.0)

# How many roundings to float32 of the terms' size the bounds with an activation allow for
# (docs/numerics.md, section 3).
ROUNDINGS: dict[str | None, int] = {
    "relu": 4,
    **dict.fromkeys(("silu", "gelu", "gelu_tanh"), 12),
    "reglu": 8,
    **dict.fromkeys(("swiglu", "geglu", "geglu_tanh"), 16),
}


@ieee()
def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out_scale: Tensor | None = None,
    out_azp: Tensor | None = None,
) -> Tensor:
    """R1 of `scaled_mm.scaled_mm`, the same arguments: the bits that every kernel gives.

    acc = A B                                   int32, exact
    t   = acc - azp azp_adj                     int32, wrapping (or acc - azp_with_adj; or acc)
    d   = RN32(s_a RN32(s_b RN32(t)) + bias)    one fused multiply-add
    d   = RN32(d + residual)                    with a residual
    d   = f(d)                                  with an activation f, a sequence of functions.py
    d   = RN32(f(d[:, 0::2]) d[:, 1::2])        with a gated one
    out = RN(d)                                 to out_dtype; 8 bits: `store`
    """
    operands = _operands(
        scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, residual, out_scale, out_azp
    )
    return _evaluate(Float32, a, b, operands, activation, out_dtype)


@ieee()
def scaled_mm_exact(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """R0 of `scaled_mm.scaled_mm`: RN(s_a s_b (A B - azp azp_adj) + bias + residual), or of its
    activation, or of the product of its pairs of columns.

    Nothing wraps, and the one rounding is the one to out_dtype. Functions but the maximum with 0
    are evaluated in float64.
    """
    operands = _operands(scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, residual)
    return _evaluate(Exact, a, b, operands, activation, out_dtype)


@ieee()
def int8_mm(a: Tensor, b: Tensor) -> Tensor:
    """A B as int32, exact (K <= 131071): a int8 [..., K], b int8 [K, N]."""
    return to_tensor(_product(a, b), (*a.shape[:-1], b.shape[-1]), torch.int32)


@ieee()
def azp_adj(b: Tensor) -> Tensor:
    """1B, the column sums of b [K, N]: int32 [1, N]."""
    return b.cpu().sum(0, keepdim=True, dtype=torch.int32)


@ieee()
def azp_with_adj(b: Tensor, azp: Tensor) -> Tensor:
    """z_a 1B for one zero point, int32 [1, N], wrapping."""
    return azp_adj(b) * azp.cpu().reshape(1, 1)


@ieee()
def check(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> AccuracyReport:
    """Judge `out`, whoever computed it, as the result of `scaled_mm` on these operands.

    out: [..., N], bfloat16, float16 or float32; everything else as for `scaled_mm`. The
    `AccuracyReport` counts the elements that differ from R1 in any bit and those further from the
    exact result than the published bound, says how far the worst one is and where, and how many
    elements lie outside the domain in which the bound is claimed. Print it.
    """
    if out.dtype not in FORMATS:
        known = ", ".join(to.name for to in FORMATS.values())
        raise ValueError(f"out must be one of {known}, got {str(out.dtype)[6:]}")
    operands = _operands(scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, residual)
    acc = _product(a, b)
    actual = to_float64(out).reshape(len(acc), out.shape[-1])
    roundings = ROUNDINGS.get(
        activation, 5 if residual is not None else 4 if bias is not None else 0
    )
    report = AccuracyReport(out.dtype, tuple(out.shape), name_epilogue(operands), roundings)
    rows_at_once = 1 + 2**16 // max(1, acc.shape[1])  # temporaries that stay in the cache
    with np.errstate(all="ignore"):
        for first in range(0, acc.shape[0], rows_at_once):
            rows = slice(first, first + rows_at_once)
            part = {name: x[rows] if len(x) == len(acc) else x for name, x in operands.items()}
            r1, r0, bounded = (
                evaluate(num, acc[rows], part, activation) for num in (Float32, Exact, Magnitude)
            )
            r1, r0 = Float32.value(r1), Exact.value(r0)
            report = judge(report, first, actual[rows], r1, r0, bounded)
    return report


def _evaluate(
    num: Any,
    a: Tensor,
    b: Tensor,
    operands: dict[str, Array],
    activation: str | None,
    out_dtype: torch.dtype,
) -> Tensor:
    with np.errstate(all="ignore"):
        d = num.value(evaluate(num, _product(a, b), operands, activation))
        out = store(d, out_dtype, operands.get("out_scale"), operands.get("out_azp"))
    return to_tensor(out, (*a.shape[:-1], d.shape[-1]), out_dtype)


def store(d: Array, out_dtype: torch.dtype, scale: Array | None, azp: Array | None) -> Array:
    """`d` as D holds it; d holds float32 values where D has 8 bits.

    int8            clamp(rne(RN32(d / scale)) + azp, -128, 127), from -127 on without azp; NaN is 0
    float8_e4m3fn   RN(clamp(RN32(d RN32(1 / scale)), -448, 448)); NaN stays
    else            RN(d)
    """
    if out_dtype in FORMATS:
        return round_to(d, FORMATS[out_dtype])
    assert scale is not None
    x = d.astype(np.float32)
    if out_dtype == torch.int8:
        shift = np.float32(0) if azp is None else azp.astype(np.float32)
        q = np.clip(np.rint(x / scale) + shift, -127 if azp is None else -128, 127)
        return np.where(np.isnan(q), 0, q)
    most = np.float32(E4M3.max)
    return round_to(np.clip(x * (np.float32(1) / scale), -most, most).astype(np.float64), E4M3)


def _product(a: Tensor, b: Tensor) -> Array:
    """A B in int64, by float64 BLAS (exact below 2^53), the leading dimensions of a flattened."""
    return matrix_product(a, b).astype(np.int64)


def _operands(
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    azp: Tensor | None,
    azp_adj: Tensor | None,
    azp_with_adj: Tensor | None,
    residual: Tensor | None,
    out_scale: Tensor | None = None,
    out_azp: Tensor | None = None,
) -> dict[str, Array]:
    """The operands given, as [rows, 1], [1, columns] or [rows, columns], int64 or float32."""
    by_row = {"scale_a": scale_a, "azp": azp, "out_scale": out_scale, "out_azp": out_azp}
    by_column = {"scale_b": scale_b, "bias": bias, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    shaped = [(name, x, (-1, 1)) for name, x in by_row.items()]
    shaped += [(name, x, (1, -1)) for name, x in by_column.items()]
    if residual is not None:
        rows = int(np.prod(residual.shape[:-1]))
        shaped.append(("residual", residual, (rows, residual.shape[-1])))
    return {name: to_numpy(x).reshape(shape) for name, x, shape in shaped if x is not None}
