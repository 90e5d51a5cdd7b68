"""The definition of every op: plain numpy, exact, slow.

Each op comes as R1, the float32 sequence of the bit contract, which the kernels reproduce bit for
bit, and, where that is not already exact, as R0 (`*_exact`), the infinitely precise result
rounded once, against which R1's accuracy is stated. `check` judges an output, anyone's, by both.

Tensors of any device go in (they are moved to the CPU), CPU tensors come out. Arguments are not
checked: an operand that the ops refuse has no meaning here.
"""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FLT_MIN, FORMATS, Array, Exact, Float32, Magnitude, round_to
from .check import Report, judge
from .reference_awq import awq_dequantize, awq_gemm, awq_gemm_bound

__all__ = [
    "Report",
    "awq_dequantize",
    "awq_gemm",
    "awq_gemm_bound",
    "azp_adj",
    "azp_with_adj",
    "check",
    "int8_mm",
    "quantize_int8",
    "quantize_int8_exact",
    "quantize_weight_int8",
    "scaled_mm",
    "scaled_mm_exact",
]

NO_BIAS = np.full((1, 1), -0.0, np.float32)  # -0.0 is what fma adds without changing a bit

# --------------------------------------------------------------------------------------------------
# The epilogues. `num` is the arithmetic (Float32 for R1, Exact for R0), `acc` = A B is int64
# [M, N], scale_a and azp are [M, 1] or [1, 1], everything else is [1, N] or [1, 1]. A parameter
# without default is an operand the epilogue needs, one with a default may be absent; the epilogue
# whose parameters match the operands given is the one that runs.

EPILOGUES: dict[Callable[..., Any], dict[str, bool]] = {}
"""Every epilogue -> its operands -> whether it needs them."""


def _epilogue(function: Callable[..., Any]) -> Callable[..., Any]:
    _, _, *operands = inspect.signature(function).parameters.values()
    EPILOGUES[function] = {p.name: p.default is p.empty for p in operands}
    return function


@_epilogue
def scaled_epilogue(num: Any, acc: Array, scale_a: Array, scale_b: Array) -> Any:
    """ScaledEpilogue: D = s_a (s_b acc)"""
    return num.mul(scale_a, num.mul(scale_b, num.integer(acc)))


@_epilogue
def scaled_epilogue_bias(num: Any, acc: Array, scale_a: Array, scale_b: Array, bias: Array) -> Any:
    """ScaledEpilogueBias: D = s_a (s_b acc) + bias"""
    return num.fma(scale_a, num.mul(scale_b, num.integer(acc)), bias)


@_epilogue
def scaled_epilogue_azp(
    num: Any, acc: Array, scale_a: Array, scale_b: Array, azp_with_adj: Array, bias: Array = NO_BIAS
) -> Any:
    """ScaledEpilogueAzp: D = s_a (s_b (acc - azp_with_adj)) + bias, where azp_with_adj = z_a 1B"""
    t = acc - azp_with_adj
    return num.fma(scale_a, num.mul(scale_b, num.integer(t)), bias)


@_epilogue
def scaled_epilogue_azp_per_token(
    num: Any,
    acc: Array,
    scale_a: Array,
    scale_b: Array,
    azp: Array,
    azp_adj: Array,
    bias: Array = NO_BIAS,
) -> Any:
    """ScaledEpilogueAzpPerToken: D = s_a (s_b (acc - azp azp_adj)) + bias, where azp_adj = 1B"""
    t = acc - azp * azp_adj
    return num.fma(scale_a, num.mul(scale_b, num.integer(t)), bias)


def choose_epilogue(given: set[str]) -> Callable[..., Any]:
    """The epilogue that needs no operand but those given and takes them all."""
    for epilogue, operands in EPILOGUES.items():
        if {name for name, needed in operands.items() if needed} <= given <= set(operands):
            return epilogue
    raise ValueError(f"no epilogue takes the operands {', '.join(sorted(given))}")


