"""Shards with azp terms added, and files that are there whole or not at all.

    data of a shard:  [up to the last tensor of 8-byte elements] [new azp terms] [the rest]

All tensors keep their order and bytes. The terms are int32, so whatever was aligned to its elements
stays so: only elements of 4 bytes or fewer are shifted, by multiples of 4 bytes.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from .fields import MAX_JSON
from .files import Entry, TensorFile
from .folder import Checkpoint
from .layers import Int8Layer
from .paths import regular_file

MARK = "scaled_mm.azp"
"""Stands in the `__metadata__` of every shard that is written here, as "1"."""

PARTIAL = ".partial"
"""Ends the name of a file that is being written."""

BUFFER = 512 << 10  # the second-level cache holds it: copied, summed, compared while it is there
_EIGHT_BYTES = ("I64", "U64", "F64", "C64")


class Draft:
    """An output shard that is not written yet; `header` includes its own length, `entries` are all
    tensors, and `terms` has for each new one the layer and where in the data it begins."""

    def __init__(self, source: Checkpoint, file: TensorFile, layers: dict[str, Int8Layer]) -> None:
        self._source = source
        self._file = file
        self._entries = list(file.entries.values())
        # The layers whose weights are here and are summed.
        weights = {f"{name}.weight": layer for name, layer in layers.items() if layer.scheme.term}
        self._summed = {name: weights[name] for name in file.entries if name in weights}
        kept = [i for i, entry in enumerate(self._entries) if entry.dtype in _EIGHT_BYTES]
        self._first = kept[-1] + 1 if kept else 0  # the first tensor behind the terms
        at = begin = self._entries[self._first - 1].end if self._first else 0
        self.terms: dict[str, tuple[int, Int8Layer]] = {}
        for layer in self._summed.values():
            if layer.scheme.term not in layer.parts:
                self.terms[f"{layer.name}.{layer.scheme.term}"] = (at, layer)
                at += 4 * layer.n
        self._shift = at - begin
        shifted = [
            replace(entry, begin=entry.begin + shift, end=entry.end + shift)
            for entry, shift in self._shifted()
        ]
        terms = [
            Entry(name, "I32", (1, layer.n), at, at + 4 * layer.n)
            for name, (at, layer) in self.terms.items()
        ]
        in_order = [*shifted[: self._first], *terms, *shifted[self._first :]]
        self.entries = {entry.name: entry for entry in in_order}
        self.name = file.path.name
        metadata = {**file.metadata, MARK: "1"}
        self.header = header_of(self.entries.values(), metadata, f"{file.path}: with azp terms")
        self.size = len(self.header) + file.size - file.data + self._shift

    def _shifted(self) -> Iterator[tuple[Entry, int]]:
        """The old tensors, and by how much each moves."""
        for i, entry in enumerate(self._entries):
            yield entry, self._shift if i >= self._first else 0

    def write(self, path: Path, progressed: Callable[[int], None]) -> None:
        """Writes the shard; path is there afterwards, whole, or as it was if this fails."""
        with new_file(path, mode_of(self._file.path)) as file:
            file.write(self.header)
            for at, piece in self._pieces():
                file.seek(len(self.header) + at)
                file.write(piece)
                progressed(len(piece))

    def is_in(self, path: Path, progressed: Callable[[int], None]) -> bool:
        """Whether the file holds just what would be written."""
        if not path.exists() or path.stat().st_size != self.size:
            return False
        done = 0
        with path.open("rb", buffering=0) as file:
            same = file.read(len(self.header)) == self.header
            for at, piece in self._pieces() if same else ():
                file.seek(len(self.header) + at)
                same = np.array_equal(np.fromfile(file, np.uint8, len(piece)), piece)
                if not same:
                    break
                done += len(piece)
                progressed(len(piece))
        if not same:
            progressed(-done)  # it will be done again
        return same

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        """The data section as (where, bytes), a weight's term after the weight.

        A piece is valid until the next one is asked for.
        """
        buffer = memoryview(bytearray(BUFFER))
        with self._file.open() as file:
            file.seek(self._file.data)
            for entry, shift in self._shifted():
                layer = self._summed.get(entry.name)
                rows = max(1, BUFFER // layer.k) if layer and layer.k else 0
                step = rows * layer.k if layer and rows else BUFFER
                term = torch.zeros(1, layer.n, dtype=torch.int32) if layer else None
                zero = layer.zero_point(self._source) if layer else None
                for at in range(entry.begin, entry.end, step):
                    piece = buffer[: min(step, entry.end - at)]
                    self._file.fill(file, entry.name, piece)
                    yield at + shift, piece
                    if layer is not None and term is not None:
                        weight = torch.frombuffer(piece, dtype=torch.int8).view(-1, layer.k)
                        first = (at - entry.begin) // layer.k
                        term[:, first : first + len(weight)] = layer.term(weight, zero)
                if layer is not None and term is not None:
                    yield from self._term(layer, term)

    def _term(self, layer: Int8Layer, term: Tensor) -> Iterator[tuple[int, memoryview]]:
        name = f"{layer.name}.{layer.scheme.term}"
        if name in self.terms:
            yield self.terms[name][0], memoryview(term.numpy().tobytes())
        else:
            layer.check_term(self._source, term)


def header_of(entries: Iterable[Entry], metadata: Mapping[str, str], whose: str) -> bytes:
    """The header of a file with these tensors, its own length in front; whose: for a refusal."""
    fields: dict[str, Any] = {"__metadata__": dict(metadata)}
    for entry in entries:
        place = {"data_offsets": [entry.begin, entry.end]}
        fields[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, **place}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # as the safetensors package pads: the data is aligned
    if len(text) > MAX_JSON:
        raise ValueError(f"{whose}: its header must be at most {MAX_JSON:,} bytes")
    return struct.pack("<Q", len(text)) + text


def is_marked(path: Path, mark: str, value: str) -> bool:
    """Whether a file, perhaps a damaged one, begins as a shard with this in its metadata does."""
    regular_file(path)
    with path.open("rb") as file:
        length = file.read(8)
        if len(length) < 8 or (size := int.from_bytes(length, "little")) > MAX_JSON:
            return False
        return f'"{mark}":"{value}"'.encode() in file.read(size)


def partial(path: Path) -> Path:
    """Where a file is written before it has its name."""
    return path.with_name(f".{path.name}{PARTIAL}")


def mode_of(path: Path) -> int:
    """The permissions of a file or folder; those of a new file where there is none."""
    return stat.S_IMODE(path.stat().st_mode) & 0o777 if path.exists() else 0o666


@contextmanager
def new_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write; synced and renamed to path at the end, removed on an error.

    It is buffered, for a buffered file writes all that it is given or raises: a raw write that
    meets a limit or a full disk may write a part and say so only in what it returns.

    Args:
        path: of the file. Two runs must not write it at once (`output_folder` sees to that).
        mode: its permissions, which the umask narrows.
    """
    temporary = partial(path)
    temporary.unlink(missing_ok=True)  # of a run that was killed
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """What was renamed there stays renamed when the power fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
