"""`MixedWeight`, `pack_weight`: a weight of 4 or 8 bits laid out for the kernels, once
(docs/lowbit.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import accept, accept_dense, explained, must_be_size
from ..layouts import Layout, restore_weights_of_mixed_gemm
from ..lowbit.gptq import from_gptq_words
from ..lowbit.grouped import HALVES, order_of
from ..lowbit.stored import plain
from ..lowbit.words import must_be_words, signed, unpack, unsigned
from .packed_weight import Packed, settle_written
from .packed_words import FLOAT, INTEGER, NONE, pack_words, unpack_words, words_elements
from .plain_weight import check_plain, shown
from .shapes import awq_sizes, shape_text
from .units import from_units, layout_for, to_units, units_elements

VERSION = 1
"""Of the layouts: another one where a buffer of before would be read wrongly."""

ZEROS = ("none", "integer", "float")
"""Kinds of zero points, by the numbers that the ops take."""

LAYOUT_SIZES: dict[int, Callable[[int, int, int, int, int], int]] = {
    0: words_elements,
    1: units_elements,
    2: partial(words_elements, blocks=True),
}
"""16-bit elements of a buffer of (K, N, G, bits, zero), for each layout."""


class Unpacked(NamedTuple):
    """What a `MixedWeight` was packed from; rows in the order in which the groups lie."""

    q: Tensor
    """int8 [K, N], one value to a byte; uint8 where zero points are integers."""
    scales: Tensor
    """float16 or bfloat16 [K/G, N]."""
    zeros: Tensor | None
    """uint8 [K/G, N], or of the scales' dtype, or None."""
    order: Tensor | None
    """int32 [K]: row k of q belongs to input channel order[k]; None: to channel k."""


