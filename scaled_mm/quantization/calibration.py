"""Everything that batches tell about layers, and the layers that are made of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..nn import ScaledBlockLinear, ScaledLinear, WeightOnlyLinear
from ..nn.float_experts import is_experts, linear_names
from .calibrate import (
    CalibrationWarning,
    Ranges,
    clipped,
    collect,
    extent_of,
    extents_of,
    prepared,
    remarks_of_clipping,
    static_scale,
)
from .config import QuantConfig
from .layers import as_linear
from .observe import Call
from .schemes import AnyScheme, BlockScheme, Scheme, WeightScheme, block_of
from .smoothquant import Smooth, decide, remarks


@dataclass(frozen=True)
class Calibration:
    """What was found, by names of layers; of a whole model or, joined by |, of its parts."""

    smooth: dict[str, Smooth] = field(default_factory=dict)
    fed: frozenset[str] = frozenset()
    """The layers that a norm feeds."""
    ranges: dict[str, Ranges] = field(default_factory=dict)
    """Before smoothing, of all layers that the batches reached."""
    extents: dict[str, Tensor] = field(default_factory=dict)
    """float32 [2], after smoothing, rotating and clipping; of static layers that are rotated, and
    where a percentile was asked for."""
    lost: dict[str, float] = field(default_factory=dict)
    """Which part of a layer's energy clipping cuts off."""
    idle: tuple[str, ...] = ()
    """Experts to which no token was sent: they have the ranges of all the others together."""

    def __or__(self, other: Calibration) -> Calibration:
        return Calibration(
            self.smooth | other.smooth,
            self.fed | other.fed,
            self.ranges | other.ranges,
            self.extents | other.extents,
            self.lost | other.lost,
            self.idle + other.idle,
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
        for text in self._remarks(config, sum(call.sentences() for call in calls)):
            warnings.warn(text, CalibrationWarning, stacklevel=stacklevel)

    def _remarks(self, config: QuantConfig, sentences: int) -> Iterator[str]:
        if config.smoothing:
            yield from remarks(self.smooth, self.fed, config.smoothing, sentences)
        if config.percentile is not None:
            yield from remarks_of_clipping(self.lost, config.percentile)
        if self.idle:
            more = f" and {len(self.idle) - 5} more" if len(self.idle) > 5 else ""
            yield (
                f"calibration sent no token to {len(self.idle)} experts: "
                f"{', '.join(self.idle[:5])}{more}. Their static scales are of the ranges of the "
                "other experts together: calibrate on more text"
            )


def calibrated(
    model: nn.Module, found: Mapping[str, nn.Module], calls: Sequence[Call], config: QuantConfig
) -> Calibration:
    """Smoothing, ranges and clipped ranges of layers, as `config` has them.

    Stacked experts are not smoothed. What is found of their Linears has the names of these.

    Args:
        model, found, calls: as for `collect`; the layers that are quantised.
        config: which scheme each has, and how they are smoothed.
    """
    experts = {name: module for name, module in found.items() if is_experts(module)}
    if experts:
        rest = {name: module for name, module in found.items() if name not in experts}
        of_rest = calibrated(model, rest, calls, config) if rest else Calibration()
        needed = {name: x for name, x in experts.items() if config.scheme_for(name).static}
        return of_rest | _of_experts(model, needed, calls, config)

    def build(name: str, ranges: Ranges, s: Tensor | None) -> nn.Module:
        smooth = None if s is None else Smooth(s, 0.0, None)
        return quantised(as_linear(found[name]), config.scheme_for(name), ranges, smooth, None)

    smooth: dict[str, Smooth] = {}
    fed: frozenset[str] = frozenset()
    if config.smoothing:
        smooth, fed, ranges = decide(model, found, calls, config.smoothing, build)
    else:
        ranges = collect(model, found, calls)
    static = {n: x for n, x in found.items() if n in ranges and config.scheme_for(n).static}
    divisors = {name: part.s for name, part in smooth.items()}
    whole = {name: ranges[name].whole(divisors.get(name)) for name in static}
    blocks = {name: block for name in static if (block := block_of(config.scheme_for(name)))}
    extents, lost = _extents(model, static, calls, config, whole, divisors, blocks)
    return Calibration(smooth, fed, ranges, extents, lost)


def _extents(
    model: nn.Module,
    static: Mapping[str, nn.Module],
    calls: Sequence[Call],
    config: QuantConfig,
    whole: Mapping[str, Tensor],
    divisors: Mapping[str, Tensor],
    blocks: Mapping[str, int],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """`Calibration.extents` and `Calibration.lost` of static layers; whole: the ends of their
    ranges, smoothed."""
    turned = {name: x for name, x in static.items() if block_of(config.scheme_for(name))}
    extents = extents_of(model, turned, calls, divisors, blocks) if turned else {}
    if config.percentile is None:
        return extents, {}
    return clipped(model, static, calls, {**whole, **extents}, divisors, config.percentile, blocks)


def _of_experts(
    model: nn.Module, found: Mapping[str, nn.Module], calls: Sequence[Call], config: QuantConfig
) -> Calibration:
    """The same of stacked experts with static schemes."""
    if not found:
        return Calibration()
    blocks = {
        f"{name}.{part}": block
        for name, experts in found.items()
        if (block := block_of(config.scheme_for(name)))
        for part in linear_names(experts)
    }
    ranges = collect(model, found, calls)
    whole = {name: each.whole() for name, each in ranges.items()}
    extents, lost = _extents(model, found, calls, config, whole, {}, blocks)
    idle = _fill_idle(found, ranges, Ranges.__or__)
    _fill_idle(found, extents, lambda one, other: extent_of(torch.cat([one, other])))
    return Calibration(ranges=ranges, extents=extents, lost=lost, idle=idle)


Found = TypeVar("Found")


def _fill_idle(
    experts: Mapping[str, nn.Module], known: dict[str, Found], join: Callable[[Found, Found], Found]
) -> tuple[str, ...]:
    """Gives an expert's Linears that got nothing what the others of their kind have together;
    returns such experts."""
    idle: dict[str, None] = {}
    for name, module in experts.items():
        kinds: dict[str, list[Found]] = {}
        missing = []
        for part in linear_names(module):
            number, _, kind = part.partition(".")
            if f"{name}.{part}" in known:
                kinds.setdefault(kind, []).append(known[f"{name}.{part}"])
            else:
                missing.append((number, kind))
        for number, kind in missing if kinds else ():
            known[f"{name}.{number}.{kind}"] = reduce(join, kinds[kind])
            idle[f"{name}.{number}"] = None
    return tuple(idle)


def input_scale(
    scheme: AnyScheme, ranges: Ranges | None, smooth: Smooth | None, extent: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """A static layer's scale [1] and zero point [1]; None, None of any other."""
    if not scheme.static:
        return None, None
    assert ranges is not None and isinstance(scheme, Scheme)
    if extent is None and (block := block_of(scheme)):
        extent = extent_of(prepared(ranges.rows, smooth.s if smooth else None, block))
    if extent is None:
        extent = ranges.whole(smooth.s if smooth else None)
    return static_scale(extent, scheme.symmetric)


@torch.no_grad()
def quantised(
    linear: nn.Linear,
    scheme: AnyScheme,
    ranges: Ranges | None,
    smooth: Smooth | None,
    extent: Tensor | None,
) -> ScaledLinear | WeightOnlyLinear | ScaledBlockLinear:
    if isinstance(scheme, BlockScheme):
        return ScaledBlockLinear.from_linear(linear)
    options = {
        **scheme.options(),
        "smooth": smooth.s if smooth else None,
        "folded": smooth is not None and smooth.norm is not None,
    }
    made: ScaledLinear | WeightOnlyLinear
    if isinstance(scheme, WeightScheme):
        made = WeightOnlyLinear.from_linear(linear, **options)
    else:
        scale, azp = input_scale(scheme, ranges, smooth, extent)
        made = ScaledLinear.from_linear(linear, input_scale=scale, input_azp=azp, **options)
    made.smooth_alpha = smooth.alpha if smooth else None
    return made
