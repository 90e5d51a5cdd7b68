"""`save_quantized`: a quantised model as a compressed-tensors checkpoint."""

from __future__ import annotations

import copy
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledExperts
from ..nn.float_experts import is_experts
from ..quantization.compressed_tensors import (
    INT,
    AnyLayerScheme,
    Saved,
    is_linear,
    layer_tensors,
    quantization_config,
    refuse_homeless,
    scheme_of_layer,
    stored_as,
)
from ..quantization.observe import hooked
from ..quantization.report import rotation_of
from ..quantization.stored_names import expert_layers, expert_schemes
from .fields import read_json
from .folder import CONFIG, INDEX, rotation_metadata
from .output import copy_file, other_files, write_json
from .shards import NewShard, Planned, index_of, shard_names, split

MAX_SHARD = 5_000_000_000
GENERATION = "generation_config.json"
_INT8 = (torch.int8, torch.uint8)
Quantised = Saved | ScaledExperts


_Make = Callable[[], Mapping[str, Tensor]]
"""Makes tensors that belong together: a quantised layer's, or one float tensor."""


def save_quantized(
    model: nn.Module,
    path: str | Path,
    *,
    source: str | Path | None = None,
    max_shard_bytes: int = MAX_SHARD,
    format: str | None = None,
) -> None:
    """Writes a model with `ScaledLinear`s as a W8A8 checkpoint of compressed-tensors, one with
    `WeightOnlyLinear`s as a W8A16, W4A16 or W4A8 one, and one with `ScaledBlockLinear`s as a
    "blockwise_int8" one.

    | file | holds |
    |---|---|
    | model.safetensors, or shards with model.safetensors.index.json | every tensor once |
    | config.json | the model's own config, and `quantization_config` |
    | the others of `source` | tokenizer and so on, copied |

    `load_quantized` reads it back with the same bits. transformers reads it through the
    compressed-tensors package, with its own arithmetic. Layers of one scheme are one config
    group. Linears that stayed float are in `ignore`. Float tensors keep their dtype; a bias gets
    that of the model where it loses nothing by it. Scales are float32 in W8A8, and of the layer's
    16-bit dtype in weight-only layers.

    The folder has its name when it is whole: it is written under another one beside it.

    Args:
        model: from `quantize_model`, say; on any device. Where it has a `config` that transformers
            made, that becomes config.json.
        path: a folder, new or empty.
        source: the folder of the float model, whose other files are copied. None: where
            transformers loaded the model from, if that is a folder.
        max_shard_bytes: a shard has at most so many bytes of tensors, unless one alone has more.
        format: None: "int-quantized" for W8A8, "pack-quantized" for weights alone and W4A8. Values
            of 4 bits may be "int-quantized" too, one to a byte.

    Raises:
        ValueError: the model has none of these layers, or two kinds; or something
            that the format has no place for (`input_smooth`, `pre_scale`, GPT-2's
            Conv1D), named; path is not new or empty.
        OSError: a file cannot be read or written. Nothing is left then.

    Source: compressed-tensors' int-quantized and pack-quantized formats; SGLang's blockwise_int8.
    """
    path = Path(path)
    layers = _modules(model)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"path must be a folder that is new or empty, got {path}")
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}")
    _check_kinds(model, layers)
    source = _source(model, source)
    schemes = {name: stored_as(x, name, format) for name, x in _schemes(model, layers).items()}
    # Every name of the modules that a target "Linear" means though they stayed float.
    floats = [name for name, x in model.named_modules(remove_duplicate=False) if is_linear(x)]
    makes = _makes(model, layers, format == INT)
    planned = [Planned.like(name, x) for make in makes for name, x in make().items()]
    parts = split(planned, max_shard_bytes)
    shards = [
        NewShard(name, part, {"format": "pt", **rotation_metadata(rotation_of(model))})
        for name, part in zip(shard_names(len(parts)), parts, strict=True)
    ]
    config = _config(model, source)
    config["quantization_config"] = quantization_config(schemes, floats, rotation_of(model))
    with _whole(path) as folder:
        for shard in shards:
            shard.write(folder / shard.name, _tensors(makes, shard))
        if len(shards) > 1:
            write_json(folder / INDEX, index_of(shards, {}))
        _other_files(model, source, folder)
        write_json(folder / CONFIG, config)


def _modules(model: nn.Module) -> dict[str, Quantised]:
    """The quantised modules, each once, by its first name."""
    layers: dict[str, Quantised] = {}
    for name, module in model.named_modules():
        if isinstance(module, Saved):
            refuse_homeless(name, module)
        if isinstance(module, Quantised):
            layers[name] = module
    if not layers:
        raise ValueError("model must hold a quantised layer, such as a ScaledLinear, got none")
    if "" in layers:
        raise ValueError("model must hold its quantised layers under names, got one by itself")
    return layers


def _layers(model: nn.Module, name: str, module: Quantised) -> dict[str, Callable[[], Any]]:
    """`layers_in` a quantised module, by their names in the files."""
    if isinstance(module, ScaledExperts):
        return expert_layers(model, name, module)
    return {name: lambda: module}


def _schemes(model: nn.Module, modules: Mapping[str, Quantised]) -> dict[str, AnyLayerScheme]:
    found: dict[str, AnyLayerScheme] = {}
    for name, module in modules.items():
        if isinstance(module, ScaledExperts):
            found |= expert_schemes(model, name, module)
        else:
            found[name] = scheme_of_layer(module)
    return found


