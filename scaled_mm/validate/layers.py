"""What validation sees of each layer while the quantised model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import reference
from ..nn import ScaledBlockLinear, ScaledLinear, WeightOnlyLinear
from ..ops.rotate import rotated
from ..quantization.inspect import Inspector, decibels
from ..reference.accuracy import AccuracyReport
from ..reference.arithmetic import FORMATS, ulp
from .folds import Fold
from .report import LayerReport

OUTLIER = 6.0
"""A channel whose range is so many times the median channel's is an outlier."""


@dataclass
class _Inputs:
    """What one layer's inputs showed so far."""

    max_error: float = 0.0
    max_output: float = 0.0
    elements: int = 0
    saturated: int = 0
    levels: Tensor = field(default_factory=lambda: torch.zeros(256, dtype=torch.int64))
    tokens: int = 0
    azp_sum: float = 0.0
    azp_used: int = 0
    before: Tensor | None = None  # absmax of each channel, of the float model's input
    after: Tensor | None = None  # of what is quantised
    energy: Tensor | None = None  # sum of squares of each channel of `before`


class LayerInspector(Inspector):
    """An `Inspector` that looks at the inputs' quantisation too, and undoes what was folded."""

    def __init__(
        self, originals: Mapping[str, nn.Module], stride: int, folds: Mapping[str, Fold]
    ) -> None:
        super().__init__(originals, stride)
        self.folds = folds
        self.inputs = {name: _Inputs() for name in originals}

    def __call__(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        if not len(x):
            return
        seen, fold = self.inputs[name], self.folds[name]
        given, x = x, x
        raw = x if fold.into is None else (x.float() * fold.into).to(x.dtype)
        exact = self.originals[name](raw)
        if fold.out is not None:
            exact = exact.float() * fold.out
        self.compare(name, y, exact)
        self.keep(name, layer, given, y)
        seen.max_error = max(seen.max_error, float((exact.float() - y.float()).abs().max()))
        seen.max_output = max(seen.max_output, float(exact.float().abs().max()))
        smooth = getattr(layer, "input_smooth", getattr(layer, "pre_scale", None))
        scaled = x.float() if smooth is None else x.float() * smooth
        if block := getattr(layer, "rotate", 0):
            scaled = rotated(scaled, block)
        raw = raw.float()
        seen.before = _widened(seen.before, raw.abs().amax(0))
        seen.after = _widened(seen.after, scaled.abs().amax(0))
        energy = raw.double().square().sum(0)
        seen.energy = energy if seen.energy is None else seen.energy + energy
        seen.tokens += len(x)
        if isinstance(layer, ScaledLinear | ScaledBlockLinear):
            _quantisation(seen, layer, given, scaled)

    def layer(self, name: str) -> LayerReport:
        """The report of one layer; the reference runs now."""
        module, _, _ = self.samples[name][0]
        seen = self.inputs[name]
        if isinstance(module, WeightOnlyLinear):
            _, xs, ys = zip(*self.samples[name], strict=True)
            judge = judge_lowbit if module.int8_input is None else judge_w4a8
            judged = [judge(module, torch.cat(xs), torch.cat(ys))]
            grid, azp_mean, azp_used = _of_weight(module)
        else:
            judged = [reference.check(y, **given) for y, given in self.judged(name)]
            grid = int((seen.levels > 0).sum()) / 256
            azp_mean, azp_used = seen.azp_sum / seen.tokens, seen.azp_used / seen.tokens
        assert seen.before is not None and seen.after is not None and seen.energy is not None
        outliers = (seen.before > OUTLIER * seen.before.median()).nonzero().flatten()
        whole = float(seen.energy.sum())
        return LayerReport(
            name=name,
            scheme=scheme_text(module, self.folds[name]),
            sqnr_db=decibels(self.signal[name], self.noise[name]),
            max_error=seen.max_error,
            max_error_relative=seen.max_error / max(seen.max_output, 1e-30),
            saturated=seen.saturated / max(1, seen.elements),
            grid=grid,
            azp_mean=azp_mean,
            azp_used=azp_used,
            checked=sum(part.elements for part in judged),
            off_r1=sum(part.different for part in judged),
            worst_ulp=max(part.worst_ulp for part in judged),
            worst_of_bound=max(part.worst_of_bound for part in judged),
            beyond=sum(part.beyond for part in judged),
            outlier_channels=tuple(outliers.tolist()),
            outlier_energy=float(seen.energy[outliers].sum()) / whole if whole else 0.0,
            peak_before=_peak(seen.before),
            peak_after=_peak(seen.after),
        )


def _quantisation(
    seen: _Inputs, layer: ScaledLinear | ScaledBlockLinear, x: Tensor, scaled: Tensor
) -> None:
    """How an int8 layer's quantiser met its input; scaled: x as it is quantised."""
    q, scale, *zeros = layer.quantize_input(x)
    azp = zeros[0] if zeros else None
    seen.levels += torch.bincount(q.flatten().cpu().long() + 128, minlength=256)
    seen.elements += q.numel()
    if layer.input_scale is not None:
        on_grid = (scaled / scale).round() + (0 if azp is None else azp)
        lowest = -127 if azp is None else -128
        seen.saturated += int(((on_grid < lowest) | (on_grid > 127)).sum())
    points = torch.zeros(1) if azp is None else azp.float()
    share = len(x) // points.numel()
    seen.azp_sum += float(points.sum()) * share
    seen.azp_used += int((points != 0).sum()) * share


def _of_weight(layer: nn.Module) -> tuple[float, float, float]:
    """Of a weight in 4 or 8 bits: part of the values that occur, mean zero point, part of them that
    is not the middle of the range. Without zero points the middle is each."""
    assert isinstance(layer, WeightOnlyLinear)
    bits = layer.bits
    values, _, given, _ = layer.filled().unpack()
    whole = given is not None and not given.is_floating_point()
    zeros = given if given is not None and whole else values.new_full((1,), 0)
    if not whole:  # signed values; 0 of them is the middle
        values, zeros = values.short() + (1 << bits - 1), zeros.short() + (1 << bits - 1)
    levels = torch.bincount(values.flatten().cpu().long(), minlength=1 << bits)
    zeros = zeros.float()
    moved = float((zeros != 1 << bits - 1).float().mean())
    return int((levels > 0).sum()) / (1 << bits), float(zeros.mean()), moved


def judge_lowbit(layer: nn.Module, x: Tensor, y: Tensor) -> AccuracyReport:
    """Judge y [tokens, N] as layer(x [tokens, K]): sums are float32, so that they have a bound
    (docs/numerics.md) and no bits of their own.

    Where y is a 16-bit float other than the kernel's output, its rounding is allowed for.
    """
    assert isinstance(layer, WeightOnlyLinear)
    q, scales, zeros, order = layer.filled().unpack()
    ending: dict[str, Any] = {
        "bias": layer.bias,
        "activation": layer.activation,
        "pre_scale": layer.pre_scale,
    }
    parts = reference.mixed_mm_bound(x.to(scales.dtype), q, scales, zeros, order=order, **ending)
    exact, bound = (part.numpy() for part in parts)
    got = y.detach().cpu().double().numpy()
    with np.errstate(all="ignore"):
        if y.dtype not in (scales.dtype, torch.float32):
            bound = bound + ulp(np.abs(exact) + bound, FORMATS[y.dtype]) / 2
        distance = np.where(np.isnan(exact) & np.isnan(got), 0, np.abs(got - exact))
        distance = np.where(np.isnan(distance), np.inf, distance)
        units = np.where(distance == 0, 0, distance / ulp(exact, FORMATS[scales.dtype]))
        fraction = np.where(distance == 0, 0, distance / bound)
    return AccuracyReport(
        y.dtype,
        tuple(y.shape),
        "mixed_mm",
        getattr(layer, "bias", None) is not None,
        beyond=int((~(fraction <= 1)).sum()),
        worst_ulp=float(units.max(initial=0)),
        worst_of_bound=float(fraction.max(initial=0)),
    )


def judge_w4a8(layer: nn.Module, x: Tensor, y: Tensor) -> AccuracyReport:
    """Judge y [tokens, N] as layer(x [tokens, K]) of a layer with int8 activations: by its bits."""
    assert isinstance(layer, WeightOnlyLinear)
    scaled = x if layer.pre_scale is None else x.float() * layer.pre_scale
    q, scale, azp = reference.quantize_int8(scaled, symmetric=layer.int8_input == "symmetric")
    weight, scales, zeros, order = layer.filled().unpack()
    more: dict[str, Any] = {"azp": azp, "bias": layer.bias, "activation": layer.activation}
    return reference.w4a8_check(y, q, weight, scales, zeros, scale_a=scale, order=order, **more)


def _widened(known: Tensor | None, seen: Tensor) -> Tensor:
    return seen if known is None else torch.maximum(known, seen)


def _peak(absmax: Tensor) -> float:
    median = float(absmax.median())
    return float(absmax.max()) / median if median else float("inf")


def scheme_text(layer: nn.Module, fold: Fold) -> str:
    """dynamic token asym smooth, int4 g128 act-order folded, or w8a16 g4096, for example."""
    if isinstance(layer, WeightOnlyLinear):
        words = [f"w{layer.bits}a{8 if layer.int8_input else 16}", f"g{layer.group_size}"]
        words += ["inputs-asym"] * (layer.int8_input == "asymmetric")
        words += ["asym"] * (layer.zero != "none") + ["act-order"] * layer.act_order
        words += ["smooth"] * (layer.pre_scale is not None)
    elif isinstance(layer, ScaledBlockLinear):
        words = ["blocks"]
    else:
        assert isinstance(layer, ScaledLinear)
        words = [
            "dynamic" if layer.dynamic else "static",
            "token" if layer.per_token else "tensor",
            "sym" if layer.symmetric else "asym",
        ]
        words += ["smooth"] * (layer.input_smooth is not None)
        words += [f"rotate{layer.rotate}"] * (layer.rotate != 0)
    words += ["folded"] * (fold.into is not None)
    return " ".join(words)
