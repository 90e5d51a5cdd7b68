"""`PackedWeight`: a weight laid out for the kernels, once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._torch import is_exporting

_PANEL, _GROUP = 16, 4  # csrc/cpu/packed.h: columns of a panel, rows of a group
_FLIP = -128  # 0x80: the CPU's elements are b ^ 0x80
_ROW = 16  # csrc/cuda/common/relayout.h: rows are padded to whole 16 bytes, at least one


@dataclass(frozen=True)
class Packed:
    """What the packed weights share: a buffer, which products may be allowed to read early."""

    data: Tensor
    settled: ClassVar[bool] = False  # by `settle`: of this object alone, no copy has it

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class PackedWeight(Packed):
    """A weight B [K, N] laid out for the kernels by `pack_weight_int8`; pass it wherever `b` goes.

    Opaque, and particular to this version of the library and to the device: keep the plain int8
    weight in checkpoints (`unpack` gives it back) and pack it again after loading.

    Nobody writes the buffer after `pack_weight_int8` has. On CUDA products rely on it: they read
    the buffer before the kernels queued ahead of them have ended ("Early weights" in
    docs/tuning.md). As with any tensor, a product belongs on the stream that packed, or on one that
    was made to wait for it. A copy, whether by `copy`, by pickle or by this constructor, is read
    after those kernels have ended; packing again makes one that is read early.

    Attributes:
        data: uint8 [bytes], the buffer; of a stack [E, bytes].
        k: rows of B.
        n: columns of B.
    """

    data: Tensor
    k: int
    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, N), the shape of the weight that was packed; of a stack (E, K, N)."""
        return (*self.data.shape[:-1], self.k, self.n)

    def on(self, data: Tensor) -> PackedWeight:
        """The same weight, whose buffer was copied to other memory; or one of a stack."""
        return PackedWeight(data, self.k, self.n)

    def unpack(self) -> Tensor:
        """The weight that was packed: int8 [K, N], the transpose of a contiguous [N, K] tensor; of
        a stack [E, K, N].

        Exact, and a copy: writing into it does not change the packed weight.

        Raises:
            ValueError: data has not the size of a packed [K, N] weight on its device.
        """
        if self.data.dim() == 2:
            each = [self.on(data).unpack().t() for data in self.data]
            return torch.stack(each).mT if each else self.data.new_empty(self.shape).char()
        return rows(self).t()


def settle(packed: Packed) -> None:
    """From now on products may read it early. Its buffer was written before an ordinary launch on
    the current stream of its GPU (the op `_settle` is one), and is not written any more."""
    object.__setattr__(packed, "settled", True)


def settle_written(packed: Packed) -> None:
    """The same of what torch's kernels wrote: on a GPU an ordinary launch follows them here."""
    if packed.data.is_cuda and not torch.compiler.is_compiling():
        packed.data.new_zeros(1)
        settle(packed)


def is_read_early(packed: Packed) -> bool:
    """Whether a product is told to; an exported program gets its buffers from elsewhere."""
    return packed.settled and not is_exporting()


def rows(packed: PackedWeight) -> Tensor:
    """The weight that was packed as its transpose, int8 [N, K], in memory of its own."""
    unpacked = _cuda_rows if packed.data.is_cuda else rows_of_panels
    return unpacked(packed.data, packed.k, packed.n)


def rows_of_panels(data: Tensor, k: int, n: int) -> Tensor:
    """`rows` of the CPU's layout, on any device."""
    panels, groups = -(-n // _PANEL), -(-k // _GROUP)
    _check_size(data, panels * (groups + 1) * _PANEL * _GROUP, k, n)
    # A word is the four k of a group of one column; the last group of a panel is skew.
    words = data.view(torch.int32).view(panels, groups + 1, _PANEL)[:, :groups].transpose(1, 2)
    padded = data.new_empty((panels * _PANEL, groups * _GROUP), dtype=torch.int8)
    if not padded.numel():
        return padded.new_empty((n, k))
    padded.view(torch.int32).view(panels, _PANEL, groups).copy_(words)
    padded.bitwise_xor_(_FLIP)
    return padded if padded.shape == (n, k) else padded[:n, :k].clone(**_CONTIGUOUS)


def _cuda_rows(data: Tensor, k: int, n: int) -> Tensor:
    stride = max(_ROW, -(-k // _ROW) * _ROW)
    _check_size(data, n * stride, k, n)
    return data.view(torch.int8).view(n, stride)[:, :k].clone(**_CONTIGUOUS)


_CONTIGUOUS = {"memory_format": torch.contiguous_format}


def _check_size(data: Tensor, size: int, k: int, n: int) -> None:
    if data.dtype != torch.uint8 or data.shape != (size,):
        kind = f"{str(data.dtype)[6:]} of shape {tuple(data.shape)}"
        raise ValueError(f"data must be uint8 of shape ({size},) for K={k} and N={n}, got {kind}")


torch.export.register_dataclass(PackedWeight, serialized_type_name="scaled_mm.PackedWeight")


def weight_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """What the ops take for a weight: its tensor, and its shape when that is a packed buffer."""
    return (b.data, {"b_shape": [*b.shape]}) if isinstance(b, PackedWeight) else (b, {})


def factor_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """The same for products, which may be told more of a packed buffer."""
    if not isinstance(b, PackedWeight):
        return b, {}
    packed: dict[str, Any] = {"b_shape": [b.k, b.n]}
    if is_read_early(b):
        packed["b_settled"] = True
    return b.data, packed
