"""`scaled_epilogue`: the epilogue by itself, for int32 sums that several processes added up.

`epilogue_in_torch` is the same of torch's operations, in several passes over the matrix: experts
have a row of scale_b for each row of sums, which the kernel does not take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import explained

_scaled_epilogue = torch.ops.scaled_mm._scaled_epilogue.default

_ELEMENTS_AT_ONCE = 1 << 22
"""Of the matrix, in `epilogue_in_torch`: its temporaries take some 50 bytes for each."""


def scaled_epilogue(
    acc: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """What `scaled_mm.scaled_mm` makes of its sums, to the bit:

        scaled_mm(a, b, ...) = scaled_epilogue(int8_mm(a, b), ...)

    Args:
        acc: int32 [..., N], the sums of the whole product; any strides.
        scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, out_dtype: as for `scaled_mm`.

    Returns:
        D [..., N] of out_dtype.

    Raises:
        ValueError: an operand breaks a rule.
        torch.OutOfMemoryError: there is no memory for D.
    """
    operands = {"bias": bias, "azp": azp, "azp_adj": azp_adj, "azp_with_adj": azp_with_adj}
    try:
        return _scaled_epilogue(acc.contiguous(), scale_a, scale_b, **operands, out_dtype=out_dtype)
    except MemoryError as error:
        raise explained(error, {}) from None


def epilogue_in_torch(
    acc: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None,
    azp: Tensor | None,
    azp_adj: Tensor | None,
    azp_with_adj: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """`scaled_epilogue` by torch's elementwise operations, each of which rounds once.

    Of scale_b, bias and azp_adj there may also be a row for each of acc's.

    t = acc - azp azp_adj (or acc - azp_with_adj; or acc)    int32, wrapping
    d = RN32(scale_a RN32(scale_b RN32(t)) + bias)           the last one fused
    """
    sums = acc.reshape(-1, acc.shape[-1])
    out = torch.empty_like(sums, dtype=out_dtype, memory_format=torch.contiguous_format)
    step = max(1, _ELEMENTS_AT_ONCE // max(1, sums.shape[1]))
    for first in range(0, len(sums), step):
        rows = slice(first, first + step)
        t = sums[rows]
        if azp_with_adj is not None:
            t = t - azp_with_adj.reshape(1, -1)
        elif azp is not None and azp_adj is not None:
            t = t - _rows(azp, rows) * _columns(azp_adj, sums, rows)
        f = _columns(scale_b, sums, rows) * t.float()
        addend = f.new_full((1, 1), -0.0) if bias is None else _columns(bias, sums, rows)
        out[rows] = _fma(_rows(scale_a, rows), f, addend).to(out_dtype)
    return out.view(acc.shape)


def _rows(x: Tensor, rows: slice) -> Tensor:
    """Those rows of an operand that has one element for each row, or one for all."""
    return x.reshape(1, 1) if x.numel() == 1 else x.reshape(-1, 1)[rows]


def _columns(x: Tensor, sums: Tensor, rows: slice) -> Tensor:
    """Of an operand with an element for each column, or one for each of the sums: those rows'."""
    return x[rows] if x.shape == sums.shape else x.reshape(1, -1)


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """RN32(x y + z) of float32: the product is exact in float64, and the sum is rounded to odd
    there, so that the second rounding is right (docs/numerics.md, section 5)."""
    product, addend = x.double() * y.double(), z.double()
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)  # of the sum, exactly; NaN where infinite
    bits = total.view(torch.int64)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    to_odd = bits + step * ((error.abs() > 0) & (bits & 1 == 0))
    return to_odd.view(torch.float64).float()


@torch.library.register_fake("scaled_mm::_scaled_epilogue")
def _(
    acc: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    out_dtype: torch.dtype,
    **others: object,
) -> Tensor:
    return acc.new_empty(acc.shape, dtype=out_dtype)
