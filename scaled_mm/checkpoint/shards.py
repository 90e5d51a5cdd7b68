"""A new safetensors file, whose tensors are made one at a time.

    [header length, 8 bytes] [header, JSON, padded to 8 bytes] [data]

Names, dtypes and shapes are known beforehand, so the header is written first and no two tensors
need be in memory together. Elements of more bytes come first, which keeps all of them aligned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import DTYPES, NAMES, Entry
from .writing import Draft, header_of, new_file


@dataclass(frozen=True)
class Planned:
    """A tensor that is not made yet."""

    name: str
    dtype: str
    """As the format spells it: F32."""
    shape: tuple[int, ...]

    @classmethod
    def like(cls, name: str, x: Tensor) -> Planned:
        if x.dtype not in NAMES:
            raise ValueError(f"{name} must have a dtype that safetensors has, got {x.dtype}")
        return cls(name, NAMES[x.dtype], tuple(x.shape))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class NewShard:
    """A file that is planned; `header` includes its own length."""

    def __init__(self, name: str, planned: Iterable[Planned], metadata: Mapping[str, str]) -> None:
        self.name = name
        ordered = sorted(planned, key=lambda each: -DTYPES[each.dtype].itemsize)
        self.entries: dict[str, Entry] = {}
        at = 0
        for each in ordered:
            if each.name in self.entries:
                raise ValueError(f"{name}: two tensors would have the name {each.name}")
            end = at + each.nbytes
            self.entries[each.name] = Entry(each.name, each.dtype, each.shape, at, end)
            at = end
        self.header = header_of(self.entries.values(), metadata, name)
        self.size = len(self.header) + at

    def write(
        self,
        path: Path,
        tensors: Iterable[tuple[str, Tensor]],
        progressed: Callable[[int], None] = lambda done: None,
        mode: int = 0o666,
    ) -> None:
        """Writes the file; it has its name when it is whole.

        Args:
            path: where, the name included.
            tensors: every planned tensor once, in any order; asked for one at a time.
            progressed: called with the bytes of each.
            mode: as for `new_file`.
        """
        missing = set(self.entries)
        with new_file(path, mode) as file:
            file.write(self.header)
            for name, x in tensors:
                entry = self.entries[name]
                if Planned.like(name, x) != Planned(name, entry.dtype, entry.shape):
                    raise ValueError(f"{name} must be {entry.dtype} {entry.shape}, got {x.dtype}")
                missing.remove(name)
                file.seek(len(self.header) + entry.begin)
                if entry.nbytes:
                    file.write(memoryview(raw_bytes(x)))
                del x  # before the next one is made
                progressed(entry.nbytes)
            if missing:
                raise ValueError(f"{path}: {sorted(missing)[0]} was not made")

    def is_there(self, path: Path) -> bool:
        """Whether a file of this header and size lies there. (A file has its name when it is whole,
        so that its data is not read again.)"""
        if not path.is_file() or path.is_symlink() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return file.read(len(self.header)) == self.header


def raw_bytes(x: Tensor) -> Any:
    """The bytes of a tensor, as a buffer."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def split(planned: Sequence[Planned], most: int) -> list[list[Planned]]:
    """Cuts into shards of at most so many bytes, in order; a tensor that is larger has its own."""
    shards: list[list[Planned]] = []
    room = 0
    for each in planned:
        if not shards or each.nbytes > room:
            shards.append([])
            room = most
        shards[-1].append(each)
        room -= each.nbytes
    return shards


def shard_names(count: int) -> list[str]:
    """The file names of so many shards, as transformers gives them."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def index_of(shards: Sequence[NewShard | Draft], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """model.safetensors.index.json; metadata: what it is to hold besides the total size."""
    total = sum(entry.nbytes for shard in shards for entry in shard.entries.values())
    where = {name: shard.name for shard in shards for name in shard.entries}
    return {
        "metadata": {**metadata, "total_size": total},
        "weight_map": dict(sorted(where.items())),
    }
