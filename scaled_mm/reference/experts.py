"""Mixtures of experts: products of each expert's rows, and what sorts and sums tokens for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arithmetic import FORMATS, round_to
from .arrays import to_numpy, to_tensor
from .float_mode import ieee
from .functions import GATES
from .int8 import scaled_mm


@ieee()
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    rows: Tensor | None = None,
    **ending: Any,
) -> Tensor:
    """R1 of `scaled_mm.grouped_mm`: `scaled_mm` of each expert's rows; 0 behind all."""
    source = torch.arange(len(a)) if rows is None else rows.cpu().long()
    parts, begin = [], 0
    for e, end in enumerate(offsets.tolist()):
        given: dict[str, Any] = {}
        for name, x in {"scale_a": scale_a, "scale_b": scale_b, **ending}.items():
            if name in ("scale_b", "bias", "azp_adj"):
                given[name] = None if x is None else x[e]
            elif not isinstance(x, Tensor) or (name != "residual" and x.numel() == 1):
                given[name] = x
            else:
                at = source[begin:end] if name in ("scale_a", "azp") else slice(begin, end)
                given[name] = x[at]
        parts.append(scaled_mm(a[source[begin:end]], b[e], **given))
        begin = end
    dtype = ending.get("out_dtype", torch.bfloat16)
    n = b.shape[2] // (2 if ending.get("activation") in GATES else 1)
    return torch.cat([*parts, torch.zeros(len(source) - begin, n).to(dtype)])


def moe_sort(top_k_index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """`scaled_mm.moe_sort`, token by token: rows, offsets, places."""
    k = top_k_index.shape[1]
    experts = [e if 0 <= e < num_experts else num_experts for e in top_k_index.flatten().tolist()]
    order = sorted(range(len(experts)), key=lambda place: experts[place])
    ends = [sum(of <= e for of in experts) for e in range(num_experts)]
    rows, offsets = (torch.tensor(x, dtype=torch.int32) for x in ([i // k for i in order], ends))
    places = torch.empty(top_k_index.numel(), dtype=torch.int32)
    places[order] = torch.arange(len(order), dtype=torch.int32)
    return rows, offsets, places.view(top_k_index.shape)


@ieee()
def moe_combine(
    y: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """R1 of `scaled_mm.moe_combine`: RN32(w y) for each part, added in float32 in the order of j,
    the residual last; then rounded once."""
    values, factors, row_of = to_numpy(y), to_numpy(weights), to_numpy(places)
    tokens, k = factors.shape
    total = np.zeros((tokens, values.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for j in range(k):
            part = factors[:, j, None] * values[row_of[:, j]]
            total = part if j == 0 else total + part
        if residual is not None:
            total = total + to_numpy(residual)
    to = out_dtype or y.dtype
    return to_tensor(round_to(total.astype(np.float64), FORMATS[to]), total.shape, to)
