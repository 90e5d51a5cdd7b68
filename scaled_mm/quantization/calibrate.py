"""Ranges of activations: what a static scale, and SmoothQuant, are calculated from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from .._progress import progress
from ..ops.quantize import quantize_int8
from ..ops.rotate import rotated
from .observe import Call, observe

BINS = 8192
CLIPPED_ENERGY = 0.01
"""Percentile clipping that cuts off more of a layer's energy than this is warned about."""


class CalibrationWarning(UserWarning):
    """A quantisation that will run, but probably worse than another."""


@dataclass(frozen=True)
class Ranges:
    """The inputs that one layer got during calibration."""

    low: Tensor
    """float32 [K]: the smallest value of each input channel."""
    high: Tensor
    """float32 [K]: the largest."""
    rows: Tensor
    """[rows, K] in the layer's dtype: a sample of the inputs, may be empty."""

    @property
    def absmax(self) -> Tensor:
        """float32 [K]: the largest magnitude of each channel."""
        return torch.maximum(-self.low, self.high)

    def whole(self, s: Tensor | None = None) -> Tensor:
        """float32 [2]: the smallest and the largest element of all channels, divided by s."""
        factor = 1.0 if s is None else 1 / s
        return torch.stack([(self.low * factor).min(), (self.high * factor).max()])

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges(
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            torch.cat([self.rows, other.rows]),
        )


def merge(parts: Iterable[Mapping[str, Ranges]]) -> dict[str, Ranges]:
    """The ranges of several sets of batches as those of one set."""
    joined: dict[str, list[Ranges]] = {}
    for part in parts:
        for name, ranges in part.items():
            joined.setdefault(name, []).append(ranges)
    return {name: reduce(Ranges.__or__, found) for name, found in joined.items()}


def collect(
    model: nn.Module, layers: Mapping[str, nn.Module], calls: Sequence[Call], rows: int = 0
) -> dict[str, Ranges]:
    """Runs the model on the batches and notes the range of every layer's input.

    Args:
        rows: of each layer's inputs, how many to keep at most from each batch, evenly spaced.

    Returns:
        Name -> `Ranges`; a layer that no batch reached has none.

    Raises:
        ValueError: a layer got NaN or infinity.
    """
    found: dict[str, Ranges] = {}

    def widen(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        if not len(x):
            return
        low, high = (extreme.float() for extreme in x.aminmax(dim=0))
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise ValueError(f"calibration must give finite inputs to {name}, got NaN or infinity")
        step = -(-len(x) // rows) if rows else 1
        seen = Ranges(low, high, x[::step].clone() if rows else x[:0].clone())
        found[name] = found[name] | seen if name in found else seen

    with progress("calibrating", len(calls)) as tick:
        observe(model, layers, calls, widen, tick)
    return found


def static_scale(extent: Tensor, symmetric: bool) -> tuple[Tensor, Tensor | None]:
    """Scale [1] and zero point [1] (None when symmetric) of a range float32 [2]: the quantiser's
    own rule for minimum and maximum."""
    _, scale, azp = quantize_int8(extent, symmetric=symmetric, per_token=False)
    return scale, azp


def prepared(x: Tensor, s: Tensor | None, block: int | None) -> Tensor:
    """An input as it is quantised: float32, divided by s, rotated."""
    x = x.float() if s is None else x.float() / s
    return rotated(x, block) if block else x


def extent_of(x: Tensor) -> Tensor:
    """float32 [2]: the smallest and the largest element."""
    return torch.stack(x.aminmax())


def extents_of(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Call],
    smooth: Mapping[str, Tensor],
    blocks: Mapping[str, int],
) -> dict[str, Tensor]:
    """`extent_of` each layer's rotated input: it does not follow from the ranges of channels."""
    found: dict[str, Tensor] = {}

    def widen(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        if len(x):
            seen = extent_of(prepared(x, smooth.get(name), blocks[name]))
            found[name] = extent_of(torch.cat([found.get(name, seen), seen]))

    with progress("calibrating rotated inputs", len(calls)) as tick:
        observe(model, layers, calls, widen, tick)
    return found


def remarks_of_clipping(lost: Mapping[str, float], percentile: float) -> Iterator[str]:
    """Names the layers where what is cut off carries more than 1 % of the energy: the input of a
    second FFN layer has few outliers which carry up to a quarter. lost: of each layer, the part."""
    worst = {name: part for name, part in lost.items() if part > CLIPPED_ENERGY}
    if worst:
        names = ", ".join(f"{name} ({part:.0%})" for name, part in sorted(worst.items()))
        yield (
            f"clipping at the {percentile:g}th percentile cuts off outliers that carry this much "
            f"of a layer's energy: {names}. Calibrate these by minimum and maximum, or quantise "
            "them dynamically"
        )


def clipped(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Call],
    extents: Mapping[str, Tensor],
    smooth: Mapping[str, Tensor],
    percentile: float,
    blocks: Mapping[str, int],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Range float32 [2] of each layer's input that holds `percentile` % of its elements, an equal
    part of the rest beyond either end; and the part of the input's energy that is cut off.

    Args:
        extents: float32 [2] of each layer's input, smoothed and rotated, on the same batches.
        smooth: s by which layers' inputs are to be divided, [K]; not for every layer.
        blocks: of the layers whose inputs are rotated.
    """
    counts = {name: torch.zeros(BINS, dtype=torch.float64) for name in extents}

    def count(name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        if name not in extents:
            return
        x = prepared(x, smooth.get(name), blocks.get(name))
        low, high = extents[name].tolist()
        counts[name] += torch.histc(x, BINS, low, high).cpu().double()

    with progress("clipping", len(calls)) as tick:
        observe(model, layers, calls, count, tick)
    kept, lost = {}, {}
    tail = (1 - percentile / 100) / 2
    for name, counted in counts.items():
        low, high = extents[name].double().cpu()
        edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64) * (high - low) + low
        part = counted.cumsum(0) / counted.sum()
        first = int((part <= tail).sum())
        last = max(int((part < 1 - tail).sum()) + 1, first + 1)
        energy = counted * ((edges[1:] + edges[:-1]) / 2).square()
        lost[name] = 1 - float(energy[first:last].sum() / energy.sum().clamp_min(1e-300))
        kept[name] = edges[[first, min(last, BINS)]].float().to(extents[name].device)
    return kept, lost
