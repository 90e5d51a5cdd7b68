"""The measurements behind `validate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .. import reference
from ..inspector import Inspector, decibels, unsmoothed
from ..nn import ScaledLinear
from ..observe import Call, as_calls, evaluating, observe, progress
from .report import Agreement, LayerReport, Report, Thresholds

STRIDE = 7
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
    """An `Inspector` that looks at the inputs' quantisation too."""

    def __init__(self, originals: Mapping[str, nn.Module], stride: int) -> None:
        super().__init__(originals, stride)
        self.inputs = {name: _Inputs() for name in originals}

    def __call__(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        assert isinstance(layer, ScaledLinear)
        if not len(x):
            return
        seen, raw = self.inputs[name], unsmoothed(layer, x)
        exact = self.originals[name](raw)
        self.compare(name, y, exact)
        self.keep(name, layer, x, y)
        seen.max_error = max(seen.max_error, float((exact.float() - y.float()).abs().max()))
        seen.max_output = max(seen.max_output, float(exact.float().abs().max()))
        q, scale, azp = layer.quantize_input(x)
        x = x.float() if layer.input_smooth is None else x.float() * layer.input_smooth
        raw = raw.float()
        seen.before = _widened(seen.before, raw.abs().amax(0))
        seen.after = _widened(seen.after, x.abs().amax(0))
        energy = raw.double().square().sum(0)
        seen.energy = energy if seen.energy is None else seen.energy + energy
        seen.levels += torch.bincount(q.flatten().cpu().long() + 128, minlength=256)
        seen.elements += q.numel()
        if layer.input_scale is not None:
            zero = 0 if azp is None else azp
            on_grid = (x / scale).round() + zero
            lowest = -127 if azp is None else -128
            seen.saturated += int(((on_grid < lowest) | (on_grid > 127)).sum())
        zeros = torch.zeros(1) if azp is None else azp.float()
        share = len(x) // zeros.numel()
        seen.tokens += len(x)
        seen.azp_sum += float(zeros.sum()) * share
        seen.azp_used += int((zeros != 0).sum()) * share

    def layer(self, name: str) -> LayerReport:
        """The report of one layer; the reference runs now."""
        module, _, _ = self.samples[name][0]
        assert isinstance(module, ScaledLinear)
        seen = self.inputs[name]
        judged = [reference.check(y, **given) for y, given in self.judged(name)]
        assert seen.before is not None and seen.after is not None and seen.energy is not None
        outliers = (seen.before > OUTLIER * seen.before.median()).nonzero().flatten()
        whole = float(seen.energy.sum())
        return LayerReport(
            name=name,
            scheme=scheme_text(module),
            sqnr_db=decibels(self.signal[name], self.noise[name]),
            max_error=seen.max_error,
            max_error_relative=seen.max_error / max(seen.max_output, 1e-30),
            saturated=seen.saturated / seen.elements,
            grid=int((seen.levels > 0).sum()) / 256,
            azp_mean=seen.azp_sum / seen.tokens,
            azp_used=seen.azp_used / seen.tokens,
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


def _widened(known: Tensor | None, seen: Tensor) -> Tensor:
    return seen if known is None else torch.maximum(known, seen)


def _peak(absmax: Tensor) -> float:
    median = float(absmax.median())
    return float(absmax.max()) / median if median else float("inf")


def scheme_text(layer: ScaledLinear) -> str:
    """dynamic token asym smooth, for example."""
    words = [
        "dynamic" if layer.dynamic else "static",
        "token" if layer.per_token else "tensor",
        "sym" if layer.symmetric else "asym",
    ]
    if layer.input_smooth is not None:
        words.append("smooth")
    elif layer.folded_smooth is not None:
        words.append("folded")
    return " ".join(words)


def first_tensor(output: Any) -> Tensor:
    """The first float tensor in a model's output: logits, the last hidden state, an embedding."""
    for leaf in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim:
            return leaf
    raise TypeError(f"a model's output must hold a float tensor, got {type(output).__name__}")


def agreement(wanted: Sequence[Tensor], got: Sequence[Tensor]) -> Agreement:
    """How near two models' outputs are; each a list of [rows, N]."""
    want, have = torch.cat(list(wanted)).double(), torch.cat(list(got)).double()
    cosine = F.cosine_similarity(have, want, dim=-1)
    error = have - want
    return Agreement(
        rows=len(want),
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        sqnr_db=decibels(float(want.square().sum()), float(error.square().sum())),
        max_error=float(error.abs().max()),
        same_argmax=float((have.argmax(-1) == want.argmax(-1)).double().mean()),
    )


def validate(
    model: nn.Module,
    quantised: nn.Module,
    batches: Iterable[Any],
    *,
    thresholds: Thresholds | None = None,
    stride: int = STRIDE,
    output: Callable[[Any], Tensor] = first_tensor,
) -> Report:
    """Compares a quantised model with the float model that it was made from, layer by layer.

    Args:
        model: the float model.
        quantised: the same with `ScaledLinear`s under the names of Linears, such as
            `scaled_mm.quantize_model` makes; on the same device.
        batches: as for `scaled_mm.quantize_model`; not those of its calibration.
        thresholds: what passes; default: `Thresholds()`.
        stride: bits are compared for every stride-th token.
        output: takes from what a model returns the tensor [..., N] to compare; default: the first.

    Returns:
        A `Report`: per layer the noise, the use of the grid, the distance from R0 and equality
        with R1 (`scaled_mm.reference`); end to end the agreement of the outputs; and `ok`.

    Raises:
        ValueError: nothing is quantised, a layer has no float Linear of its name or was not
            reached, or there is no batch.
        TypeError: a batch has no known form, or an output holds no float tensor.
    """
    calls = as_calls(batches)
    layers = {
        name: module
        for name, module in quantised.named_modules()
        if isinstance(module, ScaledLinear)
    }
    if not layers:
        raise ValueError("quantised must hold a ScaledLinear, got none")
    inspector = LayerInspector(_originals(model, layers), stride)
    with progress("comparing", 2 * len(calls) + len(layers)) as tick:
        with torch.no_grad(), evaluating(model):
            wanted = []
            for call in calls:
                wanted.append(_rows(call, output(call(model))))
                tick()
        found = observe(quantised, layers, calls, inspector, tick)
        got = [_rows(call, output(out)) for call, out in zip(calls, found, strict=True)]
        missed = [name for name in layers if name not in inspector.samples]
        if missed:
            raise ValueError(f"batches must reach every layer, got no input for {missed[0]}")
        reports = []
        for name in layers:
            reports.append(inspector.layer(name))
            tick()
    return Report(
        tuple(reports), agreement(wanted, got), thresholds or Thresholds(), len(calls), stride
    )


def _originals(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    known = dict(model.named_modules(remove_duplicate=False))
    for name in layers:
        if not isinstance(known.get(name), nn.Linear):
            raise ValueError(
                f"model must have a Linear named {name!r}, got {type(known.get(name)).__name__}"
            )
    return {name: known[name] for name in layers}


def _rows(call: Call, output: Tensor) -> Tensor:
    return call.tokens(output).detach().float().cpu()
