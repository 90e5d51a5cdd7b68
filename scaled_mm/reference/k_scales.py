"""Products whose scales change along K: int32 sums of groups, added up in float32 in one order
(docs/numerics.md, section 8)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from .arithmetic import Array
from .arrays import as_rows, to_float64, to_numpy

BLOCK = 128
"""Rows and columns of a block of an int8 weight, columns of a group of its activations."""


def slice_columns(k: int) -> int:
    """Columns of K whose groups are one chain of fma; the chains' results are added in order."""
    return max(1024, -(-k // (8 * BLOCK)) * BLOCK)


class Groups(NamedTuple):
    """A product whose groups of `group` columns have scales of their own."""

    a: Array
    """float64 [M, K], whole numbers."""
    b: Array
    """float64 [K, N], whole numbers, zero points subtracted."""
    group: int
    scales: Array
    """float32 [K/group, N]."""
    row_scales: Array | None = None
    """float32 [M, K/group], or none."""
    azp: Array | None = None
    """int64 [M, 1] or [1, 1], or none."""

    def rows(self, part: slice) -> Groups:
        """The same of some rows."""
        rows, azp = self.row_scales, self.azp
        return self._replace(
            a=self.a[part],
            row_scales=None if rows is None else rows[part],
            azp=azp if azp is None or len(azp) == 1 else azp[part],
        )

    def evaluate(self, num: Any) -> Any:
        """The sum over groups of s_g t_g, in the arithmetic `num`: where it is Float32

            t_g = a_g b_g - azp (1 b_g)     int32, wrapping
            f   = fma(s_g, RN32(t_g), f)    in the order of g, from -0 in each slice
            sum = RN32(sum + f)             at the end of a slice, from -0

        and +0 without groups. With row_scales s_g is RN32(row scale * scale)."""
        total = part = None
        columns = slice_columns(self.a.shape[1])
        for g, first in enumerate(range(0, self.a.shape[1], self.group)):
            if part is not None and first // columns != (first - self.group) // columns:
                total, part = part if total is None else num.joined(total, part), None
            k = slice(first, first + self.group)
            t = (self.a[:, k] @ self.b[k]).astype(np.int64)
            if self.azp is not None:
                t = t - self.azp * self.b[k].sum(0).astype(np.int64)
            factors = [self.scales[g : g + 1]]
            if self.row_scales is not None:
                factors.append(self.row_scales[:, g : g + 1])
            part = num.chained(factors, num.integer(t), part)
        if part is None:
            return num.integer(np.zeros((len(self.a), self.b.shape[1]), np.int64))
        return part if total is None else num.joined(total, part)

    def roundings(self) -> int:
        """Of the terms' size, at most: of t, of s, of a slice's chain, of the slices' sum, of the
        scale behind them and what is added; and room."""
        k = self.a.shape[1]
        columns = slice_columns(k)
        chain = max(1, min(-(-k // self.group), -(-columns // self.group)))
        return 5 + chain + -(-k // columns)


def in_blocks(b: Tensor, scale_b: Tensor) -> bool:
    """Whether scale_b has one for each block of b; one block in all is a scale per tensor."""
    blocks = tuple(-(-size // BLOCK) for size in b.shape)
    return tuple(scale_b.shape) == blocks and blocks not in ((1, 1), (1, b.shape[1]))


def of_blocks(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Groups:
    """An int8 product in blocks."""
    q, scales = as_rows(to_float64(a)), np.repeat(to_numpy(scale_b), BLOCK, 1)[:, : b.shape[1]]
    row_scales = to_numpy(scale_a).reshape(len(q), len(scales))
    return Groups(q, to_float64(b), BLOCK, scales, row_scales)


def of_int4(
    x: Tensor,
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    azp: Tensor | None,
    order: Tensor | None,
) -> Groups:
    """An int8 product by a weight of 4 bits (`mixed.py`)."""
    if order is not None:
        x = x.cpu()[..., order.cpu().long()]
    group = len(q) // max(1, len(scales)) or 1
    d = to_float64(q)
    if zeros is not None:
        d = d - np.repeat(to_float64(zeros), group, 0)
    zero_points = None if azp is None else to_numpy(azp).reshape(-1, 1)
    return Groups(as_rows(to_float64(x)), d, group, to_numpy(scales), None, zero_points)
