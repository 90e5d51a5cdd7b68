"""`load_quantized_sharded`: each rank reads its part of a quantised checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from ..checkpoint.folder import Checkpoint
from ..checkpoint.layer import QuantisedLayer
from ..checkpoint.layers import Int8Layer
from ..checkpoint.layers_awq_gptq import AwqGptqLayer, LowbitLayer
from ..checkpoint.layers_packed import PackedLayer
from ..checkpoint.loading import layers_to_load, load_layers, whole
from ..lowbit.words import per_word
from .layers import TERMS, RowwiseScaledLinear
from .layouts import all_reduce
from .shares import INT8_CUTS, Cut, Part, Side, packed_cuts, words_cuts
from .styles import QuantizedParallel


def load_quantized_sharded(
    model: nn.Module,
    path: str | Path | Checkpoint,
    device_mesh: DeviceMesh,
    plan: Mapping[str, ParallelStyle],
) -> nn.Module:
    """`scaled_mm.load_quantized` and `parallelize_module` in one, without a whole layer in memory.

    Every rank calls it with the same arguments. Of a quantised layer that the plan names, a rank
    reads the bytes of its own features only; what every rank needs (scales of the other features,
    a bias that is added to the sum) and all other tensors it reads whole. The bits are those of
    loading first and cutting afterwards.

    Args:
        model: as for `load_quantized`, not cut yet; on the meta device it costs no memory.
        path: the checkpoint, which every rank can read.
        device_mesh: the ranks, one dimension.
        plan: names or patterns of modules -> how each is cut, as for `parallelize_module`. Each
            part of a name between dots is a pattern of its own: "layers.*.mlp.up". A quantised
            layer takes a `ColwiseQuantizedParallel` or `RowwiseQuantizedParallel`, any other module
            any style.

    Returns:
        The model, changed in place.

    Raises:
        ValueError: the checkpoint or the model is refused by `load_quantized`; a pattern names no
            module, or two name the same; a layer cannot be cut so; or another rank refused.
            GPTQ with act-order is not read in parts of its rows: load it whole and cut it then.
        TypeError: a quantised layer with a style that is not for it.

    If one rank refuses, all do; then the model may have changed, and is of no use.
    """
    parts: dict[str, LayerPart] = {}
    with _all_or_none(device_mesh):
        checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
        layers = layers_to_load(checkpoint)
        styles = _resolved(model, plan)
        for name, style in styles.items():
            if name in layers:
                parts[name] = LayerPart(layers[name], _for_quantised(name, style), device_mesh)

        def make(checkpoint: Checkpoint, layer: QuantisedLayer, biased: bool) -> nn.Module:
            part = parts.get(layer.name)
            return part.module(checkpoint, biased) if part else whole(checkpoint, layer, biased)

        load_layers(model, checkpoint, layers, make)
    for name, part in parts.items():
        part.finish(checkpoint, model.get_submodule(name))
    for name, style in styles.items():
        if name not in parts:
            parallelize_module(model.get_submodule(name), device_mesh, style)
    return model


class LayerPart:
    """This rank's part of a quantised layer of a checkpoint.

    Raises:
        ValueError: it cannot be cut so.
    """

    def __init__(self, layer: QuantisedLayer, style: QuantizedParallel, mesh: DeviceMesh) -> None:
        self.layer, self.style, self.mesh = layer, style, mesh
        features = layer.n if style.side is Side.OUT else layer.k
        if not _may_be_cut(layer):
            rule = "must be W8A8, or weight-only in packed words, to be cut"
            raise ValueError(f"{layer.name} {rule}, got {layer.scheme}")
        self.group = layer.group if isinstance(layer, LowbitLayer) else 1
        try:
            self.share = style.share(layer.kind, features, self.group, mesh)
        except ValueError as error:
            raise ValueError(f"{layer.name}: {error}") from None

    def module(self, checkpoint: Checkpoint, biased: bool) -> nn.Module:
        """The layer of this rank's features, by the reader of whole ones: it is given a layer of
        the smaller size, and a checkpoint that holds no more."""
        layer, cuts = self.layer, self._cuts()
        parts = {}
        for name in layer.parts & cuts.keys():
            tensor = f"{layer.name}.{name}"
            part = self.share.within(cuts[name], checkpoint.entry(tensor).shape)
            if part is not None:
                parts[tensor] = part
        out = self.share.side is Side.OUT
        smaller = dataclasses.replace(
            layer,
            n=self.share.count if out else layer.n,
            k=layer.k if out else self.share.count,
            parts=layer.parts - self._of_the_whole(checkpoint),
        )
        return smaller.module(CheckpointPart(checkpoint, parts), biased)

    def finish(self, checkpoint: Checkpoint, module: nn.Module) -> None:
        """What takes all ranks: the zero-point terms of the whole weight, checked if stored."""
        self.style.finish(module, self.share, self.mesh)
        if isinstance(module, RowwiseScaledLinear) and isinstance(self.layer, Int8Layer):
            for name in module.terms():
                module.sum_terms([name])
                self.layer.check_term(checkpoint, getattr(module, name).cpu())

    def _cuts(self) -> Mapping[str, Cut]:
        """Of the tensors that the checkpoint has."""
        side, group = self.share.side, None if self.group == self.layer.k else self.group
        if isinstance(self.layer, PackedLayer):
            return packed_cuts(side, self.layer.scheme.bits, group)
        if isinstance(self.layer, AwqGptqLayer):
            return words_cuts(side, self.layer.scheme.bits, group, self._words_along_k())
        return INT8_CUTS[side]

    def _words_along_k(self) -> bool:
        """GPTQ's and compressed-tensors' words hold neighbours of a column, AWQ's of a row."""
        awq = isinstance(self.layer, AwqGptqLayer) and self.layer.scheme.method == "awq"
        return isinstance(self.layer, LowbitLayer) and not awq

    def _of_the_whole(self, checkpoint: Checkpoint) -> frozenset[str]:
        """Tensors from which nothing follows for a part of the weight."""
        out, layer = self.share.side is Side.OUT, self.layer
        if out and isinstance(layer, LowbitLayer) and layer.parts & {"weight_zero_point", "qzeros"}:
            self.share.must_be_whole(per_word(layer.scheme.bits), "the zero points in a word")
        if out:
            return frozenset({"weight_shape"})
        if isinstance(layer, LowbitLayer) and self._words_along_k():
            self.share.must_be_whole(per_word(layer.scheme.bits), "the rows in a word")
            self._refuse_act_order(checkpoint)
        return frozenset({*TERMS, "g_idx", "weight_g_idx", "weight_shape"})

    def _refuse_act_order(self, checkpoint: Checkpoint) -> None:
        for part in self.layer.parts & {"g_idx", "weight_g_idx"}:
            g_idx = self.layer.read(checkpoint, part)
            if bool((g_idx != torch.arange(self.layer.k) // self.group).any()):
                reason = "is in act-order, which is not read in parts of its rows: use "
                reason += "load_quantized and parallelize_module"
                self.layer.refuse(checkpoint, part, reason)


def _may_be_cut(layer: QuantisedLayer) -> bool:
    if isinstance(layer, PackedLayer):
        return not (layer.scheme.int8_input or layer.scheme.in_bytes)
    return isinstance(layer, Int8Layer | LowbitLayer)


class CheckpointPart(Checkpoint):
    """A checkpoint of which some tensors are read in part."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, Part]) -> None:
        vars(self).update(vars(checkpoint))
        self.parts = parts

    def read(self, name: str) -> Tensor:
        part = self.parts.get(name)
        if part is None:
            return super().read(name)
        return self.where[name].read_part(name, part.axis, part.begin, part.end)


def _resolved(model: nn.Module, plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """The modules that the plan names, each with its style."""
    styles: dict[str, ParallelStyle] = {}
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle):
            raise TypeError(f"plan must hold a ParallelStyle for {pattern!r}, got {style!r}")
        names = [name for name, _ in model.named_modules() if _matches(name, pattern)]
        if not names:
            raise ValueError(f"plan must name modules of the model, got {pattern!r}")
        for name in names:
            if name in styles:
                raise ValueError(f"plan must name each module once, got {name} by {pattern!r} too")
            styles[name] = style
    return styles


def _matches(name: str, pattern: str) -> bool:
    atoms, patterns = name.split("."), pattern.split(".")
    return len(atoms) == len(patterns) and all(map(fnmatchcase, atoms, patterns))


def _for_quantised(name: str, style: ParallelStyle) -> QuantizedParallel:
    if not isinstance(style, QuantizedParallel):
        wanted = "a ColwiseQuantizedParallel or RowwiseQuantizedParallel"
        raise TypeError(f"plan must hold {wanted} for {name}, got {type(style).__name__}")
    return style


@contextmanager
def _all_or_none(mesh: DeviceMesh) -> Iterator[None]:
    """Lets no rank go on alone: if the block raises on one of them, it does on all."""
    try:
        yield
    except Exception:
        _is_well_everywhere(False, mesh)
        raise
    if not _is_well_everywhere(True, mesh):
        raise ValueError("path, plan or model must suit every rank: another rank refused them")


def _is_well_everywhere(here: bool, mesh: DeviceMesh) -> bool:
    word = torch.tensor([int(here)], device=mesh.device_type)
    return bool(all_reduce(word, mesh, dist.ReduceOp.MIN))