def _check_kinds(model: nn.Module, layers: Mapping[str, Quantised]) -> None:
    """That the float model has Linears there: of a Conv1D the format's weight is the transpose, and
    its readers would take the int8 values for float ones."""
    own: Any = getattr(model, "config", None)
    if not hasattr(own, "to_json_string"):
        return
    try:
        with torch.device("meta"):
            frame: nn.Module = type(model)(copy.deepcopy(own))
    except Exception:  # a class of somebody's own, which is made in another way
        return
    kinds = dict(frame.named_modules())
    for name in layers:
        if name in kinds and not (is_linear(kinds[name]) or is_experts(kinds[name])):
            kind = type(kinds[name]).__name__
            raise ValueError(
                f"{name}: is a {kind} in the float model, and compressed-tensors' format has a "
                "place for Linears only: skip it, or save the state_dict"
            )


def _makes(model: nn.Module, layers: Mapping[str, Quantised], in_bytes: bool) -> list[_Make]:
    """All tensors, in the order of the modules."""
    kept = _once(model, _floats(model, layers.values()))
    floats: dict[str, list[str]] = {}
    for name in kept:
        floats.setdefault(name.rpartition(".")[0], []).append(name)
    sizes: Counter[torch.dtype] = Counter()
    for x in kept.values():
        sizes[x.dtype] += x.numel() * x.is_floating_point()
    dtype = sizes.most_common(1)[0][0] if +sizes else torch.float32
    makes: list[_Make] = []
    for name, _ in model.named_modules(remove_duplicate=False):
        if name in layers:
            for file, made in _layers(model, name, layers[name]).items():
                makes.append(partial(_tensors_of, file, made, dtype, in_bytes))
        makes += [partial(dict, [(tensor, kept[tensor])]) for tensor in floats.get(name, ())]
    return makes


def _tensors_of(
    name: str, layer: Callable[[], Any], dtype: torch.dtype, in_bytes: bool
) -> dict[str, Tensor]:
    return layer_tensors(name, layer(), dtype, in_bytes)


def _floats(model: nn.Module, layers: Iterable[Quantised]) -> dict[str, Tensor]:
    """What the state dict has of everything but the quantised layers. They leave it at once, so
    that there is one plain weight at a time."""

    def leave(layer: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]

    hooks = [layer.register_state_dict_post_hook(leave) for layer in layers]
    with hooked(hooks):
        found: dict[str, Any] = model.state_dict(keep_vars=True)
    for tensor, x in found.items():
        if not isinstance(x, Tensor) or x.is_meta:
            got = "one on the meta device" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"{tensor} must be a tensor with values, got {got}")
        if x.dtype in _INT8 and x.ndim > 1:
            kind = type(model.get_submodule(tensor.rpartition(".")[0])).__name__
            raise ValueError(
                f"{tensor} must be float, got {x.dtype} of a {kind}, which the format has no place "
                "for"
            )
    return found


def _once(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under one name: a tied one under that which transformers looks for."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    first: dict[Any, str] = {}
    for name in sorted(tensors, key=lambda name: name in tied):
        x = tensors[name]
        place = (x.data_ptr(), x.device, x.dtype, x.shape, x.stride()) if x.numel() else name
        first.setdefault(place, name)
    names = set(first.values())
    return {name: x for name, x in tensors.items() if name in names}


def _tensors(makes: list[_Make], shard: NewShard) -> Iterator[tuple[str, Tensor]]:
    seen = 0
    for make in makes:
        if seen == len(shard.entries):
            return
        for name, x in make().items():
            if name in shard.entries:
                seen += 1
                yield name, x


def _source(model: nn.Module, source: str | Path | None) -> Path | None:
    if source is not None:
        if not Path(source).is_dir():
            raise ValueError(f"source must be a folder, got {source}")
        return Path(source)
    name = getattr(model, "name_or_path", None)
    found = Path(name) if isinstance(name, str) and name else None
    return found if found and (found / CONFIG).is_file() else None


def _config(model: nn.Module, source: Path | None) -> dict[str, Any]:
    """config.json as it would be for the float model."""
    own: Any = getattr(model, "config", None)
    if hasattr(own, "to_json_string"):
        fields: dict[str, Any] = json.loads(own.to_json_string())
        fields["architectures"] = [type(model).__name__]
        fields["dtype"] = str(getattr(model, "dtype", torch.float32)).removeprefix("torch.")
    else:
        found = source / CONFIG if source else None
        fields = read_json(found) if found and found.is_file() else {}
    fields.pop("compression_config", None)  # another name of quantization_config, until 2024
    head: Any = getattr(model, "get_output_embeddings", lambda: None)
    if isinstance(head(), Saved):  # transformers would put the embeddings in its place
        fields["tie_word_embeddings"] = False
    return fields


def _other_files(model: nn.Module, source: Path | None, folder: Path) -> None:
    made = {path.name for path in folder.iterdir()} | {CONFIG, INDEX}
    for path in other_files(source, made)[0] if source else ():
        copy_file(path, folder / path.name)
    generation: Any = getattr(model, "generation_config", None)
    if hasattr(generation, "to_json_string") and not (folder / GENERATION).exists():
        write_json(folder / GENERATION, json.loads(generation.to_json_string()))


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A new folder that becomes `path` at the end, and is removed on an error."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    folder.mkdir()
    try:
        yield folder
        folder.replace(path)  # onto an empty folder too
    except BaseException:
        shutil.rmtree(folder)
        raise