# --------------------------------------------------------------------------------------------------
# W8A8


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
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """R1 of `scaled_mm.scaled_mm`, the same arguments: the bits that every kernel gives.

    acc = A B                                   int32, exact
    t   = acc - azp azp_adj                     int32, wrapping (or acc - azp_with_adj; or acc)
    d   = RN32(s_a RN32(s_b RN32(t)) + bias)    one fused multiply-add
    out = RN(d)                                 to out_dtype
    """
    operands = _operands(scale_a, scale_b, bias, azp, azp_adj, azp_with_adj)
    return _evaluate(Float32, a, b, operands, out_dtype)


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
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """R0 of `scaled_mm.scaled_mm`: RN(s_a s_b (A B - azp azp_adj) + bias).

    Nothing wraps, and the one rounding is the one to out_dtype.
    """
    operands = _operands(scale_a, scale_b, bias, azp, azp_adj, azp_with_adj)
    return _evaluate(Exact, a, b, operands, out_dtype)


def int8_mm(a: Tensor, b: Tensor) -> Tensor:
    """A B as int32, exact (K <= 131071): a int8 [..., K], b int8 [K, N]."""
    return _tensor(_product(a, b), (*a.shape[:-1], b.shape[-1]), torch.int32)


def azp_adj(b: Tensor) -> Tensor:
    """1B, the column sums of b [K, N]: int32 [1, N]."""
    return b.cpu().sum(0, keepdim=True, dtype=torch.int32)


def azp_with_adj(b: Tensor, azp: Tensor) -> Tensor:
    """z_a 1B for one zero point, int32 [1, N], wrapping."""
    return azp_adj(b) * azp.cpu().reshape(1, 1)


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
) -> Report:
    """Judge `out`, whoever computed it, as the result of `scaled_mm` on these operands.

    out: [..., N], bfloat16, float16 or float32; everything else as for `scaled_mm`. The
    `Report` counts the elements that differ from R1 in any bit and those further from the exact
    result than the published bound, says how far the worst one is and where, and how many elements
    lie outside the domain in which the bound is claimed. Print it.
    """
    operands = _operands(scale_a, scale_b, bias, azp, azp_adj, azp_with_adj)
    epilogue = choose_epilogue(set(operands))
    acc = _product(a, b)
    actual = out.detach().cpu().reshape(acc.shape).double().numpy()
    report = Report(out.dtype, tuple(out.shape), epilogue.__name__, "bias" in operands)
    rows_at_once = 1 + 2**16 // max(1, acc.shape[1])  # temporaries that stay in the cache
    with np.errstate(all="ignore"):
        for first in range(0, acc.shape[0], rows_at_once):
            rows = slice(first, first + rows_at_once)
            part = {name: x[rows] if len(x) == len(acc) else x for name, x in operands.items()}
            r1, r0 = (num.value(epilogue(num, acc[rows], **part)) for num in (Float32, Exact))
            bounded = epilogue(Magnitude, acc[rows], **part)
            report = judge(report, first, actual[rows], r1, r0, bounded)
    return report


def _evaluate(
    num: Any, a: Tensor, b: Tensor, operands: dict[str, Array], out_dtype: torch.dtype
) -> Tensor:
    with np.errstate(all="ignore"):
        d = num.value(choose_epilogue(set(operands))(num, _product(a, b), **operands))
        out = round_to(d, FORMATS[out_dtype])
    return _tensor(out, (*a.shape[:-1], b.shape[-1]), out_dtype)


def _product(a: Tensor, b: Tensor) -> Array:
    """A B in int64, by float64 BLAS (exact below 2^53), the leading dimensions of a flattened."""
    a64, b64 = a.detach().cpu().double().numpy(), b.detach().cpu().double().numpy()
    rows = int(np.prod(a.shape[:-1]))
    return (a64.reshape(rows, a.shape[-1]) @ b64).astype(np.int64)


def _operands(
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    azp: Tensor | None,
    azp_adj: Tensor | None,
    azp_with_adj: Tensor | None,
) -> dict[str, Array]:
    """The operands given, as [rows, 1] or [1, columns], int64 or float32."""
    by_row = {"scale_a": scale_a, "azp": azp}
    by_column = {"scale_b": scale_b, "bias": bias, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    shaped = [(name, x, (-1, 1)) for name, x in by_row.items()]
    shaped += [(name, x, (1, -1)) for name, x in by_column.items()]
    return {name: _numpy(x).reshape(shape) for name, x, shape in shaped if x is not None}


def _numpy(x: Tensor) -> Array:
    return x.detach().cpu().to(torch.float32 if x.is_floating_point() else torch.int64).numpy()


def _tensor(x: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x)).reshape(shape).to(dtype)


