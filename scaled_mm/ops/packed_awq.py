"""`pack_awq`, `PackedAWQ`: an int4 weight laid out for the kernels, once (docs/lowbit.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import accept
from ..lowbit.words import pack, unpack
from .packed_weight import Packed, settle_written
from .packed_words import INTEGER, join, split, words_elements
from .shapes import awq_sizes
from .units import from_units, layout_for, to_units, units_elements

WORDS, UNITS = 0, 1
"""Layouts: AWQ's tensors one behind the other; or units in the tensor cores' register order."""


@dataclass(frozen=True)
class PackedAWQ(Packed):
    """An int4 weight W [K, N] laid out for the kernels by `pack_awq`; `awq_gemm` takes it.

    Opaque, and particular to this version of the library and to the device: keep AWQ's tensors in
    checkpoints (`unpack` gives them back) and pack again after loading.

    Nobody writes `data` after `pack_awq` has. On CUDA products rely on it: they read it before the
    kernels queued ahead of them have ended, and that of a copy afterwards, as `PackedWeight` says.

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

    def on(self, data: Tensor) -> PackedAWQ:
        """The same weight, whose buffer was copied to other memory."""
        return PackedAWQ(data, self.k, self.n, self.group, self.layout)

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
        q, scales, zeros = from_units(self.data, self.k, self.n, self.group, 4, INTEGER)
        assert zeros is not None
        return pack(q), scales, pack(zeros)

    @property
    def sizes(self) -> list[int]:
        """What the ops take to know the buffer: (K, N, G, bits, kind of zero point, layout)."""
        return [self.k, self.n, self.group, 4, INTEGER, self.layout]


torch.export.register_dataclass(PackedAWQ, serialized_type_name="scaled_mm.PackedAWQ")


def pack_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> PackedAWQ:
    """Lays an int4 weight out the way the kernels read it best, once for many products.

    On a GPU a weight whose groups are of a multiple of 32 rows becomes
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
    layout = layout_for(qweight.device, k, n, group)
    if layout == WORDS:
        data = join(qweight, scales, qzeros)
    else:
        data = to_units(unpack(qweight), scales, unpack(qzeros), 4, INTEGER, group)
    packed = PackedAWQ(data, k, n, group, layout)
    settle_written(packed)
    return packed


def packed_elements(k: int, n: int, group: int, layout: int) -> int:
    """16-bit elements of a packed weight."""
    if layout == WORDS:
        return words_elements(k, n, group, 4, INTEGER)
    return units_elements(k, n, group, 4, INTEGER)
