"""Weights to 8 or 4 bits in groups: the quantisers of weight-only layers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_AT_ONCE = 1 << 24
"""Elements that are quantised together: the float32 temporaries take some 16 bytes for each."""
HALVES = (torch.float16, torch.bfloat16)


class GroupedWeight(NamedTuple):
    """A quantised weight with nothing packed, as `scaled_mm.pack_weight` takes it; g = k // G."""

    q: Tensor
    """[K, N]: int8, -2^(bits-1) to 2^(bits-1) - 1, when symmetric; else uint8, 0 to 2^bits - 1."""
    scales: Tensor
    """float16 or bfloat16 [K/G, N]."""
    zeros: Tensor | None
    """uint8 [K/G, N], 0 to 2^bits - 1; None when symmetric."""


def quantize_weight_grouped(
    w: Tensor,
    *,
    bits: int,
    group_size: int = -1,
    symmetric: bool = True,
    dtype: torch.dtype | None = None,
) -> GroupedWeight:
    """Quantises a weight to 8 or 4 bits, each group of inputs of an output by its own range.

        symmetric    s = max|w| / (2^(bits-1) - 1/2)
                     q = clamp(round(w / s), -2^(bits-1), 2^(bits-1) - 1)           w ~ q s
        asymmetric   lo, hi = min(0, min w), max(0, max w)
                     s = (hi - lo) / (2^bits - 1)
                     z = clamp(round(-lo / s), 0, 2^bits - 1)
                     q = clamp(round(w / s) + z, 0, 2^bits - 1)                     w ~ (q - z) s

    in float32, rounding half to even. s is rounded to its dtype before w is divided by it, so q
    belongs to the scale that is stored; it is at least the dtype's smallest normal number. The
    symmetric range ends half a step beyond its largest level. So every w is at most s / 2 away from
    its level, but for the ends of a range whose s was rounded down: there bfloat16 adds up to
    s / 2 with 8 bits (s / 30 with 4), float16 an eighth of that.

    Args:
        w: floating [N, K], any strides, as in `torch.nn.Linear`.
        bits: 4 or 8.
        group_size: inputs G that share a scale, a divisor of K; -1: all of them, which is a
            scale for each output channel.
        symmetric: without zero points.
        dtype: of the scales, float16 or bfloat16; None: w's own, bfloat16 of a wider one.

    Returns:
        A `GroupedWeight`: q [K, N], as `scaled_mm.pack_weight` and `mixed_mm` take it.

    Raises:
        ValueError: an argument breaks a rule above; w holds what is not finite, or values that
            would not be finite in the scales' dtype once they are multiplied back.

    Source: the min-max observer of compressed-tensors, which rounds s later or not at all.
    """
    if not isinstance(w, Tensor):
        raise TypeError(f"w must be a Tensor, got {type(w).__name__}")
    if w.is_nested or w.layout is not torch.strided or w.is_meta:
        raise ValueError("w must be a dense tensor with values, got another kind")
    if w.ndim != 2 or not w.is_floating_point():
        kind = f"{str(w.dtype)[6:]} of shape {tuple(w.shape)}"
        raise ValueError(f"w must be floating of shape [N, K], got {kind}")
    if not isinstance(bits, int) or bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits!r}")
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in HALVES):
        raise ValueError(f"dtype must be float16 or bfloat16, got {str(dtype).split('.')[-1]}")
    k = w.shape[1]
    group = group_rows(k, group_size)
    dtype = dtype or scales_dtype(w.dtype)
    made = [
        _quantized(part.detach(), bits, group, symmetric, dtype)
        for part in w.split(max(1, _AT_ONCE // max(1, k)))
    ]
    q, scales, zeros = (torch.cat(parts).t().contiguous() for parts in zip(*made, strict=True))
    return GroupedWeight(q, scales, None if symmetric else zeros)


def scales_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the scales of a weight of a dtype where nothing is said: the same, or what has its
    range."""
    return dtype if dtype in HALVES else torch.bfloat16


def group_rows(k: int, group_size: int) -> int:
    """G of a group_size, which is -1 for all K rows; ValueError where G does not divide K."""
    if not isinstance(group_size, int):
        raise TypeError(f"group_size must be an int, got {type(group_size).__name__}")
    group = max(1, k) if group_size == -1 else group_size
    if group < 1 or k % group:
        raise ValueError(f"group_size must divide K={k} (or be -1), got {group_size}")
    return group


def _quantized(
    rows: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Of some output channels [N, K]: q [N, K], scales and zeros [N, K/G]."""
    w = rows.float().unflatten(1, (-1, group)) if rows.shape[1] else rows.float().unsqueeze(-1)
    half, levels = 1 << (bits - 1), (1 << bits) - 1
    zero = w.new_zeros(())
    if symmetric:
        scales = _scales(w.abs().amax(-1) / (half - 0.5), dtype)
        z = torch.zeros_like(scales, dtype=torch.float32)
        ends, reach = (-half, half - 1), torch.full_like(z, half)
    else:
        low, high = w.amin(-1).minimum(zero), w.amax(-1).maximum(zero)
        scales = _scales((high - low) / levels, dtype)
        z = (-low / scales.float()).round().clamp(0, levels)
        ends, reach = (0, levels), z.maximum(levels - z)
    if not bool((reach * scales.float()).to(dtype).isfinite().all()):  # NaN in w is NaN in s
        text = f"w must be finite, and in {str(dtype)[6:]} too once it is multiplied back"
        largest = rows.abs().max().item()
        raise ValueError(f"{text}, got a largest magnitude of {largest:g}")
    q = (w / scales.float().unsqueeze(-1)).round() + z.unsqueeze(-1)
    kind = torch.int8 if symmetric else torch.uint8
    return q.clamp(*ends).to(kind).flatten(1), scales, z.to(torch.uint8)


def _scales(s: Tensor, dtype: torch.dtype) -> Tensor:
    """In their dtype; not so small that a division by them overflows."""
    return s.to(dtype).clamp_min(torch.finfo(dtype).tiny)


def must_be_in(name: str, values: Tensor, low: int, high: int) -> None:
    """ValueError where a value is not, or where there are none to look at."""
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
    must_be_in("g_idx", g_idx, 0, groups - 1)
    counts = torch.bincount(g_idx, minlength=groups)
    if k and bool((counts * groups != k).any()):
        rule = f"give each of the {groups} groups as many of the K={k} rows"
        raise ValueError(f"g_idx must {rule}, got {counts.tolist()[:8]}")
    order = torch.argsort(g_idx, stable=True)
    if bool((order == torch.arange(k, device=order.device)).all()):
        return None
    return order.to(torch.int32)
