"""The int8 products and their epilogues: R1, the bits, and R0, the exact result rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .accuracy import AccuracyReport, judge
from .arithmetic import FORMATS, Array, Exact, Float32, Format, Magnitude, round_to
from .arrays import as_rows, matrix_product, to_float64, to_numpy, to_tensor
from .epilogues import FORMS, ended, evaluate, name_epilogue
from .float_mode import ieee
from .k_scales import Groups, in_blocks, of_blocks, of_int4

# A signature is written out wherever an op has one: help(), mypy and a reader see all of it.

BY_ROW = ("scale_a", "azp", "out_scale", "out_azp")
"""Operands that have an element for each row; the others have one for each column."""
E4M3 = Format("float8_e4m3fn", 4, -9, 448.0)

# How many roundings to float32 of the terms' size the bounds with an activation allow for
# (docs/numerics.md, section 3).
ROUNDINGS: dict[str | None, int] = {
    "relu": 4,
    **dict.fromkeys(("silu", "gelu", "gelu_tanh"), 9),
    "reglu": 8,
    **dict.fromkeys(("swiglu", "geglu", "geglu_tanh"), 13),
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

    With scale_b [K/128, N/128] and scale_a [..., K/128] `Groups.evaluate` gives the first of these
    d, to which the bias is added.
    """
    sums, s_a, s_b = _sums(a, b, scale_a, scale_b)
    zero = {"azp": azp, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    ending = {"residual": residual, "out_scale": out_scale, "out_azp": out_azp}
    operands = _operands(scale_a=s_a, scale_b=s_b, bias=bias, **zero, **ending)
    return _stored(Float32, sums, operands, activation, out_dtype, a.shape)


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
    sums, s_a, s_b = _sums(a, b, scale_a, scale_b)
    zero = {"azp": azp, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    operands = _operands(scale_a=s_a, scale_b=s_b, bias=bias, **zero, residual=residual)
    return _stored(Exact, sums, operands, activation, out_dtype, a.shape)


@ieee()
def int8_mm(a: Tensor, b: Tensor) -> Tensor:
    """A B as int32, exact (K <= 131071): a int8 [..., K], b int8 [K, N]."""
    return to_tensor(matrix_product(a, b), (*a.shape[:-1], b.shape[-1]), torch.int32)


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
    sums, s_a, s_b = _sums(a, b, scale_a, scale_b)
    zero = {"azp": azp, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    operands = _operands(scale_a=s_a, scale_b=s_b, bias=bias, **zero, residual=residual)
    roundings = ROUNDINGS.get(
        activation, 5 if residual is not None else 4 if bias is not None else 0
    )
    return _check(out, sums, operands, activation, roundings)


@ieee()
def w4a8_mm(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    scale_a: Tensor,
    azp: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """R1 of `scaled_mm.w4a8_mm`, of a weight as plain tensors (`mixed.py`): its `Groups.evaluate`,
    and then the lines of `scaled_mm` from scale_a on."""
    operands = _operands(scale_a=scale_a, bias=bias, residual=residual)
    groups = of_int4(x, q, scales, zeros, azp, order)
    return _stored(Float32, groups, operands, activation, out_dtype, x.shape)


@ieee()
def w4a8_check(
    out: Tensor,
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    scale_a: Tensor,
    azp: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> AccuracyReport:
    """`check` of an output of `w4a8_mm`."""
    operands = _operands(scale_a=scale_a, bias=bias, residual=residual)
    return _check(out, of_int4(x, q, scales, zeros, azp, order), operands, activation, 0)


def _check(
    out: Tensor,
    sums: Array | Groups,
    operands: dict[str, Array],
    activation: str | None,
    roundings: int,
) -> AccuracyReport:
    m = len(sums.a) if isinstance(sums, Groups) else len(sums)
    if isinstance(sums, Groups):
        form = FORMS[activation][0]
        of_sum = sums.roundings()  # times the slopes, and as much for what is added to them
        roundings = of_sum + (5 * of_sum // 4 if form == "gated" else of_sum // 4 if form else 0)
        roundings += ROUNDINGS.get(activation, 0)
    actual = to_float64(out).reshape(m, out.shape[-1])
    report = AccuracyReport(out.dtype, tuple(out.shape), name_epilogue(operands), roundings)
    rows_at_once = 1 + 2**16 // max(1, out.shape[-1])  # temporaries that stay in the cache
    with np.errstate(all="ignore"):
        for first in range(0, m, rows_at_once):
            rows = slice(first, first + rows_at_once)
            part = {name: x[rows] if len(x) == m else x for name, x in operands.items()}
            acc = sums.rows(rows) if isinstance(sums, Groups) else sums[rows]
            r1, r0, bounded = (
                _ended(num, acc, part, activation) for num in (Float32, Exact, Magnitude)
            )
            r1, r0 = Float32.value(r1), Exact.value(r0)
            report = judge(report, first, actual[rows], r1, r0, bounded)
    return report


def _stored(
    num: Any,
    sums: Array | Groups,
    operands: dict[str, Array],
    activation: str | None,
    out_dtype: torch.dtype,
    shape: tuple[int, ...],
) -> Tensor:
    with np.errstate(all="ignore"):
        d = num.value(_ended(num, sums, operands, activation))
        out = store(d, out_dtype, operands.get("out_scale"), operands.get("out_azp"))
    return to_tensor(out, (*shape[:-1], d.shape[-1]), out_dtype)


def _sums(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor
) -> tuple[Array | Groups, Tensor | None, Tensor | None]:
    """A B, exact, and the scales behind it; with scales in blocks its groups, and none."""
    if in_blocks(b, scale_b):
        return of_blocks(a, b, scale_a, scale_b), None, None
    return matrix_product(a, b).astype(np.int64), scale_a, scale_b


def _ended(
    num: Any, sums: Array | Groups, operands: dict[str, Array], activation: str | None
) -> Any:
    if isinstance(sums, Groups):
        return ended(num, sums.evaluate(num), operands, activation)
    return evaluate(num, sums, operands, activation)


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


def _operands(**given: Tensor | None) -> dict[str, Array]:
    """The operands given, as [rows, 1], [1, columns] or [rows, columns], int64 or float32."""
    made = {name: to_numpy(x) for name, x in given.items() if x is not None}
    for name, x in made.items():
        if name == "residual":
            made[name] = as_rows(x)
        else:
            made[name] = x.reshape((-1, 1) if name in BY_ROW else (1, -1))
    return made
