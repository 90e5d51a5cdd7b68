"""Factors that a quantiser moved from layer to layer, found by comparing the two models' weights.

SmoothQuant and AWQ multiply input channel j of a weight by s_j and divide whatever makes that
channel: a norm's weight, or the rows of the Linear in front (`v_proj` before `o_proj`, `up_proj`
before `down_proj`). The model computes the same as before; but a layer's input is the float
model's divided by s, and its output the float model's times r where the next layer's factors went
into its rows:

    W_quantised ~= diag(r) W_float diag(s)

To compare a layer with its float original, both are undone. They are believed only where the other
side of the division is found: s where a norm's weights have just that ratio in the two models (then
that ratio, which is exact, is s), or where another layer's r is 1 / s. A factor on one side alone
is an error, and stays one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..nn import ScaledBlockLinear, ScaledLinear, WeightOnlyLinear

NOTICED = 0.02
"""Factors that spread less, as the root mean square of their logarithms, are rounding."""
ALIKE = 0.05
"""So near must two sides of a division be: of int4 with few rows they are known that well."""
_ROUNDS = 6


@dataclass(frozen=True)
class Fold:
    """What was moved into and out of one layer; None: nothing."""

    into: Tensor | None = None
    """s, float32 [K]: the float model's input is the layer's times s."""
    out: Tensor | None = None
    """r, float32 [N]: the layer's output is the float model's times r."""


@torch.no_grad()
def find_folds(
    model: nn.Module,
    quantised: nn.Module,
    originals: Mapping[str, nn.Linear],
    layers: Mapping[str, nn.Module],
) -> dict[str, Fold]:
    """Name -> `Fold` of every layer.

    Args:
        model, quantised: the float model and the quantised one, whose norms are compared.
        originals: name -> Linear of the float model.
        layers: name -> the quantised layers.
    """
    norms = list(_norm_ratios(model, quantised))
    into: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    open_ones: dict[str, Tensor] = {}  # columns have factors that no norm explains
    for name, layer in layers.items():
        w = originals[name].weight.detach().float()
        own = weight_of(layer).to(w.device)
        given = getattr(layer, "folded_smooth", None)
        if given is None:
            columns = _columns(w, own)
            given = _alike(columns, [s for s in norms if len(s) == len(columns)])
            if given is None and _spread(columns) > NOTICED:
                open_ones[name] = columns
        if given is not None:
            into[name] = given.to(w.device)
        rows[name] = _ratio(own, w * into[name] if name in into else w, 1)
    out: dict[str, Tensor] = {}
    for name, columns in open_ones.items():
        k = len(columns)  # of a fused layer in front it is the last rows that go on to this one
        sources = {p: 1 / r[-k:] for p, r in rows.items() if p != name and len(r) >= k}
        found = _alike(columns, list(sources.values()))
        if found is not None:
            into[name] = found
            source = next(p for p, s in sources.items() if s is found)
            out[source] = torch.cat([torch.ones_like(rows[source][:-k]), 1 / found])
    return {name: Fold(into.get(name), out.get(name)) for name in layers}


def weight_of(layer: nn.Module) -> Tensor:
    """W, float32 [N, K], that the layer multiplies its input by."""
    if isinstance(layer, WeightOnlyLinear):
        w = layer.filled().dequantize().float().t()
        return w if layer.pre_scale is None else w * layer.pre_scale
    assert isinstance(layer, ScaledLinear | ScaledBlockLinear)
    return layer.weight


def _norm_ratios(model: nn.Module, quantised: nn.Module) -> Iterator[Tensor]:
    """What the norms' weights were divided by, of those that were: float / quantised. Of norms that
    multiply by 1 + weight (Gemma's) it is the ratio of that."""
    others = dict(quantised.named_modules())
    for name, module in model.named_modules():
        before, after = (getattr(m, "weight", None) for m in (module, others.get(name)))
        if not isinstance(before, Tensor) or not isinstance(after, Tensor):
            continue
        if before.ndim != 1 or before.shape != after.shape or torch.equal(before, after):
            continue
        for one in (0, 1):
            s = (before.detach().float() + one) / (after.detach().to(before.device).float() + one)
            s = s.where(s.isfinite(), 1.0)  # 0 / 0: the channel is 0
            if bool((s > 0).all()):
                yield s


def _columns(w: Tensor, own: Tensor) -> Tensor:
    """s [K] of the least |own - diag(r) w diag(s)|^2, by turns with r."""
    rows = torch.ones_like(w[:, 0])
    for _ in range(_ROUNDS):
        columns = _ratio(own, w * rows[:, None], 0)
        before, rows = rows, _ratio(own, w * columns, 1)
        if _spread(rows / before) < NOTICED / 10:
            break
    return columns


def _ratio(own: Tensor, w: Tensor, dim: int) -> Tensor:
    """By what w is to be multiplied, along the other dimension, to come nearest own; 1 where that
    makes no sense."""
    ratio = (own * w).sum(dim) / w.square().sum(dim)
    return ratio.where(ratio.isfinite() & (ratio > 0), 1.0)


def _spread(factors: Tensor) -> float:
    """Root mean square of the logarithms, their mean taken away: a common factor is no matter."""
    logs = factors.log()
    return float((logs - logs.mean()).square().mean().sqrt()) if len(logs) else 0.0


def _alike(columns: Tensor, candidates: list[Tensor]) -> Tensor | None:
    """The candidate that explains the columns' factors, and better than none at all."""
    found = min(candidates, key=lambda s: _spread(columns / s), default=None)
    if found is None or _spread(columns / found) > min(ALIKE, _spread(columns) / 2):
        return None
    return found
