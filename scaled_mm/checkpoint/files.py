"""One safetensors file from somebody who may mean harm.

    [header length, 8 bytes, little-endian] [header, JSON] [data]

    {"__metadata__": {str: str},
     NAME: {"dtype": "I8", "shape": [N, K], "data_offsets": [begin, end]}, ...}

The tensors must tile the data: no overlap, no hole, no byte left over. Refused beyond the format's
own rules: names that stand twice, leading whitespace, unknown fields, names that cannot be printed
or that read as paths, sizes beyond 2^62, and whatever is no regular file. Nothing is allocated
before the header's length has been checked.

The file is read and never mapped: a mapped file that somebody cuts off kills the process.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .fields import MAX_INTEGER, MAX_JSON, Fields, parse_json, shown
from .paths import check_name, refuse_other_formats, regular_file

MAX_DIMS = 64  # torch and numpy have no more

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()}
_BITS |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: `begin` and `end` count bytes of the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class TensorFile:
    """A safetensors file whose header was checked; tensors are read one at a time.

    Attributes:
        path: the file.
        header: its bytes, without the length in front.
        entries: the tensors by name, in the order of their data.
        metadata: the header's `__metadata__`.
        data: where the data section begins.
        size: of the file, in bytes.

    Raises:
        ValueError: the file is no safetensors file, or breaks a rule above.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        regular_file(path)
        refuse_other_formats(path)
        self._fields = Fields(str(path))
        with path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            self._identity, self.size = (found.st_dev, found.st_ino), found.st_size
            if self.size < 8:
                self._refuse(f"must begin with the 8 bytes of a length, got {self.size}")
            (length,) = struct.unpack("<Q", self._bytes(file, "header", 8))
            if length > MAX_JSON:
                self._refuse(f"the header must be at most {MAX_JSON:,} bytes, got {length:,}")
            if length > self.size - 8:
                self._refuse(f"the header must end within the file, got {length:,} bytes")
            self.header = self._bytes(file, "header", length).tobytes()
        self.data = 8 + length
        if not self.header.startswith(b"{"):
            self._refuse("the header must begin with {, " + f"got {self.header[:1]!r}")
        fields = parse_json(self.header, path)
        metadata = fields.pop("__metadata__", None)
        self.metadata = self._fields.object("__metadata__", {} if metadata is None else metadata)
        for key, text in self.metadata.items():
            self._fields.text(f"__metadata__.{shown(key)}", text)
        entries = [self._entry(name, field) for name, field in fields.items()]
        entries.sort(key=lambda entry: (entry.begin, entry.end))
        self.entries = {entry.name: entry for entry in entries}
        end = 0
        for entry in entries:
            if entry.begin != end:
                self._refuse(f"{entry.name}: data must begin at {end}, got {entry.begin}")
            end = entry.end
        if end != self.size - self.data:
            self._refuse(f"must hold {end:,} bytes of data, got {self.size - self.data:,}")

    def _entry(self, name: str, field: Any) -> Entry:
        check_name(name, "tensor name", self.path)
        entry = self._fields.object(name, field)
        if unknown := sorted(entry.keys() - {"dtype", "shape", "data_offsets"}):
            self._refuse(f"{name}: field {shown(unknown[0])!r} is not understood")
        dtype = self._fields.text(f"{name}: dtype", entry.get("dtype"))
        if dtype not in _BITS:
            self._refuse(f"{name}: dtype must be one of {', '.join(_BITS)}, got {shown(dtype)}")
        shape = self._fields.integers(f"{name}: shape", entry.get("shape"), 0)
        # A size of 0 would hide what the others come to.
        if len(shape) > MAX_DIMS or prod(max(size, 1) for size in shape) > MAX_INTEGER:
            rule = f"have at most {MAX_DIMS} sizes, of a product up to 2^62"
            self._refuse(f"{name}: shape must {rule}, got {shown(list(shape))}")
        offsets = self._fields.integers(f"{name}: data_offsets", entry.get("data_offsets"), 0)
        if len(offsets) != 2:
            self._refuse(f"{name}: data_offsets must be two integers, got {len(offsets)}")
        if prod(shape) * _BITS[dtype] != 8 * (offsets[1] - offsets[0]):
            self._refuse(f"{name}: data_offsets must span {dtype} {list(shape)}, got {offsets}")
        return Entry(name, dtype, shape, *offsets)

    def _dtype(self, name: str) -> torch.dtype:
        kind = self.entries[name].dtype
        if kind not in DTYPES:
            self._refuse(f"{name}: torch has no dtype for {kind}")
        return DTYPES[kind]

    def open(self) -> FileIO:
        """The file, unbuffered, for whoever reads its data.

        Raises:
            ValueError: the path leads to another file than the one whose header was read.
        """
        file = self.path.open("rb", buffering=0)
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != self._identity:
            file.close()
            self._refuse("was replaced by another file while it was read")
        return file

    def _room(self, name: str, count: int) -> Any:
        try:
            return np.empty(count, np.uint8)
        except MemoryError:
            raise MemoryError(f"{self.path}: {name} has {count:,} bytes") from None

    def _bytes(self, file: FileIO, name: str, count: int) -> Any:
        raw = self._room(name, count)
        self.fill(file, name, memoryview(raw))
        return raw

    def fill(self, file: FileIO, name: str, piece: memoryview) -> None:
        """Reads until the piece is full; a single read may be short.

        Raises:
            ValueError: the file has become shorter.
        """
        done = 0
        while done < len(piece) and (count := file.readinto(piece[done:])):
            done += count
        if done < len(piece):
            self._refuse(f"{name}: the file ended early; it was written to meanwhile")

    def read(self, name: str) -> Tensor:
        """The tensor, in memory of its own."""
        entry, dtype = self.entries[name], self._dtype(name)
        if not entry.nbytes:
            return torch.empty(entry.shape, dtype=dtype)
        with self.open() as file:
            file.seek(self.data + entry.begin)
            raw = self._bytes(file, name, entry.nbytes)
        return torch.from_numpy(raw).view(dtype).reshape(entry.shape)

    def read_part(self, name: str, axis: int, begin: int, end: int) -> Tensor:
        """Indices [begin, end) along an axis, in memory of its own; no other byte is read."""
        entry, dtype = self.entries[name], self._dtype(name)
        shape = (*entry.shape[:axis], end - begin, *entry.shape[axis + 1 :])
        if not prod(shape):
            return torch.empty(shape, dtype=dtype)
        part = torch.from_numpy(self._room(name, prod(shape) * dtype.itemsize))
        part = part.view(dtype).reshape(shape)
        # The axis cuts the tensor into `pieces`; of each, one run of bytes belongs to the part.
        pieces = prod(entry.shape[:axis])
        piece, run = entry.nbytes // pieces, part.nbytes // pieces
        runs = part.view(-1).view(torch.uint8).view(pieces, run).numpy()
        with self.open() as file:
            for i, bytes_of_part in enumerate(runs):
                file.seek(self.data + entry.begin + i * piece + run // (end - begin) * begin)
                self.fill(file, name, memoryview(bytes_of_part))
        return part

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{self.path}: {reason}")
