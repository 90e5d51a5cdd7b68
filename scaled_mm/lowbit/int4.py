"""`Int4`, an int4 weight with nothing packed, and the packings of AWQ's and GPTQ's checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .gptq import from_gptq_words, to_gptq_words
from .grouped import must_be_in, order_of
from .words import pack, unpack


@dataclass(frozen=True)
class Int4:
    """An int4 weight with nothing packed: W[k, n] = (q[k, n] - zeros[g, n]) * scales[g, n].

    Attributes:
        q: uint8 [K, N], 0..15.
        scales: floating [K/G, N].
        zeros: uint8 [K/G, N], 0..15.
        g_idx: int32 [K], the group g of each row k; None: k // G.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor
    g_idx: Tensor | None = None

    def dequantize(self) -> Tensor:
        """W [K, N], of the scales' dtype, each element rounded once."""
        groups = self.group_of_rows()
        d = self.q.to(torch.int16) - self.zeros.to(torch.int16)[groups]
        return d.to(self.scales.dtype) * self.scales[groups]

    def group_of_rows(self) -> Tensor:
        """int64 [K], the group of each row.

        Raises:
            ValueError: g_idx names a group that is not there; or, without it, G does not divide K.
        """
        k, groups = len(self.q), len(self.scales)
        if self.g_idx is not None:
            if k and not 0 <= int(self.g_idx.min()) <= int(self.g_idx.max()) < groups:
                got = f"{int(self.g_idx.min())}..{int(self.g_idx.max())}"
                raise ValueError(f"g_idx must be in 0..{groups - 1}, got {got}")
            return self.g_idx.long()
        if k and (groups == 0 or k % groups):
            raise ValueError(
                f"scales must have K/G rows with G dividing K={k}, got {groups} groups"
            )
        return torch.arange(k, device=self.q.device) // max(1, k // max(1, groups))

    def in_order(self) -> tuple[Int4, Tensor | None]:
        """The same weight with rows of a group side by side, and where each row came from.

        Returns:
            The weight, without g_idx, and `order` int64 [K] such that `x @ W` is
            `x[..., order] @ W_ordered`; None where the rows were in order already.

        Raises:
            ValueError: groups of unequal size, or g_idx names a group that is not there.
        """
        if self.g_idx is None:
            return self, None
        found = order_of(self.g_idx, len(self.q), len(self.scales))
        if found is None:
            return replace(self, g_idx=None), None
        order = found.long()
        return Int4(self.q[order], self.scales, self.zeros), order

    def out_of_order(self, order: Tensor) -> Int4:
        """The inverse of `in_order`: rows back where they came from, and the g_idx for it."""
        q, g_idx = torch.empty_like(self.q), torch.empty_like(order, dtype=torch.int32)
        q[order] = self.q
        g_idx[order] = self.group_of_rows().to(torch.int32)
        return Int4(q, self.scales, self.zeros, g_idx)


class Awq(NamedTuple):
    """What an AWQ checkpoint holds for a linear layer, in the order that the ops take it."""

    qweight: Tensor  # int32 [K, N/8]
    scales: Tensor  # [K/G, N]
    qzeros: Tensor  # int32 [K/G, N/8]


class Gptq(NamedTuple):
    """What a GPTQ checkpoint holds: words along K, and zero points along N in plain order."""

    qweight: Tensor  # int32 [K/8, N]
    scales: Tensor  # [K/G, N]
    qzeros: Tensor  # int32 [K/G, N/8]; version 1 stores z - 1
    g_idx: Tensor | None  # int32 [K]; None: k // G


def from_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Int4:
    """An AWQ checkpoint's weight, unpacked."""
    return Int4(unpack(qweight), scales, unpack(qzeros))


def to_awq(weight: Int4) -> Awq:
    """The weight in AWQ's packing, which knows no g_idx: see `Int4.in_order`.

    Raises:
        ValueError: the weight has a g_idx, or values that are not in 0..15.
    """
    if weight.g_idx is not None:
        raise ValueError("weight must have its groups in order (Int4.in_order), got a g_idx")
    _must_be_nibbles(q=weight.q, zeros=weight.zeros)
    return Awq(pack(weight.q), weight.scales, pack(weight.zeros))


def from_gptq(
    qweight: Tensor, scales: Tensor, qzeros: Tensor, g_idx: Tensor | None = None, *, version: int
) -> Int4:
    """A GPTQ checkpoint's weight, unpacked.

    Args:
        qweight: int32 [K/8, N].
        scales: [K/G, N].
        qzeros: int32 [K/G, N/8].
        g_idx: int32 [K], the group of each row ("act-order" when it is not sorted), or None.
        version: 1 or 2, which the checkpoint's config tells ("gptq" or "gptq_v2") and the tensors
            do not: version 1 stores z - 1, modulo 16.
    """
    q, zeros = from_gptq_words(qweight, qzeros, version=version, bits=4)
    return Int4(q, scales, zeros, g_idx)


def to_gptq(weight: Int4, *, version: int) -> Gptq:
    """The weight in GPTQ's packing, of version 1 or 2; K must be a multiple of 8."""
    _must_be_nibbles(q=weight.q, zeros=weight.zeros)
    qweight, qzeros = to_gptq_words(weight.q, weight.zeros, version=version, bits=4)
    return Gptq(qweight, weight.scales, qzeros, weight.g_idx)


def _must_be_nibbles(**tensors: Tensor) -> None:
    for name, values in tensors.items():
        if not values.is_meta:
            must_be_in(name, values, 0, 15)
