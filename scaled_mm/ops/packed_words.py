"""Layouts 0 and 2 of a packed weight: q, scales and zero points one behind the other
(docs/lowbit.md).

    q       4 bits: AWQ's words [K, P/8]; 8 bits: bytes [K, P].    P is N rounded up to 8
    scales  16 bits [K/G, P]
    zeros   integers: packed as q, [K/G, P]; floats: 16 bits [K/G, P]

Layout 2: q is [ceil(N/128), K, 128 columns], one block of columns behind the other, so that each is
read in one go.

Each of the three begins at a multiple of 16 bytes; what is added is zeros. csrc/problems/lowbit.cpp
has the same sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..lowbit.words import pack, unpack

NONE, INTEGER, FLOAT = range(3)
"""Kinds of zero points, as csrc/problems/lowbit.h has them (`ZeroPoint`)."""

_ALIGNED = 16  # bytes
_BLOCK = 128  # columns of layout 2


def _padded(n: int) -> int:
    return -(-n // 8) * 8


def _section_bytes(
    k: int, n: int, group: int, bits: int, zero: int, blocks: bool
) -> tuple[int, int, int]:
    """Of q, scales and zero points, without what is added."""
    groups, columns = k // group if group else 0, _padded(n)
    of_zeros = (0, columns * bits // 8, 2 * columns)[zero]
    of_q = -(-n // _BLOCK) * _BLOCK if blocks else columns
    return k * of_q * bits // 8, 2 * groups * columns, groups * of_zeros


def words_elements(
    k: int, n: int, group: int, bits: int, zero: int, *, blocks: bool = False
) -> int:
    """16-bit elements of the buffer; blocks: of layout 2."""
    sections = _section_bytes(k, n, group, bits, zero, blocks)
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sections) // 2


def join(q: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """The buffer of three sections, whose rows are of the padded width already."""
    parts = [x.contiguous().view(-1).view(torch.uint8) for x in (q, scales, zeros) if x is not None]
    ends = [torch.nn.functional.pad(part, (0, -len(part) % _ALIGNED)) for part in parts]
    return torch.cat(ends).view(scales.dtype)


def split(
    data: Tensor, k: int, n: int, group: int, bits: int, zero: int, blocks: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The three sections of a buffer, of the padded width: views of q and integer zero points as
    words (4 bits) or bytes (8)."""
    sizes = _section_bytes(k, n, group, bits, zero, blocks)
    groups, columns = k // group if group else 0, _padded(n)
    memory, begin, found = data.view(torch.uint8), 0, []
    for size in sizes:
        found.append(memory[begin : begin + size])
        begin += -(-size // _ALIGNED) * _ALIGNED
    whole = torch.int32 if bits == 4 else torch.uint8
    per_row = columns // 8 if bits == 4 else columns
    q = found[0].view(whole)
    if blocks and k and n:
        q = q.view(-1, k, _BLOCK * bits // 8 // q.element_size()).transpose(0, 1).flatten(1)
    else:
        q = q.view(k, per_row)
    scales = found[1].view(data.dtype).view(groups, columns)
    if zero == NONE:
        return q, scales, None
    if zero == FLOAT:
        return q, scales, found[2].view(data.dtype).view(groups, columns)
    return q, scales, found[2].view(whole).view(groups, per_row)


def pack_words(
    q: Tensor, scales: Tensor, zeros: Tensor | None, bits: int, *, blocks: bool = False
) -> Tensor:
    """The buffer of a weight with a byte to each stored value.

    Args:
        q: uint8 [K, N], the stored values: 0 .. 2^bits - 1.
        scales: float16 or bfloat16 [K/G, N].
        zeros: uint8 [K/G, N], or of the scales' dtype, or None.
        bits: 4 or 8.
        blocks: layout 2.
    """
    more = _padded(q.shape[1]) - q.shape[1]

    def widened(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, more)) if more else x

    def stored(x: Tensor) -> Tensor:
        return pack(widened(x)) if bits == 4 else widened(x)

    if zeros is not None:
        zeros = widened(zeros) if zeros.is_floating_point() else stored(zeros)
    if not blocks or not q.numel():
        return join(stored(q), widened(scales), zeros)
    padded = torch.nn.functional.pad(q, (0, -q.shape[1] % _BLOCK))
    rows = (pack(padded) if bits == 4 else padded).unflatten(1, (-(-q.shape[1] // _BLOCK), -1))
    return join(rows.transpose(0, 1), widened(scales), zeros)


def unpack_words(
    data: Tensor, k: int, n: int, group: int, bits: int, zero: int, *, blocks: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inverse of `pack_words`: copies."""
    q, scales, zeros = split(data, k, n, group, bits, zero, blocks)

    def values(x: Tensor) -> Tensor:
        return (unpack(x) if bits == 4 else x)[:, :n].clone(memory_format=torch.contiguous_format)

    def floats(x: Tensor) -> Tensor:
        return x[:, :n].clone(memory_format=torch.contiguous_format)

    of_zeros = None if zeros is None else floats(zeros) if zero == FLOAT else values(zeros)
    return values(q), floats(scales), of_zeros
