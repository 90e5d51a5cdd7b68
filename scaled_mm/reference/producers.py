"""The producers: R1 of a norm or an activation that writes int8 (docs/numerics.md, section 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FORMATS, Array, fma32, round_to
from .arrays import as_rows, to_numpy, to_tensor
from .float_mode import ieee
from .functions import ACTIVATIONS, F32
from .quantize import quantize_int8

GROUP, LANES = 8, 4096


def ordered_sum(x: Array) -> Array:
    """The sums of the rows of float32 [rows, K], as [rows, 1].

    Columns in groups of eight, each summed by halves; the groups in 4096 lanes, each summed one
    after the other, from +0; the lanes by halves.
    """
    rows, cols = x.shape
    spans = max(1, -(-cols // (GROUP * LANES)))
    padded = np.zeros((rows, spans, LANES, GROUP), np.float32)
    padded.reshape(rows, spans * LANES * GROUP)[:, :cols] = x
    groups = by_halves(padded)
    lanes = np.zeros((rows, LANES), np.float32)
    for span in range(spans):
        lanes = lanes + groups[:, span]
    return by_halves(lanes)[:, None]


def by_halves(x: Array) -> Array:
    """Sums along the last axis, a power of two: the first half plus the second, until one is
    left."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def rms_norm(h: Array, weight: Array, eps: np.float32) -> Array:
    return h * _reciprocal_root(h * h, eps) * weight


def layer_norm(h: Array, weight: Array, bias: Array, eps: np.float32) -> Array:
    d = h - ordered_sum(h) / F32(h.shape[1])
    return fma32(d * _reciprocal_root(d * d, eps), weight, bias)


def _reciprocal_root(squares: Array, eps: np.float32) -> Array:
    return F32(1) / np.sqrt(ordered_sum(squares) / F32(squares.shape[1]) + eps)


@ieee()
def produce_int8(
    producer: str,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    times: Tensor | None = None,
    eps: float = 0.0,
    smooth: Tensor | None = None,
    normed: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """R1 of the producers: q, scale, azp as `quantize_int8` returns them with `options`; the sum of
    x and the residual, or None; with `normed` the norm in x's dtype, else None.

    producer: rms_norm, layer_norm, relu, silu, gelu or gelu_tanh; silu_mul's halves are x and times
    here. Everything else as in `scaled_mm.ops.produce`.
    """
    total = floats = None
    with np.errstate(all="ignore"):
        h = as_rows(to_numpy(x))
        if residual is not None:
            h = _rounded(h + as_rows(to_numpy(residual)), x.dtype)
            total = to_tensor(h, tuple(x.shape), x.dtype)
        if producer in ACTIVATIONS:
            y = ACTIVATIONS[producer](h)
            y = y if times is None else y * as_rows(to_numpy(times))
        else:
            w = F32(1) if weight is None else to_numpy(weight).reshape(1, -1)
            z = F32(-0.0) if bias is None else to_numpy(bias).reshape(1, -1)
            small = F32(eps)
            y = rms_norm(h, w, small) if producer == "rms_norm" else layer_norm(h, w, z, small)
        if normed:
            floats = to_tensor(_rounded(y, x.dtype), tuple(x.shape), x.dtype)
        y = y if smooth is None else y * to_numpy(smooth).reshape(1, -1)
    made = to_tensor(y, tuple(x.shape), torch.float32)
    return (*quantize_int8(made, **options), total, floats)


def _rounded(x: Array, dtype: torch.dtype) -> Array:
    return round_to(np.float64(x), FORMATS[dtype]).astype(np.float32)
