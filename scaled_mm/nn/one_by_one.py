"""Products of several experts by weights of few bits, as layers call them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..ops.mixed import grouped_mixed_mm, mixed_mm
from ..ops.mixed_weight import MixedWeight


def experts_mixed_mm(
    x: Tensor,
    w: MixedWeight,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """`grouped_mixed_mm`. Its CUDA kernels have not run yet: there it is `mixed_mm` of one expert
    after the other, which waits for the device."""
    if not x.is_cuda:
        return grouped_mixed_mm(x, w, offsets, bias=bias, activation=activation, rows=rows)
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
