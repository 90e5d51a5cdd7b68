"""What `quantize_checkpoint` will do, decided before anything is written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import tree_leaves
from ..nn.float_experts import is_experts, parts_of
from ..quantization.blockwise_int8 import METHOD, BlockScheme
from ..quantization.compressed_tensors import (
    INT,
    AnyLayerScheme,
    PackedScheme,
    W8A8Scheme,
    format_of,
    is_linear,
    layer_tensors,
    one_format,
    stored_as,
)
from ..quantization.config import TARGETS, QuantConfig
from ..quantization.layers import is_conv1d, linears_in, why_not
from ..quantization.model import empty, linears, nothing_meant
from ..quantization.observe import as_call
from ..quantization.report import report_of
from ..quantization.rotation import EMBEDDING, HEAD, Folding, folding_of
from ..quantization.schemes import AnyScheme, WeightScheme
from .files import DTYPES, TensorFile
from .float_model import skeleton
from .folder import Checkpoint
from .layer import FLOATS
from .names import Names
from .shards import Planned, raw_bytes


@dataclass(frozen=True)
class Plan:
    """The layers of a checkpoint that are quantised, and how.

    Attributes:
        source: the float checkpoint.
        config: as it was given.
        schemes: of each layer, by name; stacked experts are layers one by one.
        modules: the names of the modules that the layers are, or are stacked in.
        stored: the names that the layers have in the files, where these are other ones.
        names: of the files' tensors in the model.
        floats: names of the Linears that stay float, as in the files; None: unknown.
        others: why other matrices stay float that are multiplied by, by name.
        computed: tensors of the files that the model makes itself, and which are left out.
        folding: what a rotation makes of the model's tensors; None: nothing is rotated.
    """

    source: Checkpoint
    config: QuantConfig
    schemes: Mapping[str, AnyLayerScheme]
    modules: Mapping[str, str]
    stored: Mapping[str, str]
    names: Mapping[str, str]
    floats: tuple[str, ...] | None
    others: Mapping[str, str]
    computed: frozenset[str]
    folding: Folding | None

    @classmethod
    def of(cls, source: Checkpoint, config: QuantConfig, format: str | None = None) -> Plan:
        """Asks transformers for the model's Linears; where it has no answer, `targets` must name
        them, and every weight [N, K] that it matches is taken for a Linear's.

        Raises:
            ValueError: the checkpoint is quantised; config means no Linear, one that has no weight
                of its own there, or schemes that no one format has.
            ModuleNotFoundError: transformers is not installed, and `targets` says nothing.
        """
        if source.quantization is not None:
            raise ValueError(f"{source.folder}: is quantised already")
        model, known = _modules(source, config)
        meant = linears(model, config)
        names = _names(model, source)
        stored = {name: file for file, name in names.items()}
        kept = {name: x for name, x in meant.items() if not is_conv1d(x)}
        whole = [  # experts that lie stacked in the files, too
            name
            for name, x in kept.items()
            if is_experts(x) and any(f"{name}.{stack}" in stored for stack in parts_of(x))
        ]
        parts = {n: dict(linears_in(n, x)) for n, x in kept.items() if n not in whole}
        found = {part: linear for linears in parts.values() for part, linear in linears.items()}
        modules = {part: name for name, linears in parts.items() for part in linears}
        if not found and meant:
            raise ValueError(
                f"targets must match an nn.Linear, got {next(iter(meant))}, a Conv1D: "
                "compressed-tensors' format has no place for it, but quantize_model takes it"
            )
        if not found:
            raise ValueError(nothing_meant(model, config))
        _check(source, stored, model, found, lambda name: config.scheme_for(modules[name]))
        in_files = {name: _layer_of(stored[f"{name}.weight"]) for name in found}
        floats = [
            _layer_of(stored.get(f"{name}.weight", f"{name}.weight"))
            for name, module in model.named_modules(remove_duplicate=False)
            if is_linear(module) and name not in modules
        ]
        schemes = {
            part: stored_as(_in_words(config.scheme_for(name)), part, format)
            for part, name in modules.items()
        }
        if one_format(schemes) == METHOD and not known:
            raise ValueError(
                f"{source.folder}: transformers must know the model, for {METHOD} names the "
                "Linears that stay float"
            )
        # Buffers that a state dict leaves out; old checkpoints hold some of them.
        buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        made = buffers - model.state_dict().keys()
        computed = frozenset(file for file, name in names.items() if name in made)
        left = report_of(model, config, {n: kept[n] for n in parts}, {}).floats if known else ()
        stacked = "stacked in the files, which quantize_model takes, once they are loaded"
        others = {
            x.name: stacked if x.name.rpartition(".")[0] in whole else x.why
            for x in left
            if x.counted and not x.asked
        }
        return cls(
            *(source, config, schemes, modules, in_files, names),
            *(tuple(floats) if known else None, others, computed),
            _folding(source, model, stored, config),
        )

    def scheme_for(self, name: str) -> AnyScheme:
        """The scheme of a layer, in the config's words."""
        return self.config.scheme_for(self.modules[name])

    @property
    def calibrated(self) -> bool:
        """Whether scales or divisors come from running the float model."""
        static = any(self.scheme_for(name).static for name in self.schemes)
        return static or self.config.smoothing is not None

    @property
    def runs(self) -> bool:
        """Whether the float model has to run: to calibrate, or to show what a rotation left."""
        return self.calibrated or self.folding is not None

    @cached_property
    def new_head(self) -> bool:
        """Whether a rotation parts the head from the embedding, whose weight it shared."""
        turned = self.folding is not None and f"{HEAD}.weight" in self.folding.folds
        return turned and f"{HEAD}.weight" not in self.names.values()

    def folded(self, name: str, x: Tensor) -> Tensor:
        """A tensor of the model as the rotation makes it."""
        return x if self.folding is None else self.folding(name, x)

    @cached_property
    def weights(self) -> dict[str, str]:
        """Name of each weight that is quantised -> its layer."""
        return {f"{self.stored[name]}.weight": name for name in self.schemes}

    @property
    def share(self) -> float:
        """Part of the files' parameters that is quantised."""
        sizes = {name: math.prod(self.source.entry(name).shape) for name in self.source.where}
        return sum(sizes[name] for name in self.weights) / max(1, sum(sizes.values()))

    def planned(self, file: TensorFile) -> list[Planned]:
        """The tensors that a file of the source becomes, in its order."""
        made: list[Planned] = []
        for entry in file.entries.values():
            layer = self.weights.get(entry.name)
            if layer is not None:
                made += self._layer(layer, DTYPES[entry.dtype], *entry.shape)
            elif entry.name not in self.computed:
                made.append(Planned(entry.name, entry.dtype, entry.shape))
                if self.new_head and self.names.get(entry.name) == f"{EMBEDDING}.weight":
                    made.append(Planned(f"{HEAD}.weight", entry.dtype, entry.shape))
        return made

    def _layer(self, name: str, dtype: torch.dtype, n: int, k: int) -> list[Planned]:
        in_bytes = format_of(self.schemes[name]) == INT
        parts = _parts(self.scheme_for(name), in_bytes, dtype, n, k)
        return [replace(part, name=f"{self.stored[name]}.{part.name}") for part in parts]


