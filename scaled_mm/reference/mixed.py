"""Weight-only products: what `mixed_mm` and `grouped_mixed_mm` compute, in plain numpy, exact.

A weight comes here as plain tensors: q [K, N], one value to a byte, scales [K/G, N] and zeros,
whose dtype says which formula holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FORMATS, Array, round_to, to_odd, two_sum
from .arrays import matrix_product, to_float64, to_tensor
from .epilogues import FORMS
from .float_mode import ieee

SLOPES = {None: 1.0, "relu": 1.0, "silu": 1.1, "gelu": 1.13, "gelu_tanh": 1.13}
"""How much an activation may enlarge an error of its argument, at most."""
OWN_ERROR = 2.0**-22
"""Of an activation's float32 sequence, relative to its argument's size, at most."""


@ieee()
def mixed_dequantize(q: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """W [K, N] of the scales' dtype, rounded once:

    RN(q s)          without zeros
    RN((q - z) s)    zeros integers
    RN(q s + z)      zeros floats
    """
    with np.errstate(all="ignore"):
        w = round_to(_exact(q, scales, zeros), FORMATS[scales.dtype])
    return to_tensor(w, w.shape, scales.dtype)


@ieee()
def mixed_mm(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    order: Tensor | None = None,
    pre_scale: Tensor | None = None,
    **ending: Any,
) -> Tensor:
    """What `product` makes of W as above and x' as in `prepared`."""
    return product(prepared(x, order, pre_scale), mixed_dequantize(q, scales, zeros), **ending)


@ieee()
def mixed_mm_bound(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    order: Tensor | None = None,
    pre_scale: Tensor | None = None,
    **ending: Any,
) -> tuple[Tensor, Tensor]:
    """`product_bound` of the same."""
    w = mixed_dequantize(q, scales, zeros)
    return product_bound(prepared(x, order, pre_scale), w, **ending)


@ieee()
def grouped_mixed_mm(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    offsets: Tensor,
    *,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """`mixed_mm` of each expert's rows; 0 behind all. The weight, order and bias are [E, ...]."""
    source = torch.arange(len(x)) if rows is None else rows.cpu().long()
    parts, begin = [], 0
    for e, end in enumerate(offsets.tolist()):
        own = {"zeros": zeros, "order": order, "bias": bias}
        given: dict[str, Any] = {name: None if t is None else t[e] for name, t in own.items()}
        if residual is not None:
            given["residual"] = residual[begin:end]
        of_rows = x[source[begin:end].to(x.device)]
        parts.append(mixed_mm(of_rows, q[e], scales[e], activation=activation, **given))
        begin = end
    n = q.shape[2] // (2 if FORMS[activation][0] == "gated" else 1)
    return torch.cat([*parts, torch.zeros(len(source) - begin, n, dtype=x.dtype)])


@ieee()
def product(
    x: Tensor,
    w: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """RN(f(x W + bias + residual)), summed in float64, f in float32; the ops sum in float32 and may
    differ from it by `product_bound`. Gated, of columns 2 j and 2 j + 1: RN(f(first) second)."""
    form, function = FORMS[activation]
    with np.errstate(all="ignore"):
        d = _sum(x, w, bias, residual)
        if function is not None:
            d = d.astype(np.float32)
            gates = d[:, ::2] if form == "gated" else d
            made = function.float32(gates)
            d = (made * d[:, 1::2] if form == "gated" else made).astype(np.float64)
        d = round_to(d, FORMATS[x.dtype])
    return to_tensor(d, (*x.shape[:-1], d.shape[1]), x.dtype)


@ieee()
def product_bound(
    x: Tensor,
    w: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The exact output (as of float64) and how far from it one may be, float64 [..., N]:

        |out - exact| <= ulp(exact) / 2 + (L K 2^-23 + e) (|x| |W| + |bias| + |residual|)

    where ulp is that of x's dtype, never below that of its least normal number; L is the slope of
    the activation (`SLOPES`) and e the error of its float32 sequence (`OWN_ERROR`; 0 for none and
    relu). Gated, the errors of both factors come together as those of a product do.
    """
    form, function = FORMS[activation]
    name = None if function is None else function.name
    sizes = (None if t is None else t.abs() for t in (bias, residual))
    size, value = _sum(x.abs(), w.abs(), *sizes), _sum(x, w, bias, residual)
    of_sum = max(1, x.shape[-1]) * 2.0**-23 * size
    gates = slice(None, None, 2 if form == "gated" else 1)
    own = 0.0 if name in (None, "relu") else OWN_ERROR
    error = SLOPES[name] * of_sum[:, gates] + own * size[:, gates]
    with np.errstate(over="ignore"):  # exp of what is far below 0
        exact = value if function is None else function.true(value[:, gates])
    if form == "gated":
        other, of_other = value[:, 1::2], of_sum[:, 1::2]
        error = error * (np.abs(other) + of_other) + np.abs(exact) * of_other
        exact = exact * other
        error += np.abs(exact) * 2.0**-24
    fmt = FORMATS[x.dtype]
    half_ulp = np.maximum(np.abs(exact) * 2.0**-fmt.bits, 2.0 ** (fmt.min_exponent - 1))
    shape = (*x.shape[:-1], exact.shape[1])
    bound = half_ulp + error
    return torch.from_numpy(exact).reshape(shape), torch.from_numpy(bound).reshape(shape)


@ieee()
def prepared(x: Tensor, order: Tensor | None, pre_scale: Tensor | None) -> Tensor:
    """x' [..., K]: RN(RN32(x[order[k]] * pre_scale[order[k]])), both optional."""
    if pre_scale is not None:
        with np.errstate(all="ignore"):
            product = to_float64(x) * to_float64(pre_scale).reshape(-1)
            product = round_to(round_to(product, FORMATS[torch.float32]), FORMATS[x.dtype])
        x = to_tensor(product, tuple(x.shape), x.dtype)
    return x if order is None else x.cpu()[..., order.cpu().long()]


def _sum(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None) -> Array:
    total = matrix_product(x, w)
    if bias is not None:
        total = total + to_float64(bias).reshape(1, -1)
    return total if residual is None else total + to_float64(residual).reshape(total.shape)


def _exact(q: Tensor, scales: Tensor, zeros: Tensor | None) -> Array:
    """The weight before it is rounded; of q s + z, which float64 may not hold, rounded to odd."""
    values, s = to_float64(q), to_float64(scales)
    group = np.arange(len(values)) * len(s) // max(1, len(values))
    if zeros is None:
        return values * s[group]
    z = to_float64(zeros)[group]
    if not zeros.is_floating_point():
        return (values - z) * s[group]
    product = values * s[group]
    return to_odd(*two_sum(product, z)).reshape(product.shape)
