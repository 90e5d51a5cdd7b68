"""The int4 part of `reference`: what the AWQ ops compute, in plain numpy, exact."""

# mypy: no-warn-return-any
# (numpy types its operators as Any)
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FORMATS, Array, round_to
from .arrays import matrix_product, to_float64, to_tensor
from .float_mode import ieee

COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of the eight in a word, that each nibble holds, the lowest first."""


@ieee()
def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """W[k, n] = RN((q[k, n] - z[k // G, n]) * s[k // G, n]) in the scales' dtype."""
    with np.errstate(all="ignore"):
        w = round_to(_exact(qweight, scales, qzeros), FORMATS[scales.dtype])
    return to_tensor(w, w.shape, scales.dtype)


@ieee()
def awq_gemm(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """RN(x W + bias), W as above, summed in float64; the ops sum in float32 and may differ from it
    by `awq_gemm_bound`."""
    with np.errstate(all="ignore"):
        d = _product(x, awq_dequantize(qweight, scales, qzeros), bias)
        d = round_to(d, FORMATS[x.dtype])
    return to_tensor(d, (*x.shape[:-1], d.shape[1]), x.dtype)


@ieee()
def awq_gemm_bound(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The exact product (as of float64) and how far from it an output may be, float64 [..., N]:

        |out - exact| <= ulp(exact) / 2 + K 2^-23 (|x| |W| + |bias|)

    where ulp is that of x's dtype, never below that of its least normal number.
    """
    w = awq_dequantize(qweight, scales, qzeros)
    exact = _product(x, w, bias)
    size = _product(x.abs(), w.abs(), None if bias is None else bias.abs())
    fmt = FORMATS[x.dtype]
    half_ulp = np.maximum(np.abs(exact) * 2.0**-fmt.bits, 2.0 ** (fmt.min_exponent - 1))
    bound = half_ulp + max(1, x.shape[-1]) * 2.0**-23 * size
    shape = (*x.shape[:-1], w.shape[1])
    return torch.from_numpy(exact).reshape(shape), torch.from_numpy(bound).reshape(shape)


def _product(x: Tensor, w: Tensor, bias: Tensor | None) -> Array:
    product = matrix_product(x, w)
    return product if bias is None else product + to_float64(bias).reshape(1, -1)


def _exact(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Array:
    q, z, s = _nibbles(qweight), _nibbles(qzeros), to_float64(scales)
    group = np.arange(len(q)) * len(s) // max(1, len(q))
    return (q - z[group]) * s[group]


def _nibbles(words: Tensor) -> Array:
    """int32 [R, C] -> float64 [R, 8 C], in the order of the columns."""
    bits = words.detach().cpu().contiguous().numpy().view(np.uint32)
    out = np.empty((len(bits), bits.shape[1], 8))
    for nibble, column in enumerate(COLUMNS):
        out[:, :, column] = bits >> np.uint32(4 * nibble) & np.uint32(15)
    return out.reshape(len(bits), 8 * bits.shape[1])
