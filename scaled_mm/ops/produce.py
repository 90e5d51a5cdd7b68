"""Producers: norms and activations that write int8, `quantize_int8` of their result."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import accept, explained, must_be_bool
from .rotate import block_given
from .shapes import must_have_shape, must_rotate, must_share_device

_produce_int8 = torch.ops.scaled_mm.produce_int8.default
Quantized = tuple[Tensor, Tensor, Tensor | None]


class QuantizedNorm(NamedTuple):
    """What a norm's producer returns."""

    q: Tensor
    """int8, as `quantize_int8` returns it; so are the next two."""
    scale: Tensor
    azp: Tensor | None
    residual: Tensor | None
    """x + residual in x's dtype, where a residual was given: the next one's."""
    normed: Tensor | None
    """The norm as floats of x's dtype, before `smooth`, where it was asked for."""


def rms_norm_quantize_int8(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    smooth: Tensor | None = None,
    rotate: int | None = None,
    normed: bool = False,
) -> QuantizedNorm:
    """RMS norm, then `quantize_int8` of each token.

        h = x, or RN(x + residual) in x's dtype
        y = h / sqrt(mean(h^2) + eps) * weight [* smooth]
        q, scale, azp = quantize_int8(y)

    y is float32 and is not rounded to x's dtype before it is quantised. docs/numerics.md, section
    6, has the sequence of operations and the order of the sum.

    Args:
        x: float32, bfloat16 or float16 [..., K]; any strides.
        weight: float32 or x's dtype [K]; None for all ones. (Gemma's weight counts from 1: give
            `1 + weight.float()`.)
        eps: added to the mean of squares; finite, not negative.
        residual: x's dtype and shape; added to x first.
        scale, azp, symmetric: as for `quantize_int8`, always per token where they are dynamic.
        smooth: float32 [K], multiplied in last: 1 / s of SmoothQuant, the `input_smooth` of a
            `nn.ScaledLinear`.
        rotate: as for `quantize_int8`, after `smooth`.
        normed: return the norm as floats too, as a model that norms behind a residual's sum needs
            it for the next sum.

    Returns:
        A `QuantizedNorm`: q, scale and azp as `quantize_int8` returns them; residual, which is h in
        x's dtype, or None without one; and normed, RN(y) in x's dtype before `smooth`, or None.

    Raises:
        ValueError: an argument breaks a rule above, or one of `quantize_int8`.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    given = {"weight": weight, "residual": residual, "smooth": smooth}
    options: dict[str, Any] = {"rotate": rotate, "eps": eps, "normed": normed}
    return QuantizedNorm(*_produce("rms_norm", x, given, scale, azp, symmetric, **options))


def layer_norm_quantize_int8(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    smooth: Tensor | None = None,
    rotate: int | None = None,
    normed: bool = False,
) -> QuantizedNorm:
    """Layer norm, then `quantize_int8` of each token.

        h = x, or RN(x + residual) in x's dtype
        d = h - mean(h)
        y = (d / sqrt(mean(d^2) + eps) * weight + bias) [* smooth]

    Args:
        weight, bias: float32 or x's dtype [K]; None for all ones, and all zeros.

    All else as for `rms_norm_quantize_int8`.

    Source: Ba, Kiros and Hinton, Layer Normalization (2016).
    """
    given = {"weight": weight, "bias": bias, "residual": residual, "smooth": smooth}
    options: dict[str, Any] = {"rotate": rotate, "eps": eps, "normed": normed}
    return QuantizedNorm(*_produce("layer_norm", x, given, scale, azp, symmetric, **options))


def silu_mul_quantize_int8(
    x: Tensor,
    times: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    smooth: Tensor | None = None,
    rotate: int | None = None,
) -> Quantized:
    """SwiGLU's product, then `quantize_int8` of each token.

        gate, up = x, times, or the halves of x's columns
        y = gate / (1 + e^-gate) * up [* smooth]

    Args:
        x: float32, bfloat16 or float16; the gate [..., K] if `times` is given, else gate and up
            side by side, [..., 2 K], as the product of a joint weight leaves them.
        times: x's dtype and shape: up.
        scale, azp, symmetric, smooth, rotate: as for `rms_norm_quantize_int8`.

    Returns:
        (q, scale, azp) as `quantize_int8` returns them, of K columns.

    Raises:
        ValueError: an argument breaks a rule above, or one of `quantize_int8`.

    Source: Shazeer, GLU Variants Improve Transformer (2020).
    """
    given, halves = {"times": times, "smooth": smooth}, times is None
    return _produce("silu", x, given, scale, azp, symmetric, rotate, halves=halves)[:3]


def gelu_quantize_int8(
    x: Tensor,
    *,
    approximate: str = "none",
    times: Tensor | None = None,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    smooth: Tensor | None = None,
    rotate: int | None = None,
) -> Quantized:
    """GELU, then `quantize_int8` of each token.

        y = x (1 + erf(x / sqrt 2)) / 2                                    approximate="none"
        y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2              approximate="tanh"
        y = y [* times] [* smooth]

    Args:
        x: float32, bfloat16 or float16 [..., K]; any strides.
        approximate: as for `torch.nn.functional.gelu`.
        times: x's dtype and shape: the second factor, of a GeGLU.
        scale, azp, symmetric, smooth, rotate: as for `rms_norm_quantize_int8`.

    Returns, Raises: as for `silu_mul_quantize_int8`.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units (2016).
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    producer = "gelu" if approximate == "none" else "gelu_tanh"
    given = {"times": times, "smooth": smooth}
    return _produce(producer, x, given, scale, azp, symmetric, rotate)[:3]


