"""What `quantize_checkpoint` learns from running the float model: scales, zero points, divisors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..quantization.feeds import find_feeds
from ..quantization.model import QuantConfig, quantize_model
from ..quantization.observe import as_calls
from .compressed_tensors import refuse_smooth
from .files import TensorFile
from .float_model import load_model
from .quantize_plan import Plan
from .shards import NewShard, Planned

CALIBRATION = "scaled_mm_calibration.safetensors"
"""In the output folder until the last shard is there."""
_MARK = "scaled_mm.calibration"


@dataclass(frozen=True)
class Calibrated:
    """Small tensors by name.

    NAME.input_scale        float32 [1], static
    NAME.input_zero_point   int8 [1], static asymmetric
    NAME.smooth             float32 [K]: s, by which the weight is multiplied
    NORM.divisor            float32 [K]: s, by which the norm is divided
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    @property
    def smoothed(self) -> int:
        """How many layers are smoothed."""
        return sum(name.endswith(".smooth") for name in self.tensors)


def calibrate(plan: Plan, batches: Sequence[Any]) -> Calibrated:
    """Loads the whole float model, runs it on the batches, and keeps what was found.

    Raises:
        ValueError: as `quantize_model`; or no norm can take any smoothing.
    """
    model = load_model(plan.source)
    config, norms = _into_norms(model, plan, batches)
    quantised = quantize_model(model, config, batches, inplace=True)
    tensors: dict[str, Tensor] = {}
    for name in plan.schemes:
        layer = quantised.get_submodule(name)
        assert isinstance(layer, ScaledLinear)
        refuse_smooth(name, layer)
        if layer.input_scale is not None:
            tensors[f"{name}.input_scale"] = layer.input_scale
        if layer.input_zero_point is not None:
            tensors[f"{name}.input_zero_point"] = layer.input_zero_point.to(torch.int8)
        if layer.folded_smooth is not None:
            tensors[f"{name}.smooth"] = layer.folded_smooth
    for norm, names in norms.items():
        if (divisor := tensors.get(f"{names[0]}.smooth")) is not None:
            tensors[f"{norm}.divisor"] = divisor
    return Calibrated(tensors)


def _into_norms(
    model: nn.Module, plan: Plan, batches: Sequence[Any]
) -> tuple[QuantConfig, dict[str, tuple[str, ...]]]:
    """The config with smoothing where a norm takes it and nowhere else; norm -> its Linears."""
    config, smoothing = plan.config, plan.config.smoothing
    if smoothing is None:
        return config, {}
    if smoothing.pairs is None:
        layers = {name: model.get_submodule(name) for name in plan.schemes}
        feeds = find_feeds(model, layers, as_calls(batches)[0])
        smoothing = replace(smoothing, pairs=tuple(feeds.foldable.items()))
    foldable = dict(smoothing.pairs or ())
    for name in chain.from_iterable(foldable.values()):
        if name not in plan.schemes:
            raise ValueError(f"pairs must name Linears that are quantised, got {name!r}")
    if not foldable or not smoothing.into_norms:
        raise ValueError(
            "smoothing must find a norm whose output only quantised Linears read: compressed-"
            "tensors' format has no place for any other; this model has none"
        )
    if smoothing.layers is None:
        smoothing = replace(smoothing, layers=tuple(chain.from_iterable(foldable.values())))
    return replace(config, smoothing=smoothing), foldable


def write_calibration(folder: Path, mark: str, values: Calibrated) -> None:
    """Keeps the values in the folder, with the fingerprint of the run that they belong to."""
    planned = [Planned.like(name, x) for name, x in values.tensors.items()]
    shard = NewShard(CALIBRATION, planned, {_MARK: mark})
    shard.write(folder / CALIBRATION, values.tensors.items())


def read_calibration(folder: Path, mark: str) -> Calibrated | None:
    """The values that an earlier run left; None where there are none.

    Raises:
        ValueError: they belong to another run.
    """
    path = folder / CALIBRATION
    if not path.exists():
        return None
    file = TensorFile(path)
    if file.metadata.get(_MARK) != mark:
        raise ValueError(f"{path}: is of other settings or another source; name another folder")
    return Calibrated({name: file.read(name) for name in file.entries})
