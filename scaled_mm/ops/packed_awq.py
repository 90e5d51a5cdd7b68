"""`pack_awq`, `PackedAWQ`: an int4 weight laid out for the kernels, once (docs/lowbit.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .arguments import accept
from .packed_words import INTEGER, join, split, words_elements
from .shapes import awq_sizes

WORDS, UNITS = 0, 1
"""Layouts: AWQ's tensors one behind the other; or units in the tensor cores' register order."""

_PANEL, _DEPTH = 64, 128  # channels and rows of a unit (csrc/problems/lowbit.h)
_WORDS = _PANEL * _DEPTH // 8  # int32 of a unit
_SET = _PANEL * 2 + _PANEL // 2  # bytes: a scale and half a byte of zero point for each channel


@dataclass(frozen=True)
class PackedAWQ:
    """An int4 weight W [K, N] laid out for the kernels by `pack_awq`; `awq_gemm` takes it.

    Opaque, and particular to this version of the library and to the device: keep AWQ's tensors in
    checkpoints (`unpack` gives them back) and pack again after loading.

    Nobody may write `data`: a product on CUDA begins to read it while the kernel before on its
    stream still runs (docs/lowbit.md says why that is right after `pack_awq`).

    Attributes:
        data: float16 or bfloat16 [bytes / 2], the buffer; its dtype is that of the scales, its
            elements are not all floats.
        k: rows of W.
        n: columns of W.
        group: rows of W that share scales and zero points.
        layout: 0, AWQ's tensors one behind the other; 1, units.
    """

    data: Tensor
    k: int
    n: int
    group: int
    layout: int

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the weight that was packed."""
        return (self.k, self.n)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that were packed: (qweight, scales, qzeros), bit for bit, as copies.

        Raises:
            ValueError: data has not the size of a packed weight of these sizes.
        """
        size = packed_elements(self.k, self.n, self.group, self.layout)
        if self.data.shape != (size,):
            got = f"shape {tuple(self.data.shape)}"
            sizes = f"K={self.k}, N={self.n}, G={self.group}"
            raise ValueError(f"data must be of shape ({size},) for {sizes}, got {got}")
        if self.layout == WORDS:
            q, scales, zeros = split(self.data, self.k, self.n, self.group, 4, INTEGER)
            assert zeros is not None
            return q.clone(), scales.clone(), zeros.clone()
        return _from_units(self, self.k // self.group)

    @property
    def sizes(self) -> list[int]:
        """What the ops take to know the buffer: (K, N, G, bits, kind of zero point, layout)."""
        return [self.k, self.n, self.group, 4, INTEGER, self.layout]


torch.export.register_dataclass(PackedAWQ, serialized_type_name="scaled_mm.PackedAWQ")


def pack_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> PackedAWQ:
    """Lays an int4 weight out the way the kernels read it best, once for many products.

    On a GPU of compute capability 9.0 a weight whose groups are of a multiple of 32 rows becomes
    units of 64 channels by 128 rows, each with its scales and zero points, in the order of the
    tensor cores' registers (docs/lowbit.md); K is padded to whole units, N too. Elsewhere the three
    tensors lie one behind the other.

    Args:
        qweight, scales, qzeros: as for `awq_dequantize`.

    Returns:
        A `PackedAWQ`, of as many bytes as the three tensors and the padding; groups of more or
        less than 128 rows may take up to 4 % more for a copy of their scales in every unit.

    Raises:
        ValueError: the tensors are no int4 weight in AWQ's words.
        TypeError: an operand is no tensor.
    """
    accept({"qweight": qweight, "scales": scales, "qzeros": qzeros})
    for name, words in (("qweight", qweight), ("qzeros", qzeros)):
        if words.dtype != torch.int32:
            raise ValueError(f"{name} must be int32, got {str(words.dtype)[6:]}")
    if scales.dtype not in (torch.float16, torch.bfloat16):
        got = str(scales.dtype)[6:]
        raise ValueError(f"scales must be float16 or bfloat16, got {got}")
    k, n = awq_sizes(qweight, scales, qzeros)
    group = k // scales.shape[0] if k else 0
    layout = _layout(qweight.device, k, n, group)
    make = join if layout == WORDS else to_units
    data = make(qweight, scales, qzeros)
    if data.is_cuda:
        # A kernel that begins early may follow this one, but not what wrote the buffer.
        data.new_zeros(1)
    return PackedAWQ(data, k, n, group, layout)


def _layout(device: torch.device, k: int, n: int, group: int) -> int:
    if device.type != "cuda" or 0 in (k, n) or group % 32:
        return WORDS
    return UNITS if torch.cuda.get_device_capability(device) == (9, 0) else WORDS


def sets_of(group: int) -> int:
    """Rows of scales and zero points of a unit: each serves as many of its rows as it may."""
    return 1 if group % 128 == 0 else 2 if group % 64 == 0 else 4


def packed_elements(k: int, n: int, group: int, layout: int) -> int:
    """16-bit elements of a packed weight."""
    if layout == WORDS:
        return words_elements(k, n, group, 4, INTEGER)
    return -(-k // _DEPTH) * -(-n // _PANEL) * (4 * _WORDS + sets_of(group) * _SET) // 2


# --- layout 1 -------------------------------------------------------------------------------------
#
# Indices, all of them the digits of a row k and a column n:
#
#   k = 128 chunk + 64 half + 16 step + 8 i + 2 t + r        n = 64 panel + 16 w + 8 e + 2 g + h
#
# Word (w, e, g, t) of a step holds nibble 2 i + h + 4 r; it is lane 16 e + 4 g + t of warp w.


def _nibbles() -> Iterator[tuple[int, int, int, int, int]]:
    """(g, i, r), for both h, with the shift of that nibble in AWQ's word and in a unit's."""
    for g in range(4):
        for h in range(2):
            for i in range(2):
                for r in range(2):
                    yield g, i, r, 4 * (g + 4 * h), 4 * (2 * i + h + 4 * r)


def _views(words: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """AWQ's words, padded, and the units' with the same dimensions: [chunk, half, step, t, panel,
    w, e] behind [i, r] in the first and [g] in the second."""
    chunks, panels = units.shape[:2]
    rows = words.view(chunks, 2, 4, 2, 4, 2, panels, 4, 2)
    order = units[..., : 4 * _WORDS].view(torch.int32).unflatten(-1, (2, 4, 2, 4, 4, 4))
    return rows.permute(3, 5, 0, 1, 2, 4, 6, 7, 8), order.permute(5, 0, 2, 7, 6, 1, 3, 4)


def _set_groups(chunks: int, k: int, group: int, device: torch.device) -> Tensor:
    """The group of each set of all chunks; one more than there are for those of padding."""
    depth = _DEPTH // sets_of(group)
    rows = torch.arange(0, chunks * _DEPTH, depth, device=device)
    return torch.where(rows < k, rows // group, k // group)


def to_units(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """The buffer of layout 1: 16-bit elements of the scales' dtype."""
    k, n = qweight.shape[0], scales.shape[1]
    group, device = k // scales.shape[0], qweight.device
    chunks, panels, sets = -(-k // _DEPTH), -(-n // _PANEL), sets_of(k // scales.shape[0])
    size = 4 * _WORDS + sets * _SET
    units = torch.zeros((chunks, panels, size), dtype=torch.uint8, device=device)

    padded = torch.nn.functional.pad(qweight, (0, 8 * panels - n // 8, 0, _DEPTH * chunks - k))
    from_rows, to_order = _views(padded, units)
    for g, i, r, awq, mine in _nibbles():
        to_order[g] |= ((from_rows[i, r] >> awq) & 15) << mine

    # Zero points as bytes: channels 2 j and 2 j + 1 of a word.
    pairs = [(qzeros >> 4 * j & 15) | (qzeros >> (16 + 4 * j) & 15) << 4 for j in range(4)]
    zeros = torch.stack(pairs, -1).to(torch.uint8).flatten(1)
    which = _set_groups(chunks, k, group, device)
    columns = _PANEL * panels - n
    sides = (
        (scales.contiguous().view(torch.uint8), 2 * columns, 2 * _PANEL),
        (zeros, columns // 2, _PANEL // 2),
    )
    begin = 4 * _WORDS
    to_sets = units[..., begin:].unflatten(-1, (sets, _SET)).transpose(1, 2)
    begin = 0
    for rows, more, width in sides:
        rows = torch.nn.functional.pad(rows, (0, more, 0, 1))[which]
        to_sets[..., begin : begin + width] = rows.view(chunks, sets, panels, width)
        begin += width
    return units.view(-1).view(scales.dtype)


def _from_units(packed: PackedAWQ, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    k, n = packed.shape
    chunks, panels, sets = -(-k // _DEPTH), -(-n // _PANEL), sets_of(packed.group)
    units = packed.data.view(torch.uint8).view(chunks, panels, -1)
    words = units.new_zeros((chunks * _DEPTH, 8 * panels), dtype=torch.int32)
    rows, order = _views(words, units)
    for g, i, r, awq, mine in _nibbles():
        rows[i, r] |= ((order[g] >> mine) & 15) << awq

    first = torch.arange(groups, device=units.device) * (packed.group * sets // _DEPTH)
    of_sets = units[..., 4 * _WORDS :].unflatten(-1, (sets, _SET)).transpose(1, 2).flatten(0, 1)
    scales, zeros = of_sets[first].split((2 * _PANEL, _PANEL // 2), -1)  # [groups, panels, ...]
    pairs = zeros.to(torch.int32).flatten(1).unflatten(-1, (-1, 4))
    qzeros = sum(
        (pairs[..., j] & 15) << 4 * j | pairs[..., j] >> 4 << (16 + 4 * j) for j in range(4)
    )
    own = torch.contiguous_format
    return (
        words[:k, : n // 8].clone(memory_format=own),
        scales.flatten(1).view(packed.data.dtype)[:, :n].clone(memory_format=own),
        qzeros[:, : n // 8].clone(memory_format=own),
    )
