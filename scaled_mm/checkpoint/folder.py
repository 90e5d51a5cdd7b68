"""A checkpoint: config.json, and one safetensors file or shards with an index."""

from __future__ import annotations

import json
from dataclasses import asdict
from os.path import lexists  # a broken link is refused by name, not taken for no file
from pathlib import Path
from typing import Any

from torch import Tensor

from ..quantization.rotation import Rotation
from .config import Quantization, read_quantization
from .fields import MAX_JSON, Fields, read_json
from .files import Entry, TensorFile
from .paths import PICKLES, check_file_name, check_name, refuse_other_formats, regular_file

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"


class Checkpoint:
    """A checkpoint whose headers, index and config were read and found in order.

    Args:
        path: a folder (with model.safetensors, or with shards and model.safetensors.index.json, or
            with one *.safetensors file), or a .safetensors file, or an index.

    Attributes:
        folder: where the files are.
        index: the path of the index, or None; index_fields: what it holds.
        files: by file name, in order.
        where: the file of each tensor.
        config: config.json as it is; {} where there is none.
        quantization: which layers are quantised how; None: a float checkpoint, such as
            SmoothQuant's.

    Raises:
        ValueError: something in it is malformed or not understood; the message names it.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.folder = path if path.is_dir() else path.parent
        self.index, paths = _files_of(path)
        self.index_fields: dict[str, Any] = {}
        weight_map: dict[str, str] | None = None
        if self.index is not None:
            self.index_fields = read_json(self.index, MAX_JSON)
            weight_map = _weight_map(self.index, self.index_fields)
            paths = [self.folder / name for name in sorted(set(weight_map.values()))]
        self.files = {each.name: TensorFile(each) for each in paths}
        self.where = self._where(weight_map)
        config = self.folder / CONFIG
        self.config: dict[str, Any] = read_json(config) if lexists(config) else {}
        self.quantization: Quantization | None = read_quantization(self.folder, self.config)

    def _where(self, weight_map: dict[str, str] | None) -> dict[str, TensorFile]:
        where: dict[str, TensorFile] = {}
        for file in self.files.values():
            for name in file.entries:
                if name in where:
                    raise ValueError(f"{file.path}: {name} is in {where[name].path.name} too")
                if weight_map is not None and weight_map.get(name) != file.path.name:
                    raise ValueError(f"{self.index}: does not say that {name} is in {file.path}")
                where[name] = file
        for name, shard in (weight_map or {}).items():
            if name not in where:
                raise ValueError(f"{self.index}: says that {name} is in {shard}, which has it not")
        return where

    def entry(self, name: str) -> Entry:
        """Dtype, shape and place of a tensor; KeyError where there is none."""
        return self.where[name].entries[name]

    def read(self, name: str) -> Tensor:
        """A tensor, in memory of its own; KeyError where there is none."""
        return self.where[name].read(name)

    def paths(self) -> list[Path]:
        """Every file that was read."""
        config = self.folder / CONFIG
        index = [self.index] if self.index else []
        return [*(file.path for file in self.files.values()), config, *index]

    def __contains__(self, name: object) -> bool:
        return name in self.where


def _files_of(path: Path) -> tuple[Path | None, list[Path]]:
    """The index, or the one file."""
    if not path.is_dir():
        regular_file(path)
        if path.name.endswith(".index.json"):
            return path, []
        return None, [path]
    index, whole = path / INDEX, path / "model.safetensors"
    if lexists(index) and lexists(whole):
        raise ValueError(f"{path}: has both {INDEX} and {whole.name}; name the one that is meant")
    if lexists(index):
        return index, []
    found = [whole] if lexists(whole) else sorted(path.glob("*.safetensors"))
    if len(found) > 1:
        raise ValueError(f"{path}: has {len(found)} .safetensors files and no {INDEX}")
    if not found:
        for other in sorted(path.iterdir()):
            if other.suffix in PICKLES and other.is_file():
                refuse_other_formats(other)
        raise ValueError(f"{path}: has no .safetensors file")
    return None, found


def _weight_map(index: Path, fields: dict[str, Any]) -> dict[str, str]:
    reader = Fields(str(index))
    weight_map = reader.object("weight_map", fields.get("weight_map"))
    if not weight_map:
        reader.refuse("weight_map must name tensors, got none")
    reader.object("metadata", fields.get("metadata") or {})
    for name in weight_map:
        check_name(name, "tensor name", index)
    for shard in {reader.text(name, shard) for name, shard in weight_map.items()}:
        check_file_name(shard, "shard name", index)
        if not shard.endswith(".safetensors"):
            # Its first bytes tell more than its name.
            if (index.parent / shard).is_file():
                refuse_other_formats(index.parent / shard)
            raise ValueError(f"{index}: a shard must be a .safetensors file, got {shard}")
    return weight_map


_ROTATION = "scaled_mm.rotation"


def rotation_metadata(rotation: Rotation | None) -> dict[str, str]:
    """For the `__metadata__` of every shard: the rotation with its seed."""
    return {} if rotation is None else {_ROTATION: json.dumps(asdict(rotation))}


def rotation_in(checkpoint: Checkpoint) -> Rotation | None:
    """What `rotation_metadata` put into a checkpoint; ValueError where it is none."""
    for file in checkpoint.files.values():
        if (text := file.metadata.get(_ROTATION)) is not None:
            try:
                fields = json.loads(text)
                if not all(x is None or type(x) in (bool, int) for x in fields.values()):
                    raise TypeError("its fields are numbers and switches")
                return Rotation(**fields)
            except (AttributeError, TypeError, ValueError) as error:
                raise ValueError(f"{file.path}: {_ROTATION} must be a Rotation: {error}") from error
    return None
