"""Layout 1 of a packed weight: units, in the order of the tensor cores' registers (docs/lowbit.md).

A unit is 64 channels by 128 rows. Its words come first, then its sets of scales and zero points, of
which each serves as many of the unit's rows as a group allows. csrc/problems/lowbit.h has the same
sizes, csrc/cuda/lowbit/units.cuh reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .packed_words import FLOAT, INTEGER

PANEL, DEPTH = 64, 128
"""Channels and rows of a unit."""


def takes(k: int, group: int) -> bool:
    """Whether units hold weights of k rows in groups of `group`."""
    return k > 0 and (group == k or group % 32 == 0)


def layout_for(device: torch.device, k: int, n: int, group: int) -> int:
    """1 where the device's kernels read units of such a weight best, 2 where they read blocks of
    columns; else 0."""
    if device.type == "cpu":
        return 2
    if device.type != "cuda" or n == 0 or not takes(k, group):
        return 0
    return 1


def sets_of(k: int, group: int) -> int:
    """Rows of scales and zero points of a unit."""
    if group == k or group % 128 == 0:
        return 1
    return 2 if group % 64 == 0 else 4


def zero_bytes(bits: int, zero: int) -> int:
    """Of a set. Four bits without zero points have those all the same, 8: values are stored with 8
    added, and one kernel serves both."""
    if zero == FLOAT:
        return 2 * PANEL
    return bits * PANEL // 8 if zero == INTEGER or bits == 4 else 0


def unit_bytes(k: int, group: int, bits: int, zero: int) -> int:
    """Of a unit."""
    return DEPTH * PANEL * bits // 8 + sets_of(k, group) * (2 * PANEL + zero_bytes(bits, zero))


def units_elements(k: int, n: int, group: int, bits: int, zero: int) -> int:
    """16-bit elements of the buffer."""
    return -(-k // DEPTH) * -(-n // PANEL) * unit_bytes(k, group, bits, zero) // 2


# Indices are the digits of a row k and a column n; p is a part of a unit, 16 bytes for each of 128
# lanes. A lane is 4 g + t of warp w:
#
#   4 bits    k = 128 chunk + 64 p + 16 step + 8 i + 2 t + r      n = 64 panel + 16 w + 2 g + h
#   8 bits    k = 128 chunk + 32 p + 16 step + 8 i + 2 t + r
#
# Four bits: word `step` of the lane holds the value in nibble 2 i + h + 4 r.
# Eight:     word 2 step + i has it in byte h + 2 r.

_DIGITS = ("chunk", "p", "step", "i", "t", "r", "panel", "w", "g", "h")
_ORDER = {
    4: ("chunk", "panel", "p", "w", "g", "t", "step", "r", "i", "h"),
    8: ("chunk", "panel", "p", "w", "g", "t", "step", "i", "r", "h"),
}


def _sizes(bits: int, chunks: int, panels: int) -> tuple[int, ...]:
    """Of the digits."""
    parts = bits // 2
    return (chunks, parts, 8 // parts, 2, 4, 2, panels, 4, 8, 2)


def _order(bits: int) -> tuple[int, ...]:
    return tuple(_DIGITS.index(digit) for digit in _ORDER[bits])


def _join(nibbles: Tensor) -> Tensor:
    """Neighbours to a byte, the first in its lower half."""
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


def _split(joined: Tensor) -> Tensor:
    return torch.stack((joined & 15, joined >> 4), -1).flatten(-2)


def _words(stored: Tensor, bits: int) -> Tensor:
    """[chunks, panels, bytes of a unit's words] of values [128 chunks, 64 panels]."""
    chunks, panels = stored.shape[0] // DEPTH, stored.shape[1] // PANEL
    digits = stored.view(_sizes(bits, chunks, panels)).permute(_order(bits))
    ordered = digits.reshape(chunks, panels, -1)
    return _join(ordered) if bits == 4 else ordered


def _values(words: Tensor, bits: int) -> Tensor:
    """The inverse of `_words`."""
    chunks, panels = words.shape[:2]
    ordered, sizes = _split(words) if bits == 4 else words, _sizes(bits, chunks, panels)
    order = _order(bits)
    digits = ordered.reshape([sizes[i] for i in order])
    return digits.permute([order.index(i) for i in range(len(order))]).reshape(
        chunks * DEPTH, panels * PANEL
    )


def _zero_rows(zeros: Tensor | None, scales: Tensor, bits: int, zero: int) -> Tensor | None:
    """uint8 [groups, bytes], the zero points of N channels, padded to whole panels."""
    columns = -scales.shape[1] % PANEL
    if zero == FLOAT:
        assert zeros is not None
        return torch.nn.functional.pad(zeros, (0, columns)).view(torch.uint8)
    if zero_bytes(bits, zero) == 0:
        return None
    plain = torch.full_like(scales, 8, dtype=torch.uint8) if zeros is None else zeros
    padded = torch.nn.functional.pad(plain, (0, columns))
    return _join(padded) if bits == 4 else padded


def _groups_of_sets(chunks: int, k: int, group: int, device: torch.device) -> Tensor:
    """The group of each set of all chunks; one more than there are for those of padding."""
    depth = DEPTH // sets_of(k, group)
    rows = torch.arange(0, chunks * DEPTH, depth, device=device)
    return torch.where(rows < k, rows // group, k // group)


def to_units(
    q: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, zero: int, group: int
) -> Tensor:
    """Lays a weight out in units.

    Args:
        q: uint8 [K, N], the stored values: 0 .. 2^bits - 1.
        scales: float16 or bfloat16 [K / group, N].
        zeros: None; uint8 0 .. 2^bits - 1; or floats of the scales' dtype; [K / group, N].
        bits: 4 or 8.
        zero: what `zeros` are, as in packed_words.py.
        group: rows of W that share scales; K or a multiple of 32 (`takes`).

    Returns:
        The buffer: 16-bit elements of the scales' dtype. K and N are padded to whole units with
        zeros, scales and zero points included.
    """
    (k, n), sets = q.shape, sets_of(len(q), group)
    chunks, panels = -(-k // DEPTH), -(-n // PANEL)
    units = q.new_empty((chunks, panels, unit_bytes(k, group, bits, zero)))
    padding = (0, panels * PANEL - n, 0, chunks * DEPTH - k)
    words = _words(torch.nn.functional.pad(q, padding), bits)
    units[..., : words.shape[-1]] = words

    which = _groups_of_sets(chunks, k, group, q.device)
    of_scales = torch.nn.functional.pad(scales, (0, panels * PANEL - n)).view(torch.uint8)
    to_sets = units[..., words.shape[-1] :].unflatten(-1, (sets, -1)).transpose(1, 2)
    begin = 0
    for rows in (of_scales, _zero_rows(zeros, scales, bits, zero)):
        if rows is None:
            continue
        of_sets = torch.nn.functional.pad(rows, (0, 0, 0, 1))[which].unflatten(-1, (panels, -1))
        width = of_sets.shape[-1]
        to_sets[..., begin : begin + width] = of_sets.view(chunks, sets, panels, width)
        begin += width
    return units.view(-1).view(scales.dtype)


def from_units(
    data: Tensor, k: int, n: int, group: int, bits: int, zero: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inverse of `to_units`: (q, scales, zeros), bit for bit, as copies."""
    chunks, panels, sets = -(-k // DEPTH), -(-n // PANEL), sets_of(k, group)
    units = data.view(torch.uint8).view(chunks, panels, -1)
    words = DEPTH * PANEL * bits // 8
    q = _values(units[..., :words], bits)[:k, :n].clone(memory_format=torch.contiguous_format)

    depth = DEPTH // sets
    first = torch.arange(k // group, device=data.device) * (group // depth)
    of_sets = units[..., words:].unflatten(-1, (sets, -1)).transpose(1, 2).flatten(0, 1)[first]
    scales = of_sets[..., : 2 * PANEL].flatten(1).view(data.dtype)[:, :n].contiguous()
    rows = of_sets[..., 2 * PANEL :].flatten(1)
    zeros = None
    if zero == FLOAT:
        zeros = rows.view(data.dtype)[:, :n].contiguous()
    elif zero == INTEGER:
        zeros = (_split(rows) if bits == 4 else rows)[:, :n].contiguous()
    return q, scales, zeros
