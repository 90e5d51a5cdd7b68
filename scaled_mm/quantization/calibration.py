"""Everything that batches tell about layers, and the layers that are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear, WeightOnlyLinear
from .calibrate import (
    Ranges,
    clipped,
    collect,
    extent_of,
    extents_of,
    prepared,
    static_scale,
    warn_of_clipping,
)
from .config import QuantConfig
from .layers import as_linear
from .observe import Call
from .schemes import AnyScheme, WeightScheme, block_of
from .smoothquant import Decided, Smooth, decide


@dataclass(frozen=True)
class Calibration:
    """What was found, by names of layers; of a whole model or, joined by |, of its parts."""

    decided: Decided = field(default_factory=Decided)
    ranges: dict[str, Ranges] = field(default_factory=dict)
    """Before smoothing, of all layers that the batches reached."""
    extents: dict[str, Tensor] = field(default_factory=dict)
    """float32 [2], after smoothing, rotating and clipping; of static layers that are rotated, and
    where a percentile was asked for."""
    lost: dict[str, float] = field(default_factory=dict)
    """Which part of a layer's energy clipping cuts off."""

    @property
    def smooth(self) -> Mapping[str, Smooth]:
        return self.decided.smooth

    def __or__(self, other: Calibration) -> Calibration:
        return Calibration(
            self.decided | other.decided,
            self.ranges | other.ranges,
            self.extents | other.extents,
            self.lost | other.lost,
        )

    def check(self, static: Iterable[str]) -> None:
        """Refuses static layers that nothing is known of: ValueError."""
        missed = [name for name in static if name not in self.ranges]
        if missed:
            raise ValueError(
                "calibration must reach every static layer, got no input for "
                + ", ".join(missed[:5])
                + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
            )

    def warn(self, config: QuantConfig, calls: Sequence[Call], stacklevel: int) -> None:
        """`CalibrationWarning`s of what probably is worse than something else."""
        if config.smoothing:
            self.decided.warn(config.smoothing, calls, stacklevel + 1)
        if config.percentile is not None:
            warn_of_clipping(self.lost, config.percentile, stacklevel + 1)


def calibrated(
    model: nn.Module, found: Mapping[str, nn.Module], calls: Sequence[Call], config: QuantConfig
) -> Calibration:
    """Smoothing, ranges and clipped ranges of layers, as `config` has them.

    Args:
        model, found, calls: as for `collect`; the layers that are quantised.
        config: which scheme each has, and how they are smoothed.
    """

    def build(name: str, ranges: Ranges, s: Tensor | None) -> nn.Module:
        smooth = None if s is None else Smooth(s, 0.0, None)
        return quantised(found[name], config.scheme_for(name), ranges, smooth, None)

    decided = Decided()
    if config.smoothing:
        decided, ranges = decide(model, found, calls, config.smoothing, build)
    else:
        ranges = collect(model, found, calls)
    static = [name for name in found if config.scheme_for(name).static]
    divisors = {name: part.s for name, part in decided.smooth.items()}
    blocks = {name: block for name in static if (block := block_of(config.scheme_for(name)))}
    turned = {name: found[name] for name in blocks if name in ranges}
    extents = extents_of(model, turned, calls, divisors, blocks) if turned else {}
    lost: dict[str, float] = {}
    if config.percentile is not None:
        layers = {name: found[name] for name in static}
        share = config.percentile
        extents, lost = clipped(model, layers, calls, ranges, divisors, share, blocks, extents)
    return Calibration(decided, ranges, extents, lost)


def input_scale(
    scheme: AnyScheme, ranges: Ranges | None, smooth: Smooth | None, extent: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """A static layer's scale [1] and zero point [1]; None, None of any other."""
    if not scheme.static:
        return None, None
    assert ranges is not None
    if extent is None and (block := block_of(scheme)):
        extent = extent_of(prepared(ranges.rows, smooth.s if smooth else None, block))
    if extent is None:
        extent = (ranges.times(1 / smooth.s) if smooth else ranges).whole()
    return static_scale(extent, scheme.symmetric)


@torch.no_grad()
def quantised(
    module: nn.Module,
    scheme: AnyScheme,
    ranges: Ranges | None,
    smooth: Smooth | None,
    extent: Tensor | None,
) -> ScaledLinear | WeightOnlyLinear:
    options = {
        **scheme.options(),
        "smooth": smooth.s if smooth else None,
        "folded": smooth is not None and smooth.norm is not None,
    }
    made: ScaledLinear | WeightOnlyLinear
    if isinstance(scheme, WeightScheme):
        made = WeightOnlyLinear.from_linear(as_linear(module), **options)
    else:
        scale, azp = input_scale(scheme, ranges, smooth, extent)
        made = ScaledLinear.from_linear(
            as_linear(module), input_scale=scale, input_azp=azp, **options
        )
    made.smooth_alpha = smooth.alpha if smooth else None
    return made