@dataclass(frozen=True)
class MixedWeight(Packed):
    """A weight W [K, N] of 4 or 8 bits laid out for the kernels by `pack_weight`; `mixed_mm` takes
    it.

    Opaque, and particular to this version of the format and to the device: keep plain tensors in
    checkpoints (`unpack` gives them back) and pack again after loading.

    Nobody writes `data` after `pack_weight` has. On CUDA products rely on it: they read it before
    the kernels queued ahead of them have ended, and that of a copy afterwards, as `PackedWeight`
    says.

    Attributes:
        data: float16 or bfloat16 [bytes / 2], the buffer; of a stack [E, bytes / 2]. Its dtype is
            that of the scales, its elements are not all floats.
        order: int32 [K], of a stack [E, K]; or None: row k of the buffer is multiplied by column
            order[k] of x. An element outside 0..K-1 is refused on the CPU; on CUDA, where to look
            would be to wait for the device, it stands for the nearest column.
        k: rows of W.
        n: columns of W.
        group: rows that share scales and zero points.
        bits: of a value, 4 or 8.
        zero: "none", "integer" or "float", as `pack_weight` says.
        layout: 0, q, scales and zero points one behind the other; 1, units; 2, as 0, q in blocks
            of 128 columns.
        version: of the format.

    Raises:
        ValueError: version is another than this library's, or a size, bits, zero or layout is none
            that a weight has.
        TypeError: one of them is of another type.
    """

    data: Tensor
    order: Tensor | None
    k: int
    n: int
    group: int
    bits: int
    zero: str
    layout: int
    version: int = VERSION

    def __post_init__(self) -> None:
        if type(self.version) is not int or self.version != VERSION:
            raise ValueError(
                f"version must be {VERSION}, the packed format of this library, got {self.version}"
            )
        for name in ("k", "n", "group"):
            must_be_size(name, getattr(self, name))
        if self.k and (self.group == 0 or self.k % self.group):
            raise ValueError(f"group must divide K={self.k}, got {self.group}")
        for name, known in (("bits", (4, 8)), ("zero", ZEROS), ("layout", tuple(LAYOUT_SIZES))):
            value = getattr(self, name)
            if type(value) is not type(known[0]) or value not in known:
                rule = ", ".join(str(x) for x in known)
                raise ValueError(f"{name} must be one of {rule}, got {value!r}")

    @classmethod
    def from_awq(cls, qweight: Tensor, scales: Tensor, qzeros: Tensor) -> MixedWeight:
        """The weight of an AWQ checkpoint: (q - z) s, 4 bits.

        Args:
            qweight, scales, qzeros: as for `awq_dequantize`.
        """
        accept({"qweight": qweight, "scales": scales, "qzeros": qzeros})
        must_be_words(qweight=qweight, qzeros=qzeros)
        awq_sizes(qweight, scales, qzeros)
        return pack_weight(unpack(qweight), scales, zeros=unpack(qzeros), bits=4)

    @classmethod
    def from_gptq(
        cls,
        qweight: Tensor,
        scales: Tensor,
        qzeros: Tensor,
        g_idx: Tensor | None = None,
        *,
        version: int,
        bits: int = 4,
    ) -> MixedWeight:
        """The weight of a GPTQ checkpoint: (q - z) s.

        Args:
            qweight: int32 [K bits/32, N], values along K, the first in the lowest bits.
            scales: float16 or bfloat16 [K/G, N].
            qzeros: int32 [K/G, ceil(N bits/32)], zero points along N, the first in the lowest bits.
            g_idx: int32 [K], the group of each row ("act-order" when it is not sorted), or None.
            version: 1 or 2, which the checkpoint's config tells and the tensors do not: version 1
                stores z - 1, modulo 2^bits.
            bits: 4 or 8.
        """
        accept({"qweight": qweight, "scales": scales, "qzeros": qzeros})
        q, zeros = from_gptq_words(qweight, qzeros, version=version, bits=bits)
        return pack_weight(q, scales, zeros=zeros, g_idx=g_idx, bits=bits)

    @classmethod
    def from_compressed_tensors(
        cls,
        weight_packed: Tensor,
        weight_scale: Tensor,
        weight_zero_point: Tensor | None = None,
        g_idx: Tensor | None = None,
        *,
        bits: int,
        k: int,
    ) -> MixedWeight:
        """The weight of compressed-tensors' pack-quantized format (W4A16, W8A16): q s, or with zero
        points (q - z) s.

        Args:
            weight_packed: int32 [N, ceil(K bits/32)], q + 2^(bits-1) along K, the first in the
                lowest bits.
            weight_scale: float16 or bfloat16 [N, K/G].
            weight_zero_point: int32 [ceil(N bits/32), K/G], z + 2^(bits-1) along N; or None.
            g_idx: an integer tensor [K], weight_g_idx: the group of each row, or None.
            bits: 4 or 8.
            k: input features; the format's weight_shape is (N, K).
        """
        accept_dense({"weight_packed": weight_packed, "weight_scale": weight_scale})
        made = plain(weight_packed, weight_scale, weight_zero_point, bits=bits, k=k)
        return pack_weight(made.q, made.scales, zeros=made.zeros, g_idx=g_idx, bits=bits)

    @classmethod
    def from_tensorrt_llm(
        cls, prepared: Tensor, scales: Tensor, zeros: Tensor | None = None, *, layout: Layout
    ) -> MixedWeight:
        """A weight that was prepared for TensorRT-LLM's or FasterTransformer's mixed GEMM: q s, or
        with zero points q s + z.

        Args:
            prepared: int8 [K, N], or [K, N/2] with 4 bits (docs/layouts.md).
            scales: float16 or bfloat16 [K/G, N], or [N].
            zeros: of scales' dtype and shape, as the engines have them: multiplied by the scale
                beforehand, and added.
            layout: `scaled_mm.layouts.layout_of` the GPU that it was prepared for; the bytes do not
                tell, and a wrong one gives a wrong weight.
        """
        q = restore_weights_of_mixed_gemm(prepared, layout)
        return pack_weight(q, scales, zeros=zeros, bits=layout.bits)

    @classmethod
    def stack(cls, weights: Sequence[MixedWeight]) -> MixedWeight:
        """Those of E experts in one, for `grouped_mixed_mm`: their buffers one behind the other.

        Raises:
            ValueError: there are none, or they differ in anything but values and order.
        """
        if not weights:
            raise ValueError("weights must have one at least, got none")
        kinds = [(w.data.dim(), w.sizes, w.dtype, w.data.device) for w in weights]
        for number, kind in enumerate(kinds):
            if kind != (1, *kinds[0][1:]):
                raise ValueError(f"weights must be alike, {kinds[0]}, got {kind} at {number}")
        data, order = torch.stack([w.data for w in weights]), None
        if any(w.order is not None for w in weights):
            plain = torch.arange(weights[0].k, device=data.device, dtype=torch.int32)
            order = torch.stack([plain if w.order is None else w.order for w in weights])
        made = replace(weights[0], data=data, order=order)
        settle_written(made)
        return made

    def __getitem__(self, expert: int) -> MixedWeight:
        """One of a stack: of its memory."""
        if self.data.dim() != 2:
            raise TypeError("only a stack of weights has elements")
        order = None if self.order is None else self.order[expert]
        return replace(self, data=self.data[expert], order=order)

    def _each(self) -> list[MixedWeight]:
        return [self[e] for e in range(len(self.data))]

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, N), the shape of the weight that was packed; of a stack (E, K, N)."""
        return (*self.data.shape[:-1], self.k, self.n)

    @property
    def dtype(self) -> torch.dtype:
        """Of the scales, of W, and of the x that it multiplies."""
        return self.data.dtype

    @property
    def sizes(self) -> list[int]:
        """What the ops take to know the buffer: (K, N, G, bits, kind of zero point, layout)."""
        return [self.k, self.n, self.group, self.bits, ZEROS.index(self.zero), self.layout]

    def on(self, data: Tensor) -> MixedWeight:
        """The same weight, whose buffer was copied to other memory."""
        order = None if self.order is None else self.order.to(data.device)
        sizes = self.k, self.n, self.group, self.bits, self.zero, self.layout
        return MixedWeight(data, order, *sizes)

    def unpack(self) -> Unpacked:
        """The tensors that were packed, bit for bit, as copies; of a stack [E, ...] each.

        Raises:
            ValueError: data or order is not what a packed weight of these sizes has.
            TypeError: one of them is no tensor.
        """
        self._check()
        if self.data.dim() == 2:
            parts = zip(*(each.unpack() for each in self._each()), strict=True)
            q, scales, *others = (None if x[0] is None else torch.stack(x) for x in parts)
            assert q is not None and scales is not None
            return Unpacked(q, scales, *others)
        k, n, group, bits, zero, layout = self.sizes
        q, scales, zeros = _UNPACK[layout](self.data, k, n, group, bits, zero)
        if self.zero != "integer":
            q = signed(q, self.bits)
        order = None if self.order is None else self.order.clone()
        return Unpacked(q, scales, zeros, order)

    def dequantize(self) -> Tensor:
        """W [K, N] of the scales' dtype, each element rounded once; row k is input channel k's. Of
        a stack [E, K, N].

        Raises:
            ValueError, TypeError: as `unpack`.
        """
        self._check()
        if self.data.dim() == 2:
            return torch.stack([each.dequantize() for each in self._each()])
        try:
            w: Tensor = torch.ops.scaled_mm.mixed_dequantize(self.data, self.sizes)
        except MemoryError as error:
            raise explained(error, {}) from None
        return self.by_channel(w)

    def by_channel(self, rows: Tensor) -> Tensor:
        """Rows [K, ...] as the buffer has them, in the order of the input channels."""
        if self.order is None:
            return rows
        try:
            return torch.empty_like(rows).index_copy_(0, self.order.long(), rows)
        except IndexError as error:
            raise ValueError(f"order must hold each of 0..{self.k - 1}, got {error}") from None

    def g_idx(self) -> Tensor:
        """int32 [K], the group of each input channel, as GPTQ checkpoints have it.

        Raises:
            ValueError, TypeError: as `unpack`.
        """
        self._check()
        groups = torch.arange(self.k, device=self.data.device, dtype=torch.int32)
        return self.by_channel(groups // max(1, self.group))

    def _check(self) -> None:
        """Of what a weight that was made by hand may hold; `mixed_mm` leaves it to its op."""
        accept_dense({"data": self.data}, {"order": self.order})
        k, n, group, bits, zero, layout = self.sizes
        size = LAYOUT_SIZES[layout](k, n, group, bits, zero)
        data = self.data
        whole = data.is_contiguous() and data.storage_offset() % 8 == 0 and not data.is_neg()
        fits = data.dim() in (1, 2) and data.shape[-1] == size
        if not whole or data.dtype not in HALVES or not fits:
            of = f"K={k}, N={n}, G={group}, {bits} bits"
            rule = f"be a buffer of pack_weight, float16 or bfloat16 of shape ({size},) for {of}"
            raise ValueError(f"data must {rule}, got {shown(data)}")
        order, shape = self.order, (*data.shape[:-1], k)
        if order is not None and (
            order.dtype != torch.int32 or order.shape != shape or order.device != data.device
        ):
            rule = f"be int32 of shape {shape} on the device of data ({data.device})"
            raise ValueError(f"order must {rule}, got {shown(order)}")


torch.export.register_dataclass(MixedWeight, serialized_type_name="scaled_mm.MixedWeight")

_UNPACK: dict[int, Callable[..., tuple[Tensor, Tensor, Tensor | None]]] = {
    0: unpack_words,
    1: from_units,
    2: partial(unpack_words, blocks=True),
}


def pack_weight(
    q: Tensor,
    scales: Tensor,
    *,
    bits: int,
    zeros: Tensor | None = None,
    g_idx: Tensor | None = None,
) -> MixedWeight:
    """Lays a weight of 4 or 8 bits out the way the kernels read it best, once for many products.

        zeros absent:    W[k, n] = q[k, n] * s[g, n]
        zeros integers:  W[k, n] = (q[k, n] - z[g, n]) * s[g, n]
        zeros floats:    W[k, n] = q[k, n] * s[g, n] + z[g, n]          g = k // G, or g_idx[k]

    each rounded once, to the scales' dtype.

    Args:
        q: [K, N], one value to a byte. With integer zeros uint8, 0 .. 2^bits - 1; else int8,
            -2^(bits-1) .. 2^(bits-1) - 1. Or a stack [E, K, N] for `grouped_mixed_mm`, of one
            expert at least; scales, zeros and g_idx are [E, ...] then.
        scales: float16 or bfloat16 [K/G, N]; its number of rows, which must divide K, says what the
            group size G is. [N] for one scale per channel (G = K).
        bits: of a value, 4 or 8.
        zeros: uint8 of the scales' shape, 0 .. 2^bits - 1; or of the scales' dtype and shape.
        g_idx: an integer tensor [K], the group of each row ("act-order" when it is not sorted);
            each group has G rows. None: k // G.

    Returns:
        A `MixedWeight` on q's device.

    Raises:
        ValueError: an operand breaks a rule above.
        TypeError: an operand is no tensor.
    """
    accept_dense({"q": q, "scales": scales}, {"zeros": zeros, "g_idx": g_idx})
    if q.dim() == 3:
        return _pack_stack(q, {"scales": scales, "zeros": zeros, "g_idx": g_idx}, bits)
    if scales.dim() == 1:
        scales = scales[None]
        zeros = zeros[None] if zeros is not None and zeros.dim() == 1 else zeros
    zero = NONE if zeros is None else FLOAT if zeros.is_floating_point() else INTEGER
    check_plain(q, scales, zeros, g_idx, bits, zero)
    k, n = q.shape
    if k == 0:  # no rows, no groups
        scales, zeros = scales[:0], None if zeros is None else zeros[:0]
    groups = len(scales)
    group = k // groups if k else 0
    order = None if g_idx is None else order_of(g_idx, k, groups)
    if order is not None:
        q = q[order.long()]
    stored = q if zero == INTEGER else unsigned(q, bits)
    scales = scales.resolve_neg()
    zeros = None if zeros is None else zeros.resolve_neg()
    layout = layout_for(q.device, k, n, group)
    if layout == 1:
        data = to_units(stored, scales, zeros, bits, zero, group)
    else:
        data = pack_words(stored, scales, zeros, bits, blocks=layout == 2)
    packed = MixedWeight(data, order, k, n, group, bits, ZEROS[zero], layout)
    settle_written(packed)
    return packed


def _pack_stack(q: Tensor, given: dict[str, Tensor | None], bits: int) -> MixedWeight:
    parts: dict[str, Any] = {name: x for name, x in given.items() if x is not None}
    for name, x in parts.items():
        if x.dim() < 2 or len(x) != len(q):
            raise ValueError(f"{name} must be a stack of E={len(q)}, as q, got {shape_text(x)}")
    each = ({name: x[e] for name, x in parts.items()} for e in range(len(q)))
    return MixedWeight.stack([pack_weight(q[e], bits=bits, **own) for e, own in enumerate(each)])
