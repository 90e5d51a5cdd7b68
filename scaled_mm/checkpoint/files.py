"""One safetensors file, and JSON, from somebody who may mean harm.

    [header length, 8 bytes, little-endian] [header, JSON] [data]

    {"__metadata__": {str: str},
     NAME: {"dtype": "I8", "shape": [N, K], "data_offsets": [begin, end]}, ...}

The `safetensors` package checks lengths, dtypes, offsets (no overlap, no hole, no byte left over)
and products of sizes; it is asked first. What it lets pass and is refused here: names that stand
twice, leading whitespace, unknown fields, names with control characters or that read as paths, and
whatever is no regular file. Nothing is allocated before the header's length has been checked.
"""

from __future__ import annotations

import json
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

MAX_HEADER = 100_000_000
MAX_NAME = 1024

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

# First bytes of what is not safetensors. A pickle runs code when it is read: never do.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"PK\x03\x04", "a zip archive, such as torch.save's pickles"),
    (b"GGUF", "GGUF"),
    (b"\x93NUMPY", "an array of numpy"),
    (b"\x89HDF", "HDF5"),
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_PATH_LIKE = re.compile(r"[\x00-\x1f\x7f/\\]|^\.\.?$|^[A-Za-z]:")


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
        from safetensors import SafetensorError, safe_open  # here: `import scaled_mm` needs it not

        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            self._refuse(str(error).removeprefix("Error while deserializing header: "))
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self.header = file.read(length)
        self.data = 8 + length
        self.size = path.stat().st_size
        if not self.header.startswith(b"{"):
            self._refuse("the header must begin with {, " + f"got {self.header[:1]!r}")
        fields = parse_json(self.header, path)
        self.metadata: dict[str, str] = fields.pop("__metadata__", None) or {}
        entries = [self._entry(name, field) for name, field in fields.items()]
        entries.sort(key=lambda entry: (entry.begin, entry.end))
        self.entries = {entry.name: entry for entry in entries}

    def _entry(self, name: str, field: dict[str, Any]) -> Entry:
        refuse_path_like(name, "tensor name", self.path)
        if unknown := sorted(field.keys() - {"dtype", "shape", "data_offsets"}):
            self._refuse(f"{name}: field {unknown[0]!r} is not understood")
        return Entry(name, field["dtype"], tuple(field["shape"]), *field["data_offsets"])

    def read(self, name: str) -> Tensor:
        """The tensor, in memory of its own."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            self._refuse(f"{name}: torch has no dtype for {entry.dtype}")
        dtype = DTYPES[entry.dtype]
        if not entry.nbytes:
            return torch.empty(entry.shape, dtype=dtype)
        with self.path.open("rb") as file:
            file.seek(self.data + entry.begin)
            raw = np.fromfile(file, np.uint8, entry.nbytes)
        if raw.size != entry.nbytes:
            self._refuse(f"{name}: the file ended early; it was written to meanwhile")
        return torch.from_numpy(raw).view(dtype).reshape(entry.shape)

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{self.path}: {reason}")


def refuse_path_like(name: str, what: str, path: Path) -> None:
    """A name must be a plain one: what reads as a path, or cannot be printed, is refused."""
    if not name or len(name) > MAX_NAME or _PATH_LIKE.search(name):
        shown = ascii(name if len(name) <= 80 else name[:77] + "...")
        raise ValueError(
            f"{path}: a {what} must be 1 to {MAX_NAME} characters without control characters, "
            f"/ and \\, and no . or .., got {shown}"
        )


def regular_file(path: Path) -> None:
    """Anything else (a pipe, a device) might block, or never end."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: must be a regular file")


def refuse_other_formats(path: Path) -> None:
    """By the first bytes and by the suffix; the rest is never read."""
    kind = _other_format(path)
    if kind is not None and "pickle" in kind:
        raise ValueError(
            f"{path}: is {kind}, which is not opened: reading a pickle can run code. "
            "Convert it to safetensors where it came from"
        )
    if kind is not None:
        raise ValueError(f"{path}: is {kind}, not safetensors")


def is_other_file(path: Path) -> bool:
    """Whether a file that goes with a checkpoint is a plain one: no tensors, pickle or index."""
    if not path.is_file() or path.name.endswith((".safetensors", ".index.json", ".partial")):
        return False
    return _other_format(path) is None


def _other_format(path: Path) -> str | None:
    with path.open("rb") as file:
        first = file.read(9)
    # A header's length can begin with any of the magics; but then four zeros and a brace follow.
    safetensors = first[4:8] == bytes(4) and first[8:] in (b"{", b" ", b"\n", b"\t", b"\r")
    for magic, kind in _MAGIC:
        if first.startswith(magic) and not safetensors:
            return kind
    return f"a {path.suffix} file, by its name a pickle" if path.suffix in PICKLES else None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 100 MB."""
    regular_file(path)
    if path.stat().st_size > MAX_HEADER:
        raise ValueError(f"{path}: must be at most {MAX_HEADER:,} bytes")
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """A JSON object: UTF-8, no name twice, no NaN or Infinity.

    Raises:
        ValueError: it is not.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in pairs:
            if name in made:
                raise ValueError(f"the name {name!a} stands twice")
            made[name] = value
        return made

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        made = json.loads(text.decode(), object_pairs_hook=unique, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    except ValueError as error:  # JSON's and Unicode's are ValueErrors too
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(made).__name__}")
    return made
