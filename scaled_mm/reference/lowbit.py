"""The int4 part of `reference`: what the AWQ ops compute, in plain numpy, exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .float_mode import ieee
from .mixed import mixed_dequantize, product, product_bound

COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of the eight in a word, that each nibble holds, the lowest first."""


@ieee()
def awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """W[k, n] = RN((q[k, n] - z[k // G, n]) * s[k // G, n]) in the scales' dtype."""
    return mixed_dequantize(_nibbles(qweight), scales, _nibbles(qzeros))


@ieee()
def awq_gemm(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, **ending: Any) -> Tensor:
    """`mixed.product` of x and W as above; the ops may differ from it by `awq_gemm_bound`."""
    return product(x, awq_dequantize(qweight, scales, qzeros), **ending)


@ieee()
def awq_gemm_bound(
    x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, **ending: Any
) -> tuple[Tensor, Tensor]:
    """`mixed.product_bound` of the same."""
    return product_bound(x, awq_dequantize(qweight, scales, qzeros), **ending)


def _nibbles(words: Tensor) -> Tensor:
    """int32 [R, C] -> int8 [R, 8 C], in the order of the columns."""
    bits = words.detach().cpu().contiguous().numpy().view(np.uint32)
    out = np.empty((len(bits), bits.shape[1], 8), np.int8)
    for nibble, column in enumerate(COLUMNS):
        out[:, :, column] = bits >> np.uint32(4 * nibble) & np.uint32(15)
    return torch.from_numpy(out.reshape(len(bits), 8 * bits.shape[1]))
