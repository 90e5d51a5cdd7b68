"""The quantisers: R1, and the exact quotient rounded once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FLT_MIN, Array
from .arrays import as_rows, to_numpy, to_tensor
from .float_mode import ieee


@ieee()
def quantize_int8(
    x: Tensor,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
    rotate: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """R1 of `scaled_mm.quantize_int8`: float32, one rounding per operation.

        symmetric    s = max(absmax / 127, FLT_MIN)      q = clamp(rne(x / s), -127, 127)
        asymmetric   lo = min(0, min x), hi = max(0, max x)
                     s = max((hi - lo) / 255, FLT_MIN)   q = clamp(rne(x / s) + azp, -128, 127)
                     azp = clamp(rne(-128 - lo / s), -128, 127)

    over each row (per_token) or the whole tensor; a row that holds NaN or infinity has s = NaN, q =
    azp = 0. A given scale (and azp) is used as it is and returned; then NaN gives q = 0 and
    infinity clamps. rotate: over x rotated (`rotated`).
    """
    return _quantize(x, scale, azp, symmetric, per_token, rotate, np.float32)


@ieee()
def quantize_int8_exact(
    x: Tensor,
    *,
    scale: Tensor | None = None,
    azp: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
    rotate: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`quantize_int8` with its scale and azp, but the exact quotient x / s, rounded once.

    float64 is exact enough: a quotient of two 24-bit significands that is no half-integer below 2^8
    is at least 2^-25 away from every one, which no rounding to 53 bits bridges.
    """
    return _quantize(x, scale, azp, symmetric, per_token, rotate, np.float64)


@ieee()
def quantize_weight_int8(
    w: Tensor, *, per_channel: bool = True, rotate: int | None = None
) -> tuple[Tensor, Tensor]:
    """R1 of `scaled_mm.quantize_weight_int8`: w [N, K] -> q [N, K], scale [1, N] (or [1, 1]).

    `quantize_int8`, symmetric, over each output channel or the whole weight.
    """
    q, scale, _ = quantize_int8(w, per_token=per_channel, rotate=rotate)
    return q, scale.reshape(1, -1)


def rotated(x: Array, block: int) -> Array:
    """The rows of float32 [rows, K], each block of so many columns by a Hadamard matrix.

    Columns whose numbers differ in one bit become their sum and their difference, bit after bit
    from the lowest; then all are multiplied by 1 / sqrt(block), rounded.
    """
    stride, made = 1, x
    while stride < block:
        pairs = made.reshape(-1, 2, stride)
        a, b = pairs[:, 0], pairs[:, 1]
        made, stride = np.stack((a + b, a - b), 1), 2 * stride
    return made.reshape(x.shape) * np.float32(block**-0.5)


def _quantize(
    x: Tensor,
    scale: Tensor | None,
    azp: Tensor | None,
    symmetric: bool,
    per_token: bool,
    rotate: int | None,
    quotient: type,
) -> tuple[Tensor, Tensor, Tensor | None]:
    x32 = as_rows(to_numpy(x))
    with np.errstate(all="ignore"):
        if rotate:
            x32 = rotated(x32, rotate)
        if scale is None:
            s, z = _range_of(x32 if per_token else x32.reshape(1, -1), symmetric)
            shape = (*x.shape[:-1], 1) if per_token else (1,)
            scale = to_tensor(s, shape, torch.float32)
            azp = None if symmetric else to_tensor(z, shape, torch.int32)
        else:
            s = to_numpy(scale).reshape(-1, 1)
            z = np.float32(0) if azp is None else to_numpy(azp).reshape(-1, 1).astype(np.float32)
        lowest = -127 if symmetric else -128
        q = np.clip(np.rint(quotient(x32) / quotient(s)) + z, lowest, 127)
        q = np.where(np.isnan(q), 0, q)
    return to_tensor(q, tuple(x.shape), torch.int8), scale, azp


def _range_of(x: Array, symmetric: bool) -> tuple[Array, Array]:
    """Scale and zero point [rows, 1], both float32, of the rows of float32 x."""
    low = np.min(x, axis=1, keepdims=True, initial=0)
    high = np.max(x, axis=1, keepdims=True, initial=0)
    half, full, top = np.float32(0.5), np.float32(255), np.float32(127.5)
    if symmetric:
        s = np.maximum(high, -low) / np.float32(127)
    else:
        spread = high - low
        s = np.where(np.isinf(spread), (high * half - low * half) / top, spread / full)
    finite = np.isfinite(low) & np.isfinite(high)  # a NaN in the row is in both
    s = np.where(finite, np.maximum(s, FLT_MIN), np.float32(np.nan))
    z = np.clip(np.rint(np.float32(-128) - low / s), -128, 127)
    return s, np.where(finite & (not symmetric), z, np.float32(0))