# --------------------------------------------------------------------------------------------------
# Quantisers


def quantize_int8(
    x: Tensor,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """R1 of `scaled_mm.quantize_int8`: float32, one rounding per operation.

        symmetric    s = max(absmax / 127, FLT_MIN)      q = clamp(rne(x / s), -127, 127)
        asymmetric   lo = min(0, min x), hi = max(0, max x)
                     s = max((hi - lo) / 255, FLT_MIN)   q = clamp(rne(x / s) + azp, -128, 127)
                     azp = clamp(rne(-128 - lo / s), -128, 127)

    over each row (per_token) or the whole tensor; a row that holds NaN or infinity has s = NaN, q =
    azp = 0. A given scale (and azp) is used as it is and returned; then NaN gives q = 0 and
    infinity clamps.
    """
    return _quantize(x, scale, azp, symmetric, per_token, np.float32)


def quantize_int8_exact(
    x: Tensor,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`quantize_int8` with its scale and azp, but the exact quotient x / s, rounded once.

    float64 is exact enough: a quotient of two 24-bit significands that is no half-integer below 2^8
    is at least 2^-25 away from every one, which no rounding to 53 bits bridges.
    """
    return _quantize(x, scale, azp, symmetric, per_token, np.float64)


def quantize_weight_int8(w: Tensor, *, per_channel: bool = True) -> tuple[Tensor, Tensor]:
    """R1 of `scaled_mm.quantize_weight_int8`: w [N, K] -> q [N, K], scale [1, N] (or [1, 1]).

    `quantize_int8`, symmetric, over each output channel or the whole weight.
    """
    q, scale, _ = quantize_int8(w, per_token=per_channel)
    return q, scale.reshape(1, -1)


def _quantize(
    x: Tensor,
    scale: Tensor | None,
    azp: Tensor | None,
    symmetric: bool,
    per_token: bool,
    quotient: type,
) -> tuple[Tensor, Tensor, Tensor | None]:
    rows = int(np.prod(x.shape[:-1]))
    x32 = x.detach().cpu().float().numpy().reshape(rows, x.shape[-1])
    with np.errstate(all="ignore"):
        if scale is None:
            s, z = _range_of(x32 if per_token else x32.reshape(1, -1), symmetric)
            shape = (*x.shape[:-1], 1) if per_token else (1,)
            scale = _tensor(s, shape, torch.float32)
            azp = None if symmetric else _tensor(z, shape, torch.int32)
        else:
            s = _numpy(scale).reshape(-1, 1)
            z = (
                np.zeros((1, 1), np.float32)
                if azp is None
                else _numpy(azp).reshape(-1, 1).astype(np.float32)
            )
        lowest = -127 if symmetric else -128
        q = np.clip(np.rint(quotient(x32) / quotient(s)) + z, lowest, 127)
        q = np.where(np.isnan(q), 0, q)
    return _tensor(q, tuple(x.shape), torch.int8), scale, azp


def _range_of(x: Array, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero point [rows, 1], both float32, of the rows of float32 x."""
    low = np.min(x, axis=1, keepdims=True, initial=0)
    high = np.max(x, axis=1, keepdims=True, initial=0)
    half, full, top = np.float32(0.5), np.float32(255), np.float32(127.5)
    if symmetric:
        s = np.maximum(high, -low) / np.float32(127)
    else:
        spread = high - low
        s = np.where(np.isinf(spread), (high * half - low * half) / top, spread / full)
    finite = np.isfinite(low) & np.isfinite(high)  # a NaN in the row is in both
    s = np.where(finite, np.maximum(s, FLT_MIN), np.float32(np.nan))
    z = np.clip(np.rint(np.float32(-128) - low / s), -128, 127)
    return s, np.where(finite & (not symmetric), z, np.float32(0))
