"""`w4a8_mm`: products of int8 activations and a weight of 4 bits (W4A8).

A function of its own and no form of `mixed_mm`, though both take a `MixedWeight`: its caller gives
scales and zero points of x, and gets a promise of bits, where `mixed_mm` promises a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import accept, accept_out, explained, written
from .mixed import must_be_packed
from .mixed_weight import MixedWeight
from .shapes import must, must_have_dim, must_share_device, out_columns, output, shape_text

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
    if not isinstance(w, MixedWeight):
        raise TypeError(f"w must be a MixedWeight (see pack_weight), got {type(w).__name__}")
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"activation must be a string, got {type(activation).__name__}")
    if not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype, got {type(out_dtype).__name__}")
    given = {"order": w.order, "azp": azp, "bias": bias, "residual": residual, "out": out}
    options: dict[str, Any] = {name: t for name, t in given.items() if t is not None}
    operands = {"x": x, "packed": w.data, "scale_a": scale_a}
    accept(operands, options)
    if out_dtype is not torch.bfloat16:
        options["out_dtype"] = out_dtype
    if activation is not None:
        options["activation"] = activation
    try:
        if out is None:
            return _w4a8_mm(x, w.data, w.sizes, scale_a, **options)
        accept_out(out)
        _w4a8_mm_out(x, w.data, w.sizes, scale_a, **options)
        return written(out)
    except (MemoryError, RuntimeError) as error:
        raise explained(error, {**operands, **options}) from None


# --- shapes only ----------------------------------------------------------------------------------


def _w4a8_mm_shape(
    x: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    scale_a: Tensor,
    *,
    order: Tensor | None = None,
    azp: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor | None:
    must_have_dim("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, packed=packed, scale_a=scale_a, order=order, azp=azp, bias=bias)
    must_share_device("x", x, residual=residual)
    k, n = must_be_packed(packed, sizes)
    columns = x.shape[-1] == k
    must("x", columns, lambda: f"have K={k} columns, the rows of packed", lambda: shape_text(x))
    n = out_columns("packed", n, activation)
    return output(out, "x", x, [*x.shape[:-1], n], out_dtype or torch.bfloat16)


for _name in ("w4a8_mm", "w4a8_mm.out"):
    torch.library.register_fake(f"scaled_mm::{_name}", _w4a8_mm_shape)
