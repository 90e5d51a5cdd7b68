"""`QuantizationReport`: what `quantize_model` did to a model, and what it left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from .config import TARGETS, QuantConfig
from .layers import classes, linears_in, matching, matrices, multiplied, named, readers, why_float
from .rotation import Rotation
from .schemes import name_of
from .smoothquant import Smooth

ENOUGH = 0.5
"""A smaller share of the matrix parameters, quantised unasked, is warned about."""
_ATTRIBUTE = "_quantization_report"


class QuantizationWarning(UserWarning):
    """Much of a model stayed float though the config did not say so."""


@dataclass(frozen=True)
class QuantisedLayer:
    """A layer that was quantised."""

    name: str
    scheme: str
    """The name of its scheme."""
    parameters: int
    """Elements of its weight."""
    alpha: float | None
    """SmoothQuant's, given or found by the search; None: not smoothed."""
    norm: str | None
    """The norm that divides the input; None: the layer itself does, or it is not smoothed."""


@dataclass(frozen=True)
class FloatMatrix:
    """A parameter of two or more dimensions that stayed float."""

    name: str
    parameters: int
    why: str
    asked: bool
    """Whether the config says so: by skip, or by an include that leaves it out."""
    counted: bool
    """Whether it is multiplied by, and so counts among the matrix parameters: all but tables."""


@dataclass(frozen=True)
class QuantizationReport:
    """What `quantize_model` did. Printed, it is a text; `as_dict` is for JSON.

    Matrix parameters are those of two or more dimensions, except tables that are only looked up in
    (`nn.Embedding`, unless a Linear shares its weight). Each counts once.
    """

    layers: tuple[QuantisedLayer, ...]
    floats: tuple[FloatMatrix, ...]
    rotation: Rotation | None = None
    """What was folded into the weights, with its seed."""

    @property
    def share(self) -> float:
        """The part of the matrix parameters that is quantised now."""
        return self._share(asked=True)

    @property
    def share_of_asked(self) -> float:
        """The same without what the config says is to stay float."""
        return self._share(asked=False)

    def _share(self, asked: bool) -> float:
        quantised = sum(layer.parameters for layer in self.layers)
        left = (x for x in self.floats if x.counted and (asked or not x.asked))
        return quantised / max(1, quantised + sum(x.parameters for x in left))

    def as_dict(self) -> dict[str, Any]:
        """All of it, in what JSON has."""
        return {"share": self.share, "share_of_asked": self.share_of_asked, **asdict(self)}

    def __str__(self) -> str:
        count = _count(self.layers, "layer", "layers")
        lines = [
            f"quantised: {count}, {self.share:.1%} of the matrix parameters",
            *(f"  {line}" for line in map(_layer_line, self.layers)),
        ]
        if self.rotation is not None:
            lines.append(f"rotated: {self.rotation}")
        if self.floats:
            lines.append(f"float: {_count(self.floats, 'matrix', 'matrices')}")
        lines += [f"  {x.name} ({x.parameters:,}): {x.why}" for x in self.floats]
        return "\n".join(lines)

    def warn(self, stacklevel: int) -> None:
        """A `QuantizationWarning` where less than `ENOUGH` was quantised, unasked."""
        if self.share_of_asked >= ENOUGH:
            return
        left = [x for x in self.floats if x.counted and not x.asked]
        most = sorted(left, key=lambda x: -x.parameters)[:3]
        names = "; ".join(f"{x.name} ({x.why})" for x in most)
        warnings.warn(
            f"{self.share_of_asked:.0%} of the matrix parameters that the config leaves in are "
            f"quantised. The largest that stay float: {names}. All are in "
            "scaled_mm.quantization_report(model)",
            QuantizationWarning,
            stacklevel=stacklevel + 1,
        )


def _count(things: Sequence[object], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


def _layer_line(layer: QuantisedLayer) -> str:
    parts = [f"{layer.name} ({layer.parameters:,}): {layer.scheme}"]
    if layer.alpha is not None:
        where = f"in {layer.norm}" if layer.norm else "in the layer"
        parts.append(f"alpha {layer.alpha:g} {where}")
    return ", ".join(parts)


def report_of(
    model: nn.Module,
    config: QuantConfig,
    found: Mapping[str, nn.Module],
    smooth: Mapping[str, Smooth],
    rotation: Rotation | None = None,
) -> QuantizationReport:
    """The report, from the float model as it is before anything changes. `found`: the layers that
    are quantised, `smooth`: the smoothed ones of them."""
    layers = []
    for name, module in found.items():
        part = smooth.get(name)
        layers.append(
            QuantisedLayer(
                name,
                name_of(config.scheme_for(name)),
                sum(linear.weight.numel() for _, linear in linears_in(name, module)),
                part.alpha if part else None,
                part.norm if part else None,
            )
        )
    floats = tuple(_floats(model, config, set(found.values())))
    return QuantizationReport(tuple(layers), floats, rotation)


def _floats(model: nn.Module, config: QuantConfig, quantised: set[nn.Module]) -> list[FloatMatrix]:
    names, held = named(model), readers(model)
    floats = []
    for name, (owner, parameter) in matrices(model).items():
        if owner in quantised:
            continue
        known = names.get(owner, [name.rpartition(".")[0], name])
        asked = _asked(owner, known, config)
        why = asked or why_float(owner, parameter, held.get(owner))
        floats.append(FloatMatrix(name, parameter.numel(), why, bool(asked), multiplied(owner)))
    return floats


def _asked(owner: nn.Module, names: list[str], config: QuantConfig) -> str | None:
    """Why the config wants what has these names to stay float; None: it does not."""
    ignored = matching(names, config.ignore)
    if ignored is not None:
        return f"ignore has {ignored!r}"
    named_by = matching([*classes(owner), *names], config.targets)
    wanted = named_by is not None or config.targets == TARGETS
    return None if wanted else "targets has no pattern that matches it"


def attach(model: nn.Module, report: QuantizationReport) -> None:
    """Leaves the report on the model, for `quantization_report`."""
    setattr(model, _ATTRIBUTE, report)


def rotation_of(model: nn.Module) -> Rotation | None:
    """What `quantize_model` folded into the model's weights, where it did."""
    report = getattr(model, _ATTRIBUTE, None)
    return report.rotation if isinstance(report, QuantizationReport) else None


def quantization_report(model: nn.Module) -> QuantizationReport:
    """What `quantize_model` did to a model.

    Args:
        model: what `quantize_model` returned, or a copy of it.

    Returns:
        The layers with their schemes and SmoothQuant's alphas, what stayed float and why, and the
        share of the matrix parameters that is quantised. `print` shows it.

    Raises:
        ValueError: the model does not come from `quantize_model`.
    """
    report = getattr(model, _ATTRIBUTE, None)
    if not isinstance(report, QuantizationReport):
        raise ValueError(
            f"model must come from quantize_model, got a {type(model).__name__} without a report"
        )
    return report
