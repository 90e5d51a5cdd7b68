"""What `pack_weight` takes: a weight of few bits as plain tensors, one value to a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from ..lowbit.grouped import must_be_in
from .packed_words import FLOAT, INTEGER


def check_plain(
    q: Tensor, scales: Tensor, zeros: Tensor | None, g_idx: Tensor | None, bits: int, zero: int
) -> None:
    """Refuses what `pack_weight` does not take; `zero`: the kind of zero points."""
    if not isinstance(bits, int) or bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits!r}")
    dtype = torch.uint8 if zero == INTEGER else torch.int8
    if q.dtype != dtype or q.dim() != 2:
        why = "with" if zero == INTEGER else "without"
        rule = f"be {str(dtype)[6:]} [K, N] {why} integer zeros"
        raise ValueError(f"q must {rule}, got {str(q.dtype)[6:]} of shape {tuple(q.shape)}")
    if scales.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"scales must be float16 or bfloat16, got {str(scales.dtype)[6:]}")
    (k, n), shape = q.shape, tuple(scales.shape)
    if scales.dim() != 2 or shape[1] != n or (k and (shape[0] == 0 or k % shape[0])):
        rule = f"be [K/G, N] with N={n} and G a divisor of K={k}"
        raise ValueError(f"scales must {rule}, got shape {shape}")
    if zeros is not None:
        dtype = scales.dtype if zero == FLOAT else torch.uint8
        if zeros.dtype != dtype or zeros.shape != scales.shape:
            rule = f"be uint8 or {str(scales.dtype)[6:]} of shape {shape}, as scales"
            got = f"{str(zeros.dtype)[6:]} of shape {tuple(zeros.shape)}"
            raise ValueError(f"zeros must {rule}, got {got}")
    for name, t in (("scales", scales), ("zeros", zeros), ("g_idx", g_idx)):
        if t is not None and t.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {t.device}")
    if bits == 4:
        low = 0 if zero == INTEGER else -8
        must_be_in("q", q, low, low + 15)
        if zero == INTEGER and zeros is not None:
            must_be_in("zeros", zeros, 0, 15)


def shown(t: Tensor) -> str:
    """What a buffer is, in the words of a refusal."""
    kind = "a negated view of " if t.is_neg() else ""
    at = f"strides {t.stride()} from element {t.storage_offset()}"
    return f"{kind}{str(t.dtype)[6:]} of shape {tuple(t.shape)}, {at}, on {t.device}"
