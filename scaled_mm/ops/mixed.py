"""`mixed_mm`, `grouped_mixed_mm`: products of 16-bit activations and a weight of 4 or 8 bits
(docs/lowbit.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import accepted_settings, called
from .._torch import short
from .mixed_weight import LAYOUT_SIZES, MixedWeight
from .packed_weight import is_read_early
from .shapes import must_have_shape, must_share_device, out_columns, output, sizes_text

_mixed_mm = torch.ops.scaled_mm.mixed_mm.default
_mixed_mm_out = torch.ops.scaled_mm.mixed_mm.out
mixed_linear = short(_mixed_mm)
"""The op for a layer's eager calls."""
_grouped_mixed_mm = torch.ops.scaled_mm.grouped_mixed_mm.default


def mixed_mm(
    x: Tensor,
    w: MixedWeight,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    pre_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`D = f(x' W + bias + residual)` with a weight of 4 or 8 bits (W4A16, W8A16), which is not
    written to memory as floats: on the CPU never, on a GPU not while the tokens are few.

    `x' = x * pre_scale`, rounded to x's dtype. Products and sums are float32; the same call gives
    the same bits on every run (docs/numerics.md has the bound on their error). On the CPU they
    depend on neither threads nor the rows around.

    Args:
        x: float16 or bfloat16 [..., K], any strides.
        w: a weight from `pack_weight` or a constructor of `MixedWeight`, its scales of x's dtype.
        bias: x's dtype or float32, [N] or [1, N]; added in float32.
        residual: x's dtype, of D's shape; any strides. Added in float32. Not with an activation.
        activation: what f is, as for `scaled_mm`: None (nothing), "relu", "gelu" (by erf),
            "gelu_tanh" or "silu"; or a gated linear unit, "reglu", "swiglu", "geglu" or
            "geglu_tanh", which makes one column of two (`interleave_gate_up`). It is computed in
            float32, before D is rounded.
        pre_scale: x's dtype or float32, [K] or [1, K]: a factor for each input channel, as AWQ's
            `pre_quant_scale`; multiplied in float32.
        out: a tensor of D's dtype and shape to write D into, as for `scaled_mm`.

    Returns:
        D [..., N] of x's dtype; [..., N/2] with a gated activation; `out` itself, where it is
        given.

    Raises:
        ValueError: an operand breaks a rule above, requires grad in grad mode, or has a tangent of
            forward mode. The message names argument, rule and value.
        TypeError: an operand is no tensor, w no `MixedWeight`, activation no string.

    Source: TensorRT-LLM's and FasterTransformer's weight-only ("fpA intB") products; AWQ (Lin et
    al., 2023) for pre_scale.
    """
    settings = _settings(w, activation)
    ending = {"bias": bias, "residual": residual, "out": out}
    options = {"order": w.order, "pre_scale": pre_scale, **ending}
    op = _mixed_mm if out is None else _mixed_mm_out
    return called(op, (x, w.data, w.sizes), {"x": x, "packed": w.data}, options, settings)


def grouped_mixed_mm(
    x: Tensor,
    w: MixedWeight,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """`mixed_mm` of several experts, each by its own rows.

        D[i] = mixed_mm(x[rows[i]], w[e], ...),   offsets[e - 1] <= i < offsets[e]

    with the bits of `mixed_mm`. Rows from offsets[-1] on are 0.

    Args:
        x: float16 or bfloat16 [T, K], any strides.
        w: a stack of E weights, `pack_weight` of q [E, K, N] or `MixedWeight.stack`.
        offsets: int32 [E], where the rows of each expert end, as for `grouped_mm`.
        bias: [E, N], of a dtype that `mixed_mm` takes.
        residual: [T', N], as for `mixed_mm`.
        activation: as for `mixed_mm`.
        rows: int32 [T'], the row of x that each row of D is of; None: T' = T, and each is its own.

    Returns:
        D [T', N] of x's dtype; [T', N/2] with a gated activation.

    Raises:
        ValueError: an operand breaks a rule above or of `mixed_mm`; on the CPU also offsets that
            fall or lie beyond T', and rows that name no row of x, which CUDA takes for the nearest.
        TypeError: an operand is no tensor, w no `MixedWeight`, activation no string.
    """
    settings = _settings(w, activation)
    operands = {"x": x, "packed": w.data, "offsets": offsets}
    options = {"order": w.order, "bias": bias, "residual": residual, "rows": rows}
    return called(_grouped_mixed_mm, (x, w.data, w.sizes, offsets), operands, options, settings)


def _settings(w: MixedWeight, activation: object) -> dict[str, Any]:
    must_be_mixed(w)
    settled = {"settled": True} if is_read_early(w) else {}
    return {**accepted_settings(activation), **settled}


def must_be_mixed(w: object) -> None:
    if not isinstance(w, MixedWeight):
        raise TypeError(f"w must be a MixedWeight (see pack_weight), got {type(w).__name__}")


# --- shapes only ----------------------------------------------------------------------------------


def must_be_packed(packed: Tensor, sizes: Sequence[int], stacked: bool = False) -> tuple[int, int]:
    """(K, N) of a packed weight, or of each of a stack."""
    if len(sizes) != 6 or sizes[-1] not in LAYOUT_SIZES:
        rule = "be (K, N, G, bits, zero point, layout)"
        raise ValueError(f"sizes must {rule}, got {sizes_text(sizes)}")
    k, n, group, bits, zero, layout = sizes
    size = LAYOUT_SIZES[layout](k, n, group, bits, zero)
    kind = "a stack of buffers [E, elements]" if stacked else "a packed buffer"
    must_have_shape("packed", packed, packed.dim() == 1 + stacked, f"be {kind}")
    shape = sizes_text([*packed.shape[:-1], size])
    rule = f"be a contiguous buffer of shape {shape} for K={k}, N={n}, G={group}, {bits} bits"
    must_have_shape("packed", packed, packed.shape[-1] == size, rule)
    return k, n


def _mixed_mm_shape(
    x: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    order: Tensor | None = None,
    pre_scale: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    settled: bool = False,
    out: Tensor | None = None,
) -> Tensor | None:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, packed=packed, order=order, pre_scale=pre_scale, bias=bias)
    must_share_device("x", x, residual=residual)
    k, n = must_be_packed(packed, sizes)
    must_have_shape("x", x, x.shape[-1] == k, f"have K={k} columns, the rows of packed")
    n = out_columns("packed", n, activation)
    return output(out, "x", x, [*x.shape[:-1], n], x.dtype)


for _name in ("mixed_mm", "mixed_mm.out"):
    torch.library.register_fake(f"scaled_mm::{_name}", _mixed_mm_shape)


@torch.library.register_fake("scaled_mm::grouped_mixed_mm")
def _(
    x: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    offsets: Tensor,
    *,
    activation: str | None = None,
    rows: Tensor | None = None,
    **others: Any,
) -> Tensor:
    must_have_shape("x", x, x.dim() == 2, "be a matrix [T, K]")
    must_share_device("x", x, packed=packed, offsets=offsets, rows=rows, **others)
    k, n = must_be_packed(packed, sizes, stacked=True)
    must_have_shape("x", x, x.shape[1] == k, f"have K={k} columns, the rows of packed")
    if rows is not None:
        must_have_shape("rows", rows, rows.dim() == 1, "be a vector")
    count = (x if rows is None else rows).shape[0]
    return x.new_empty([count, out_columns("packed", n, activation)])


@torch.library.register_fake("scaled_mm::mixed_dequantize")
def _(packed: Tensor, sizes: Sequence[int]) -> Tensor:
    return packed.new_empty([*must_be_packed(packed, sizes)])
