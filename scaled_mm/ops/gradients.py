"""The products of quantised layers as ops that autograd knows: of x and the bias.

    int8    y = scale_a * scale_b * (q - azp) B + bias      q, scale_a, azp = quantise(x * smooth H)
            dx = (dy W.t() H) * smooth                      W = B * scale_b
    mixed   y = f(x' W + bias),  x' = x * pre_scale
            dx = (dz W.t()) * pre_scale                     dz = dy * f'(x' W + bias)
    both    dbias = the sum of dy (dz) over tokens

H is the rotation of `quantize_int8`, symmetric, or 1. The quantiser counts as the identity, also
where it clamps ("straight through": Bengio et al., 2013). W is made of the stored weight when the
gradient is, in the gradient's dtype, and dropped then. Between forward and backward only the
layer's own tensors are held, and x where there is an activation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import accept, explained
from .mixed import mixed_mm
from .mixed_weight import ZEROS, MixedWeight
from .packed_weight import PackedWeight, rows
from .rotate import rotated

_scaled_linear = torch.ops.scaled_mm.scaled_linear.default
_TERMS = ("input_smooth", "input_scale", "input_azp", "azp_term")


def wants_gradient(*tensors: Any) -> bool:
    """Whether autograd follows one of them now."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def accept_activation(x: object) -> None:
    """`accept` of a layer's input, which may want a gradient."""
    accept({"x": x.detach() if isinstance(x, Tensor) and wants_gradient(x) else x})  # type: ignore[dict-item]


def linear_product(x: Tensor, *rest: Any) -> Tensor:
    """`scaled_linear`, which autograd follows.

    Args:
        rest: its arguments behind x, all of them.
    """
    weight, scales, bias, _, _, smooth, _, _, *terms, _ = rest
    follows = wants_gradient(x, bias)
    tensors = {"weight": weight, "weight_scale": scales, "bias": bias}
    tensors.update(zip(_TERMS, (smooth, *terms), strict=True))
    operands = {name: t for name, t in tensors.items() if t is not None}
    if follows:
        operands.pop("bias", None)
    accept(operands if follows else {"x": x, **operands})
    try:
        y: Tensor = (_int8_linear if follows else _scaled_linear)(x, *rest)
    except (MemoryError, RuntimeError) as error:
        raise explained(error, {"x": x, **operands}) from None
    return y


def mixed_product(
    x: Tensor,
    w: MixedWeight,
    *,
    bias: Tensor | None,
    activation: str | None = None,
    pre_scale: Tensor | None = None,
) -> Tensor:
    """`mixed_mm`."""
    y: Tensor = _mixed_linear(x, w.data, w.sizes, w.order, pre_scale, bias, activation)
    return y


# --- int8 -----------------------------------------------------------------------------------------


def _int8(x: Tensor, *rest: Any) -> Tensor:
    y: Tensor = _scaled_linear(x, *rest)
    return y


def _keep_int8(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, scales, bias, ctx.k, _, smooth, *_, ctx.rotate = inputs
    ctx.dtype = x.dtype
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.save_for_backward(weight, scales, smooth)


def _int8_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    weight, scales, smooth = ctx.saved_tensors
    dx = None
    if ctx.needs_input_grad[0]:
        w = weight if weight.dim() == 2 else rows(PackedWeight(weight, ctx.k, len(scales)))
        dx = _times(dy, (w * scales).to(dy.dtype), smooth, ctx.rotate).to(ctx.dtype)
    return (dx, None, None, _dbias(ctx, 3, dy), *(None,) * 9)


# --- 4 and 8 bits ---------------------------------------------------------------------------------


def _mixed(
    x: Tensor,
    packed: Tensor,
    sizes: list[int],
    order: Tensor | None,
    pre_scale: Tensor | None,
    bias: Tensor | None,
    activation: str | None,
) -> Tensor:
    w = _weight(packed, sizes, order)
    return mixed_mm(x, w, bias=bias, activation=activation, pre_scale=pre_scale)


def _weight(packed: Tensor, sizes: list[int], order: Tensor | None) -> MixedWeight:
    k, n, group, bits, zero, layout = sizes
    return MixedWeight(packed, order, k, n, group, bits, ZEROS[zero], layout)


def _keep_mixed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, ctx.sizes, order, pre_scale, bias, ctx.activation = inputs
    held = None if ctx.activation is None else x
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.save_for_backward(held, packed, order, pre_scale, None if held is None else bias)


def _mixed_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, packed, order, pre_scale, bias = ctx.saved_tensors
    if ctx.activation is not None:
        z = _mixed(x, packed, ctx.sizes, order, pre_scale, bias, None)
        dy = _derivative(dy, z, ctx.activation)
    dx = None
    if ctx.needs_input_grad[0]:
        w = _weight(packed, ctx.sizes, order).dequantize()
        dx = _times(dy, w.t(), pre_scale)
    return (dx, *(None,) * 4, _dbias(ctx, 5, dy), None)


def _derivative(dy: Tensor, z: Tensor, activation: str) -> Tensor:
    """dy * f'(z)."""
    if activation == "relu":
        return dy * (z > 0)
    if activation == "silu":
        return torch.ops.aten.silu_backward(dy, z)
    kind = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(dy, z, approximate=kind)


# --- both -----------------------------------------------------------------------------------------


def _times(dy: Tensor, w: Tensor, factors: Tensor | None, rotate: int = 0) -> Tensor:
    """dy [..., N] w [N, K], rotated, times the factors on the input's channels; in dy's dtype, also
    where the graph is followed under autocast."""
    with torch.autocast(dy.device.type, enabled=False):
        dx = dy @ w
    if rotate:
        dx = rotated(dx.float(), rotate).to(dx.dtype)
    return dx if factors is None else (dx * factors).to(dx.dtype)


def _dbias(ctx: Any, place: int, dy: Tensor) -> Tensor | None:
    if not ctx.needs_input_grad[place]:
        return None
    shape, dtype = ctx.bias
    return dy.reshape(-1, dy.shape[-1]).sum(0, dtype=torch.float32).to(dtype).view(shape)


_int8_linear = torch.library.custom_op(
    "scaled_mm::_int8_linear",
    _int8,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int k, bool settled, "
    "Tensor? input_smooth, bool symmetric, bool per_token, Tensor? input_scale, "
    "Tensor? input_azp, Tensor? azp_term, int rotate) -> Tensor",
)
_int8_linear.register_fake(_int8)
_int8_linear.register_autograd(_int8_backward, setup_context=_keep_int8)

_mixed_linear = torch.library.custom_op(
    "scaled_mm::_mixed_linear",
    _mixed,
    mutates_args=(),
    schema="(Tensor x, Tensor packed, SymInt[] sizes, Tensor? order, Tensor? pre_scale, "
    "Tensor? bias, str? activation) -> Tensor",
)
_mixed_linear.register_fake(_mixed)
_mixed_linear.register_autograd(_mixed_backward, setup_context=_keep_mixed)
