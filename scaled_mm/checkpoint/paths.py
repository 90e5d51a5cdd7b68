"""Which files are opened, and which names are taken from a file."""

from __future__ import annotations

import errno
import re
import stat
from pathlib import Path

MAX_NAME = 1024
"""Characters of a tensor's name."""
MAX_PARTS = 64
"""Parts of a name between dots."""
MAX_FILE_NAME = 246
"""Bytes of a shard's name; file systems take 255, and a partial file's name is longer by 9."""

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
_PATH_LIKE = re.compile(r"[/\\]|^\.\.?$|^[A-Za-z]:")


def check_name(name: str, what: str, path: Path) -> None:
    """A name from a file must be a plain one: it can be printed, and does not read as a path."""
    plain = name.isprintable() and not _PATH_LIKE.search(name) and name.count(".") < MAX_PARTS
    if not 1 <= len(name) <= MAX_NAME or not plain:
        shown = ascii(name if len(name) <= 80 else name[:77] + "...")
        raise ValueError(
            f"{path}: a {what} must be 1 to {MAX_NAME} printable characters without / and \\, in "
            f"at most {MAX_PARTS} parts between dots, and no . or .., got {shown}"
        )


def check_file_name(name: str, what: str, path: Path) -> None:
    """The same, and a file can have the name."""
    check_name(name, what, path)
    if len(name.encode()) > MAX_FILE_NAME:
        raise ValueError(
            f"{path}: a {what} must have at most {MAX_FILE_NAME} bytes, got {len(name.encode())}: "
            f"{name[:60]}..."
        )


def regular_file(path: Path) -> None:
    """Anything else (a pipe, a device) might block, or never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path}: is a link that leads back to itself") from None
        if path.is_symlink():
            raise ValueError(f"{path}: is a link to a file that does not exist") from None
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        raise ValueError(f"{path}: there is no such file") from None
    if not stat.S_ISREG(mode):
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
