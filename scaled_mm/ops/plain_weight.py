"""What `pack_weight` takes: a weight of few bits as plain tensors, one value to a byte."""

from __future__ import annotations

import torch
from torch import Tensor

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
        _must_be_in("q", q, low, low + 15)
        if zero == INTEGER and zeros is not None:
            _must_be_in("zeros", zeros, 0, 15)


def _must_be_in(name: str, values: Tensor, low: int, high: int) -> None:
    if values.is_meta:
        raise ValueError(f"{name} must have values, in {low}..{high}, got a tensor on meta")
    if values.numel():
        least, most = (int(x) for x in torch.aminmax(values))
        if least < low or most > high:
            raise ValueError(f"{name} must be in {low}..{high}, got {least}..{most}")


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def order_of(g_idx: Tensor, k: int, groups: int) -> Tensor | None:
    """Where each row of the sorted weight comes from; None where it is sorted already."""
    if g_idx.dtype not in _INTEGERS or g_idx.shape != (k,):
        got = f"{str(g_idx.dtype)[6:]} of shape {tuple(g_idx.shape)}"
        raise ValueError(f"g_idx must be an integer tensor of shape ({k},), got {got}")
    _must_be_in("g_idx", g_idx, 0, groups - 1)
    counts = torch.bincount(g_idx, minlength=groups)
    if k and bool((counts * groups != k).any()):
        rule = f"give each of the {groups} groups as many of the K={k} rows"
        raise ValueError(f"g_idx must {rule}, got {counts.tolist()[:8]}")
    order = torch.argsort(g_idx, stable=True)
    if bool((order == torch.arange(k, device=order.device)).all()):
        return None
    return order.to(torch.int32)


def shown(t: Tensor) -> str:
    """What a buffer is, in the words of a refusal."""
    kind = "a negated view of " if t.is_neg() else ""
    at = f"strides {t.stride()} from element {t.storage_offset()}"
    return f"{kind}{str(t.dtype)[6:]} of shape {tuple(t.shape)}, {at}, on {t.device}"