@cache
def _parts(scheme: AnyScheme, in_bytes: bool, dtype: torch.dtype, n: int, k: int) -> list[Planned]:
    """The tensors of a layer, which one without values tells, by their names within it."""
    layer = empty("layer", nn.Linear(k, n, bias=False, device="meta", dtype=dtype), scheme)
    made = layer_tensors("layer", layer, dtype, in_bytes)
    return [Planned.like(name.removeprefix("layer."), x) for name, x in made.items()]


def _modules(source: Checkpoint, config: QuantConfig) -> tuple[nn.Module, bool]:
    """Modules of the names in the files, and whether they are the model's own."""
    try:
        return skeleton(source), True
    except (ValueError, ModuleNotFoundError) as error:
        if config.targets == TARGETS:
            raise type(error)(f"{error}; or name the Linears (targets)") from error
    model = nn.Module()
    for tensor in source.where:
        name, _, part = tensor.rpartition(".")
        entry = source.entry(tensor)
        if part != "weight" or not name or len(entry.shape) != 2 or entry.dtype not in FLOATS:
            continue
        owner = model
        *owners, last = name.split(".")
        for each in owners:
            if not isinstance(getattr(owner, each, None), nn.Module):
                owner.add_module(each, nn.Module())
            owner = owner.get_submodule(each)
        n, k = entry.shape
        owner.add_module(last, nn.Linear(k, n, bias=False, device="meta"))
    return model, False


