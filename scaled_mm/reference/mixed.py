"""Weight-only products: what `mixed_mm` computes, in plain numpy, exact.

A weight comes here as plain tensors: q [K, N], one value to a byte, scales [K/G, N] and zeros,
whose dtype says which formula holds.
"""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FORMATS, Array, round_to, to_odd, two_sum
from .arrays import matrix_product, to_float64, to_tensor
from .float_mode import ieee
from .functions import ACTIVATIONS

SLOPES = {None: 1.0, "relu": 1.0, "silu": 1.1, "gelu": 1.13, "gelu_tanh": 1.13}
"""How much an activation may enlarge an error of its argument, at most."""
OWN_ERROR = 2.0**-21
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
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """RN(f(x' W + bias)): W as above, x' as in `prepared`, summed in float64; the ops sum in
    float32 and may differ from it by `mixed_mm_bound`."""
    with np.errstate(all="ignore"):
        d = _sum(prepared(x, order, pre_scale), mixed_dequantize(q, scales, zeros), bias)
        if activation is not None:
            d = ACTIVATIONS[activation](d.astype(np.float32)).astype(np.float64)
        d = round_to(d, FORMATS[x.dtype])
    return to_tensor(d, (*x.shape[:-1], d.shape[1]), x.dtype)


@ieee()
def mixed_mm_bound(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    order: Tensor | None = None,
    pre_scale: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The exact output (as of float64) and how far from it one may be, float64 [..., N]:

        |out - exact| <= ulp(exact) / 2 + (L K 2^-23 + e) (|x'| |W| + |bias|)

    where ulp is that of x's dtype, never below that of its least normal number; L is the slope of
    the activation (`SLOPES`) and e the error of its float32 sequence (`OWN_ERROR`; 0 for none and
    relu).
    """
    x = prepared(x, order, pre_scale)
    w = mixed_dequantize(q, scales, zeros)
    size = _sum(x.abs(), w.abs(), None if bias is None else bias.abs())
    exact = _activated(_sum(x, w, bias), activation)
    fmt = FORMATS[x.dtype]
    half_ulp = np.maximum(np.abs(exact) * 2.0**-fmt.bits, 2.0 ** (fmt.min_exponent - 1))
    own = 0.0 if activation in (None, "relu") else OWN_ERROR
    bound = half_ulp + (SLOPES[activation] * max(1, x.shape[-1]) * 2.0**-23 + own) * size
    shape = (*x.shape[:-1], w.shape[1])
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


def _activated(x: Array, activation: str | None) -> Array:
    """The activation of a float64, in float64."""
    t = torch.from_numpy(x)
    if activation == "relu":
        return t.relu().numpy()
    if activation == "silu":
        return torch.nn.functional.silu(t).numpy()
    if activation in ("gelu", "gelu_tanh"):
        kind = "tanh" if activation == "gelu_tanh" else "none"
        return torch.nn.functional.gelu(t, approximate=kind).numpy()
    return x


def _sum(x: Tensor, w: Tensor, bias: Tensor | None) -> Array:
    product = matrix_product(x, w)
    return product if bias is None else product + to_float64(bias).reshape(1, -1)


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
