"""Products of sorted rows by stacked weights, one expert after the other: what `grouped_mm` and its
kin compute, until they are there. It waits for the device at each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.int8 import scaled_mm
from ..ops.mixed import mixed_mm
from ..ops.mixed_weight import MixedWeight
from ..ops.packed_weight import PackedWeight

Packed = PackedWeight | MixedWeight


@dataclass(frozen=True)
class PackedExperts:
    """The packed weights of E experts in one buffer.

    Attributes:
        data: [E, elements], an expert's buffer in each row, behind it up to 15 bytes of nothing.
        like: each of them, on the meta device.
    """

    data: Tensor
    like: Packed

    @classmethod
    def of(cls, experts: Sequence[Packed]) -> PackedExperts:
        first = experts[0].data
        more = -first.numel() % (16 // first.itemsize)
        data = torch.stack([functional.pad(each.data.flatten(), (0, more)) for each in experts])
        return cls(data, _on(experts[0], first.to("meta")))

    def on(self, data: Tensor) -> PackedExperts:
        """The same, whose buffer was copied to other memory."""
        return PackedExperts(data, self.like)

    def __getitem__(self, expert: int) -> Any:
        return _on(self.like, self.data[expert, : self.like.data.numel()])

    def __len__(self) -> int:
        return len(self.data)


def _on(packed: Packed, data: Tensor) -> Packed:
    if isinstance(packed, MixedWeight):
        return packed.on(data)
    return PackedWeight(data, packed.k, packed.n)


def moe_sort(top_k_index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The token of each sorted row, where the rows of each expert end, and of each sorted row its
    place in top_k_index."""
    flat = top_k_index.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=num_experts).cumsum(0)
    return (order // top_k_index.shape[1]).int(), ends.int(), order.int()


def moe_combine(y: Tensor, top_k_weights: Tensor, order: Tensor) -> Tensor:
    """[T, N] of y's dtype: each token's rows by their weights, added in float32 in the order of
    k."""
    rows = torch.empty_like(y).index_copy_(0, order.long(), y)
    tokens, k = top_k_weights.shape
    parts = rows.view(tokens, k, y.shape[1]).float() * top_k_weights.float().unsqueeze(-1)
    out = parts[:, 0]
    for at in range(1, k):
        out = out + parts[:, at]
    return out.to(y.dtype)


def grouped_mm(
    a: Tensor,
    b: PackedExperts,
    offsets: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None,
    azp: Tensor | None,
    azp_adj: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype,
    rows: Tensor | None,
) -> Tensor:
    """`scaled_mm` of each expert's rows by its b [K, N]."""
    parts = []
    for e, at in _groups(offsets, rows):
        terms = {} if azp is None or azp_adj is None else {"azp": azp[at], "azp_adj": azp_adj[e]}
        own = None if bias is None else bias[e]
        options = {"bias": own, "activation": activation, "out_dtype": out_dtype, **terms}
        parts.append(scaled_mm(a[at], b[e], scale_a[at], scale_b[e], **options))  # type: ignore[arg-type]
    return torch.cat(parts)


def grouped_mixed_mm(
    x: Tensor,
    w: PackedExperts,
    offsets: Tensor,
    *,
    bias: Tensor | None,
    activation: str | None,
    rows: Tensor | None,
) -> Tensor:
    """`mixed_mm` of each expert's rows."""
    parts = []
    for e, at in _groups(offsets, rows):
        own = None if bias is None else bias[e]
        parts.append(mixed_mm(x[at], w[e], bias=own, activation=activation))
    return torch.cat(parts)


def _groups(offsets: Tensor, rows: Tensor | None) -> Iterator[tuple[int, slice | Tensor]]:
    """Experts that have rows, and the first; where these are in the unsorted operand."""
    begin = 0
    for e, end in enumerate(offsets.tolist()):
        if begin < end or e == 0:
            yield e, slice(begin, end) if rows is None else rows[begin:end]
        begin = end
