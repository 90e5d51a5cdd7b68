"""`awq_dequantize`, `awq_gemm`: products with an int4 weight in AWQ's words (docs/lowbit.md)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import accepted_settings, called
from .mixed import mixed_mm
from .mixed_weight import MixedWeight
from .shapes import awq_sizes, must_have_shape, must_share_device, out_columns, output

_awq_dequantize = torch.ops.scaled_mm.awq_dequantize.default
_awq_gemm = torch.ops.scaled_mm.awq_gemm.default
_awq_gemm_out = torch.ops.scaled_mm.awq_gemm.out


def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """The weight that AWQ words stand for, `W = (q - z) * s`, rounded once.

    Args:
        qweight: int32 [K, N/8], eight columns to a word in AWQ's order (docs/lowbit.md).
        scales: float16 or bfloat16 [K/G, N]; its number of rows, which must divide K, says what the
            group size G is.
        qzeros: int32 [K/G, N/8], the zero points, packed like qweight.

    Returns:
        W [K, N] of the scales' dtype, bit for bit `(q - z).to(dtype) * s`.

    Raises:
        ValueError: an operand breaks a rule above, or requires grad in grad mode. The message names
            argument, rule and value.
        TypeError: an operand is no tensor.

    Source: AWQ (Lin et al., 2023); the "GEMM" packing of its checkpoints.
    """
    operands = {"qweight": qweight, "scales": scales, "qzeros": qzeros}
    return called(_awq_dequantize, (qweight, scales, qzeros), operands)


def awq_gemm(
    x: Tensor,
    qweight: Tensor | MixedWeight,
    scales: Tensor | None = None,
    qzeros: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`D = f(x W + bias + residual)` with `W = awq_dequantize(qweight, scales, qzeros)`, which is
    not written to memory: on the CPU never, on a GPU not while the tokens are few.

    Products and sums are float32; the same call gives the same bits on every run (docs/lowbit.md
    has the bound on their error). On the CPU they depend on neither threads nor the rows around,
    nor on whether the weight is packed.

    Args:
        x: float16 or bfloat16 [..., K], any strides.
        qweight, scales, qzeros: as for `awq_dequantize`; the scales of x's dtype. Or, in place of
            all three, `MixedWeight.from_awq` of them, for `mixed_mm`: on a GPU faster.
        bias: x's dtype or float32, [N] or [1, N]; added in float32.
        residual, activation: as for `mixed_mm`.
        out: a tensor of D's dtype and shape to write D into, as for `scaled_mm`.

    Returns:
        D [..., N] of x's dtype, [..., N/2] with a gated activation; `out` itself, where it is
        given.

    Raises:
        ValueError: an operand breaks a rule above, or requires grad in grad mode.
        TypeError: an operand is no tensor, activation no string, or scales or qzeros stand beside a
            `MixedWeight`.
    """
    if isinstance(qweight, MixedWeight):
        if scales is not None or qzeros is not None:
            raise TypeError("scales and qzeros must be absent beside a MixedWeight, got a Tensor")
        return mixed_mm(x, qweight, bias=bias, residual=residual, activation=activation, out=out)
    settings = accepted_settings(activation)
    operands: dict[str, Any] = {"x": x, "qweight": qweight, "scales": scales, "qzeros": qzeros}
    options = {"bias": bias, "residual": residual, "out": out}
    op = _awq_gemm if out is None else _awq_gemm_out
    return called(op, tuple(operands.values()), operands, options, settings)


# --- shapes only ----------------------------------------------------------------------------------


def _awq_gemm_shape(
    x: Tensor,
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor,
    *,
    activation: str | None = None,
    out: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, qweight=qweight, **others)
    k, n = awq_sizes(qweight, scales, qzeros)
    must_have_shape("x", x, x.shape[-1] == k, f"have K={k} columns, the rows of qweight")
    n = out_columns("qweight", n, activation)
    return output(out, "x", x, [*x.shape[:-1], n], x.dtype)


for _name in ("awq_gemm", "awq_gemm.out"):
    torch.library.register_fake(f"scaled_mm::{_name}", _awq_gemm_shape)


@torch.library.register_fake("scaled_mm::awq_dequantize")
def _(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return scales.new_empty([*awq_sizes(qweight, scales, qzeros)])
