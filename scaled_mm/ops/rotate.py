"""The rotation of `quantize_int8`, in torch's operations."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCKS = (16, 32, 64, 128, 256, 512)


def block_given(rotate: object) -> int:
    """A `rotate=` as the ops take it; None: 0.

    Raises:
        TypeError: it is neither int nor None.
    """
    if rotate is None:
        return 0
    if isinstance(rotate, bool) or not isinstance(rotate, int):
        raise TypeError(f"rotate must be an int or None, got {type(rotate).__name__}")
    return rotate


def rotated(x: Tensor, block: int) -> Tensor:
    """x [..., K], each block of so many columns by a Hadamard matrix H / sqrt(block).

    Of float32 the bits of `reference.rotated` (docs/numerics.md, section 4). H is symmetric: the
    rotation undoes itself, and is its own gradient.
    """
    shape, half = x.shape, 1
    while half < block:
        a, b = x.reshape(-1, 2, half).unbind(1)
        x, half = torch.stack((a + b, a - b), 1), 2 * half
    return x.reshape(shape) * block**-0.5
