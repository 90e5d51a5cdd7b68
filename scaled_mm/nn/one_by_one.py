"""Packed weights of few bits of several experts, and products by them, one expert after the other.
They wait for the device at each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.mixed import mixed_mm
from ..ops.mixed_weight import MixedWeight


@dataclass(frozen=True)
class PackedExperts:
    """The packed weights of E experts in one buffer.

    Attributes:
        data: [E, elements], an expert's buffer in each row, behind it up to 15 bytes of nothing.
        like: each of them, on the meta device.
    """

    data: Tensor
    like: MixedWeight

    @classmethod
    def of(cls, experts: Sequence[MixedWeight]) -> PackedExperts:
        first = experts[0].data
        more = -first.numel() % (16 // first.itemsize)
        data = torch.stack([functional.pad(each.data, (0, more)) for each in experts])
        return cls(data, experts[0].on(first.to("meta")))

    def on(self, data: Tensor) -> PackedExperts:
        """The same, whose buffer was copied to other memory."""
        return PackedExperts(data, self.like)

    def __getitem__(self, expert: int) -> MixedWeight:
        return self.like.on(self.data[expert, : self.like.data.numel()])

    def __len__(self) -> int:
        return len(self.data)


def grouped_mixed_mm(
    x: Tensor,
    w: PackedExperts,
    offsets: Tensor,
    *,
    bias: Tensor | None,
    activation: str | None,
    rows: Tensor | None,
) -> Tensor:
    """`mixed_mm` of each expert's rows, as `grouped_mm` has them."""
    ends = offsets.tolist()
    parts = []
    for e, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if begin < end or e == 0:
            at = slice(begin, end) if rows is None else rows[begin:end]
            own = None if bias is None else bias[e]
            parts.append(mixed_mm(x[at], w[e], bias=own, activation=activation))
    y = torch.cat(parts)
    count = len(x if rows is None else rows)
    return functional.pad(y, (0, 0, 0, count - len(y)))  # rows that are no expert's