def relu_quantize_int8(
    x: Tensor,
    *,
    times: Tensor | None = None,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    smooth: Tensor | None = None,
    rotate: int | None = None,
) -> Quantized:
    """ReLU, then `quantize_int8` of each token: y = max(x, 0) [* times] [* smooth].

    Arguments, Returns, Raises: as for `gelu_quantize_int8`.
    """
    given = {"times": times, "smooth": smooth}
    return _produce("relu", x, given, scale, azp, symmetric, rotate)[:3]


def produce_int8(
    x: Tensor,
    *,
    producer: str,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A producer by its name, with the names of `reference.produce_int8`: q, scale, azp."""
    plain = {name: options.pop(name) for name in ("eps", "rotate") if name in options}
    return _produce(producer, x, options, scale, azp, symmetric, **plain)[:3]


def _produce(
    producer: str,
    x: Tensor,
    given: dict[str, Tensor | None],
    scale: Tensor | None,
    azp: Tensor | None,
    symmetric: bool,
    rotate: int | None = None,
    **settings: Any,
) -> tuple[Any, Any, Any, Any, Any]:
    operands = {name: t for name, t in given.items() if t is not None}
    scales = {name: t for name, t in {"scale": scale, "azp": azp}.items() if t is not None}
    accept({"x": x, **operands}, scales)
    must_be_bool("symmetric", symmetric)
    must_be_bool("normed", settings.get("normed", False))
    eps = settings.get("eps", 0.0)
    if not isinstance(eps, int | float):
        raise TypeError(f"eps must be a number, got {type(eps).__name__}")
    if azp is not None and scale is None:
        raise ValueError("scale must be given with azp, got azp alone")
    if scale is not None and symmetric != (azp is None):
        rule = "not be given" if symmetric else "be given"
        raise ValueError(f"azp must {rule} with scale when symmetric={symmetric}, got {azp}")
    settings |= {"symmetric": symmetric, "rotate": block_given(rotate)}
    try:
        q, made, zero, *floats = _produce_int8(producer, x, **operands, **scales, **settings)
    except (MemoryError, RuntimeError) as error:
        raise explained(error, {"x": x, **operands, **scales}) from None
    return (q, made, zero, *floats) if scale is None else (q, scale, azp, *floats)


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::produce_int8")
def _(
    producer: str,
    x: Tensor,
    *,
    residual: Tensor | None = None,
    halves: bool = False,
    scale: Tensor | None = None,
    symmetric: bool = True,
    normed: bool = False,
    rotate: int = 0,
    **others: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, residual=residual, scale=scale, **others)
    cols = x.shape[-1]
    if halves:
        even = "have an even number of columns, both factors'"
        must_have_shape("x", x, cols % 2 == 0, even)
        cols = cols // 2
    must_rotate(rotate, cols)
    per_token = [*x.shape[:-1], 1]
    dynamic = scale is None
    return (
        x.new_empty([*x.shape[:-1], cols], dtype=torch.int8),
        x.new_empty(per_token, dtype=torch.float32) if dynamic else None,
        x.new_empty(per_token, dtype=torch.int32) if dynamic and not symmetric else None,
        None if residual is None else x.new_empty(x.shape),
        x.new_empty(x.shape) if normed else None,
    )
