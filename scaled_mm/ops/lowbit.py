"""`awq_dequantize`, `awq_gemm`: products with an int4 weight in AWQ's words (docs/lowbit.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import accept, out_of_memory

_awq_dequantize = torch.ops.scaled_mm.awq_dequantize.default
_awq_gemm = torch.ops.scaled_mm.awq_gemm.default


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
    accept(qweight=qweight, scales=scales, qzeros=qzeros)
    try:
        return _awq_dequantize(qweight, scales, qzeros)
    except MemoryError as error:
        raise out_of_memory(error) from None


def awq_gemm(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """`D = x W + bias` with `W = awq_dequantize(qweight, scales, qzeros)`, which is not written
    to memory: on the CPU never, on a GPU not while the tokens are few.

    Products and sums are float32; the same call gives the same bits on every run (docs/lowbit.md
    has the bound on their error). On the CPU they depend on neither threads nor the rows around.

    Args:
        x: float16 or bfloat16 [..., K], any strides.
        qweight, scales, qzeros: as for `awq_dequantize`; the scales of x's dtype.
        bias: x's dtype or float32, [N] or [1, N]; added in float32.

    Returns:
        D [..., N] of x's dtype.

    Raises:
        ValueError: an operand breaks a rule above, or requires grad in grad mode.
        TypeError: an operand is no tensor.
    """
    accept(x=x, qweight=qweight, scales=scales, qzeros=qzeros)
    if bias is not None:
        accept(bias=bias)
    try:
        return _awq_gemm(x, qweight, scales, qzeros, bias=bias)
    except MemoryError as error:
        raise out_of_memory(error) from None


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::awq_dequantize")
def _(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    return scales.new_empty([qweight.shape[0], 8 * qweight.shape[1]])


@torch.library.register_fake("scaled_mm::awq_gemm")
def _(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    return x.new_empty([*x.shape[:-1], 8 * qweight.shape[1]])


@torch.library.register_fake("scaled_mm::_widen")  # csrc/widen_problem.h: what it is for
def _(words: Tensor, *, bits: int, signed: bool, dtype: torch.dtype) -> Tensor:
    return words.new_empty([*words.shape, 32 // bits], dtype=dtype)