def _names(model: nn.Module, source: Checkpoint) -> dict[str, str]:
    """The model's names of the files' tensors that are its own, or weights of its experts."""
    names, found = Names(model), {}
    for each in names.given(source.where):
        if each.converter is None:
            found[each.files[0][0]] = each.name
        for file, _ in each.files if each.converter is not None else ():
            if (name := names.expert(_layer_of(file))) is not None:
                found[file] = f"{name}.weight"
    return found


def _check(
    source: Checkpoint,
    stored: Mapping[str, str],
    model: nn.Module,
    found: Mapping[str, nn.Linear],
    scheme_for: Callable[[str], AnyScheme],
) -> None:
    """That every layer has a float weight of its own in the files, and no scales."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    shared = {*tied, *tied.values()}

    def refuse(reason: str) -> None:
        raise ValueError(f"{source.folder}: {reason}")

    for name, linear in found.items():
        weight = f"{name}.weight"
        if weight in shared:
            refuse(f"{weight} is tied to another tensor: leave it out (ignore)")
        if weight not in stored:
            refuse(f"has no {weight}, which {type(model).__name__} has")
        weight = stored[weight]
        entry, wanted = source.entry(weight), (linear.out_features, linear.in_features)
        if entry.dtype not in FLOATS or entry.shape != wanted:
            rule = f"must be {' or '.join(FLOATS)} of shape {list(wanted)}"
            refuse(f"{weight} {rule}, got {entry.dtype} {list(entry.shape)}")
        if (reason := why_not(scheme_for(name), entry.shape[1])) is not None:
            refuse(f"{weight} {reason}")
        for part in ("weight_scale", "weight_packed", "input_scale", "input_zero_point"):
            if f"{_layer_of(weight)}.{part}" in source:
                refuse(f"has {_layer_of(weight)}.{part} already, without quantization_config")


def _folding(
    source: Checkpoint, model: nn.Module, stored: Mapping[str, str], config: QuantConfig
) -> Folding | None:
    """What the config's rotation makes of the model; ValueError where the files have not all."""
    if config.rotation is None:
        return None

    def file_of(name: str) -> str:
        if name not in stored:
            raise ValueError(f"{source.folder}: has no {name}, which is rotated")
        return stored[name]

    found = folding_of(model, config.rotation, lambda name: source.read(file_of(name)))
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    for name in found.folds:
        if name != f"{HEAD}.weight" or name not in tied:
            file_of(name)
    return found


def _layer_of(weight: str) -> str:
    return weight.removesuffix(".weight")


def _in_words(scheme: AnyScheme) -> AnyLayerScheme:
    if isinstance(scheme, BlockScheme):
        return scheme
    if isinstance(scheme, WeightScheme):
        kinds = scheme.bits, scheme.group_size, scheme.symmetric
        return PackedScheme(*kinds, int8_input=scheme.int8_input)
    per_token = scheme.dynamic if scheme.per_token is None else scheme.per_token
    kinds = scheme.dynamic, scheme.symmetric, per_token
    return W8A8Scheme(*kinds, per_channel=True, rotate=scheme.rotate)


def fingerprint(plan: Plan, batches: Sequence[Any]) -> str:
    """A name for source, settings and calibration together: two runs of one name write the same.

    A file counts as the same by name, size, time of its last change, and header.
    """
    files = [
        [
            file.path.name,
            file.size,
            file.path.stat().st_mtime_ns,
            hashlib.sha256(file.header).hexdigest(),
        ]
        for file in plan.source.files.values()
    ]
    config = plan.config
    said = {
        "files": files,
        "config": plan.source.config,
        "schemes": {name: str(scheme) for name, scheme in plan.schemes.items()},
        "smoothing": asdict(config.smoothing) if config.smoothing else None,
        "percentile": config.percentile,
        "rotation": asdict(config.rotation) if config.rotation else None,
        "batches": _digest(batches),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _digest(batches: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        call = as_call(batch)
        for leaf in tree_leaves((call.args, dict(call.kwargs), call.mask)):
            if isinstance(leaf, Tensor):
                digest.update(f"{leaf.dtype} {tuple(leaf.shape)} ".encode())
                digest.update(raw_bytes(leaf))
            else:
                digest.update(f"{leaf!r} ".encode())
    return digest.hexdigest()
