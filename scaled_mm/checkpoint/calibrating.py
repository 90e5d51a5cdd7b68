"""What `quantize_checkpoint` learns from running the float model: scales, zero points, divisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..quantization.calibration import Calibration, calibrated, input_scale
from ..quantization.compressed_tensors import NO_PLACE, PackedScheme
from ..quantization.config import QuantConfig
from ..quantization.feeds import find_feeds
from ..quantization.observe import Call, as_calls, evaluating
from ..quantization.rotation import Folding, check_output, output_of, rotate
from .blocks import Blockwise, Walk, blocks_of
from .files import TensorFile
from .float_model import load_model
from .quantize_plan import Plan
from .shards import NewShard, Planned
from .streaming import NotInParts, StreamedModel

CALIBRATION = "scaled_mm_calibration.safetensors"
"""In the output folder until the last shard is there."""
_MARK = "scaled_mm.calibration"
_HOW = "scaled_mm.calibrated"


@dataclass(frozen=True)
class Calibrated:
    """Small tensors by name.

    NAME.input_scale        float32 [1], static
    NAME.input_zero_point   int8 [1], static asymmetric
    NAME.smooth             float32 [K]: s, by which the weight is multiplied
    NORM.divisor            float32 [K]: s, by which the norm is divided
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    how: str | None = None
    """How much of the model was in memory at a time, and why not less; None: nothing was run."""

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    @property
    def smoothed(self) -> int:
        """How many layers are smoothed."""
        return sum(name.endswith(".smooth") for name in self.tensors)


def calibrate(plan: Plan, batches: Sequence[Any]) -> Calibrated:
    """Runs the float model on the batches, block by block if it can be, and keeps what was found.

    Raises:
        ValueError: as `quantize_model`; or no norm can take any smoothing.
    """
    calls = as_calls(batches)
    try:
        config, norms, found = _by_blocks(plan, calls)
    except NotInParts as reason:
        how = f"the whole model at once: {reason}"
        config, norms, found = _whole(plan, calls)
    else:
        how = "block by block"
    static = [name for name in plan.schemes if plan.scheme_for(name).static]
    found.check(static)
    found.warn(config, calls, stacklevel=6)  # where `quantize_checkpoint` was called
    tensors: dict[str, Tensor] = {}
    for name in plan.schemes:
        smooth = found.smooth.get(name)
        if smooth is not None and smooth.norm is None:
            weights = isinstance(plan.schemes[name], PackedScheme)
            raise ValueError(f"{name}: {'pre_scale' if weights else 'input_smooth'} {NO_PLACE}")
        ranges, extent = found.ranges.get(name), found.extents.get(name)
        scale, azp = input_scale(plan.scheme_for(name), ranges, smooth, extent)
        if scale is not None:
            if not bool(scale > 0 and scale.isfinite()):
                raise ValueError(f"{name}.input_scale must be positive and finite, got {scale}")
            tensors[f"{name}.input_scale"] = scale.reshape(1)
        if azp is not None:
            tensors[f"{name}.input_zero_point"] = azp.reshape(1).to(torch.int8)
        if smooth is not None:
            tensors[f"{name}.smooth"] = smooth.s
    for norm, names in norms.items():
        if (divisor := tensors.get(f"{names[0]}.smooth")) is not None:
            tensors[f"{norm}.divisor"] = divisor
    return Calibrated(tensors, how)


_Found = tuple[QuantConfig, "dict[str, tuple[str, ...]]", Calibration]


def _by_blocks(plan: Plan, calls: Sequence[Call]) -> _Found:
    """With one block in memory at a time; `NotInParts` where that cannot be."""
    if plan.folding is not None:
        check_output(*(_output(plan, calls[0], folding) for folding in (None, plan.folding)))
    if not plan.calibrated:
        return plan.config, {}, Calibration()
    streamed = StreamedModel(plan.source, plan.folding)
    layers = _modules(plan, streamed.model)
    walk = Walk(streamed, blocks_of(streamed.model, list(layers)))
    with walk.watching(), torch.no_grad(), evaluating(streamed.model):
        if _seeks_norms(plan.config):
            foldable = find_feeds(streamed.model, layers, calls[0]).foldable
        else:
            foldable = {}
            calls[0](streamed.model)
    config, norms = _into_norms(plan, foldable)
    try:
        return config, norms, Blockwise(walk, calls).calibrate(layers, config)
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        raise NotInParts("a block reads weights that are not its own") from error


def _output(plan: Plan, call: Call, folding: Folding | None) -> Tensor:
    """What the float model returns, with one block in memory at a time."""
    streamed = StreamedModel(plan.source, folding)
    walk = Walk(streamed, blocks_of(streamed.model, list(plan.schemes)))
    with walk.watching(), torch.no_grad():
        return output_of(streamed.model, call)


def _whole(plan: Plan, calls: Sequence[Call]) -> _Found:
    model = load_model(plan.source)
    if plan.config.rotation is not None:
        rotate(model, plan.config.rotation, calls[0])
    if not plan.calibrated:
        return plan.config, {}, Calibration()
    layers = _modules(plan, model)
    seeks = _seeks_norms(plan.config)
    foldable = find_feeds(model, layers, calls[0]).foldable if seeks else {}
    config, norms = _into_norms(plan, foldable)
    return config, norms, calibrated(model, layers, calls, config)


def _modules(plan: Plan, model: nn.Module) -> dict[str, nn.Module]:
    return {name: model.get_submodule(name) for name in plan.modules.values()}


def _seeks_norms(config: QuantConfig) -> bool:
    return config.smoothing is not None and config.smoothing.pairs is None


def _into_norms(
    plan: Plan, found: Mapping[str, tuple[str, ...]]
) -> tuple[QuantConfig, dict[str, tuple[str, ...]]]:
    """The config with smoothing where a norm takes it and nowhere else; norm -> its Linears.

    Args:
        found: norms and their Linears, as a run showed them; where the config names its own, those
            are taken.
    """
    config, smoothing = plan.config, plan.config.smoothing
    if smoothing is None:
        return config, {}
    if smoothing.pairs is None:
        smoothing = replace(smoothing, pairs=tuple(found.items()))
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
    shard = NewShard(CALIBRATION, planned, {_MARK: mark, _HOW: values.how or ""})
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
    return Calibrated({name: file.read(name) for name in file.entries}, file.metadata.get(_HOW))
