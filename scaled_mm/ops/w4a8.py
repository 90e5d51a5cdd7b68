"""`w4a8_mm`: products of int8 activations and a weight of 4 bits (W4A8).

A function of its own and no form of `mixed_mm`, though both take a `MixedWeight`: its caller gives
scales and zero points of x, and gets a promise of bits, where `mixed_mm` promises a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import accepted_settings, called
from .mixed import must_be_mixed, must_be_packed
from .mixed_weight import MixedWeight
from .shapes import must_have_shape, must_share_device, out_columns, output

_w4a8_mm = torch.ops.scaled_mm.w4a8_mm.default
_w4a8_mm_out = torch.ops.scaled_mm.w4a8_mm.out


def w4a8_mm(
    x: Tensor,
    w: MixedWeight,
    scale_a: Tensor,
    *,
    azp: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
) -> Tensor:
    """`D = f(scale_a * sum over groups of s_g (x_g q_g - azp * 1 q_g) + bias + residual)`: int8
    activations by a weight of 4 bits in groups, which is not written to memory as bytes.

    q is the weight's integers less their zero points, s its scales. The sums of a group are exact
    and the rest is float32 in an order of its own (docs/numerics.md, section 8), so the bits of D
    depend on neither tiles, threads nor instruction sets. With one group along K they are those of
    `scaled_mm` by q in int8 with s as its scale_b.

    Args:
        x: int8 [..., K], as `quantize_int8` makes it; any strides.
        w: a weight of 4 bits from `pack_weight` or a constructor of `MixedWeight`, in groups of a
            multiple of 32 rows, or one of all rows; its zero points are integers, or there are
            none. It is `mixed_mm`'s.
        scale_a: float32, one element, or one per token in shape [...] or [..., 1].
        azp: int32, the zero points of x, shaped like scale_a. The weight's column sums are made on
            the way.
        bias: out_dtype or float32, [N] or [1, N].
        residual: out_dtype or float32, of D's shape; any strides. Not with an activation.
        activation: what f is, as for `scaled_mm`: None, "relu", "silu", "gelu", "gelu_tanh", or a
            gated linear unit, "reglu", "swiglu", "geglu" or "geglu_tanh".
        out_dtype: bfloat16, float16 or float32.
        out: a tensor of D's dtype and shape to write D into, as for `scaled_mm`.

    Returns:
        D [..., N] of out_dtype; [..., N/2] with a gated activation; `out` itself, where it is
        given.

    Raises:
        ValueError: an operand breaks a rule above, K > 131071, or an operand requires grad in grad
            mode or has a tangent. The message names argument, rule and value.
        TypeError: an operand is no tensor, w no `MixedWeight`, activation no string, out_dtype no
            dtype.

    Source: QServe (Lin et al., 2024) for the setting; the order of the sums is this library's.
    """
    must_be_mixed(w)
    settings = accepted_settings(activation, out_dtype)
    operands = {"x": x, "packed": w.data, "scale_a": scale_a}
    options = {"order": w.order, "azp": azp, "bias": bias, "residual": residual, "out": out}
    op = _w4a8_mm if out is None else _w4a8_mm_out
    return called(op, (x, w.data, w.sizes, scale_a), operands, options, settings)


# --- shapes only ----------------------------------------------------------------------------------


def _w4a8_mm_shape(
    x: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    scale_a: Tensor,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, packed=packed, scale_a=scale_a, **others)
    k, n = must_be_packed(packed, sizes)
    must_have_shape("x", x, x.shape[-1] == k, f"have K={k} columns, the rows of packed")
    n = out_columns("packed", n, activation)
    return output(out, "x", x, [*x.shape[:-1], n], out_dtype or torch.bfloat16)


for _name in ("w4a8_mm", "w4a8_mm.out"):
    torch.library.register_fake(f"scaled_mm::{_name}", _w4a8_mm_shape)
