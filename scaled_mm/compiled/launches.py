"""A program and a kernel -> the function that launches it: from this process, from the folder, or
compiled now; and tried before its first use."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .. import _library
from .._program import Program, decoded
from .._version import VERSION
from ..reference import program as reference
from . import store, toolchain
from .source import NotCompiled, lines, source
from .toolchain import CODE, FLAGS, Toolchain

M, N, K = 37, 72, 80
"""Of the problem by which a library is tried: more than a tile of some kernels, less of others."""
FUNCTION = "scaled_mm_launch"


@dataclass
class _Entry:
    """What is known in this process of a key."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    address: int = 0
    library: ctypes.CDLL | None = None
    reason: str = ""
    """Why there is none."""


_entries: dict[str, _Entry] = {}
_entries_lock = threading.Lock()


def launch(ints: list[int], arch: str, kernel: str, light: bool, device: int) -> int:
    """The address of the function, of a library that has given the right bits on the device.

    Raises:
        NotCompiled: there is none, and why.
    """
    text, key = prepared(ints, arch, kernel, light)
    with _entries_lock:
        entry = _entries.setdefault(key, _Entry())
    with entry.lock:  # of threads of this process; of processes, the store's
        if not entry.address and not entry.reason:
            try:
                with torch.no_grad():
                    _fill(entry, key, text, ints, arch, kernel, device)
            except NotCompiled as reason:
                entry.reason = str(reason)
        if entry.reason:
            raise NotCompiled(entry.reason)
        return entry.address


def prepared(ints: list[int], arch: str, kernel: str, light: bool) -> tuple[str, str]:
    """The source, and what its library's key begins with.

    Raises:
        NotCompiled: the kernel does not take the program.
    """
    line = lines(toolchain.CSRC, arch).get(kernel)
    if line is None or arch not in CODE:
        raise NotCompiled(f"programs are not compiled for {arch}/{kernel}")
    program, dtypes = decoded(ints)
    text = source(program, dtypes, line, light)
    parts = (VERSION, toolchain.hash_of_headers(arch), *FLAGS, CODE[arch], text)
    return text, hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _fill(
    entry: _Entry, key: str, text: str, ints: list[int], arch: str, kernel: str, device: int
) -> None:
    made = compiled(key, text, arch)
    try:
        library = ctypes.CDLL(str(made.path))
        address = ctypes.cast(getattr(library, FUNCTION), ctypes.c_void_p).value
    except (OSError, AttributeError) as reason:
        made.drop()
        raise NotCompiled(f"{made.path} cannot be loaded: {reason}") from None
    finally:
        made.forget()
    if not made.is_verified:
        if wrong := try_out(ints, kernel, address or 0, device):
            made.drop()
            raise NotCompiled(f"what {arch}/{kernel} became gave wrong bits: {wrong}")
        made.verified()
    entry.library, entry.address = library, address or 0


# --- the library ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A library, in a store or not."""

    path: Path
    kept: store.Store | None = None
    found: store.Found | None = None
    """In the store."""
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Where it lies, if no store could keep it: until it is loaded."""

    @property
    def is_verified(self) -> bool:
        return self.found is not None and self.found.verified

    def verified(self) -> None:
        if self.kept and self.found:
            self.kept.verified(self.found)

    def drop(self) -> None:
        if self.kept and self.found:
            self.kept.drop(self.found.key)

    def forget(self) -> None:
        if self.folder:
            self.folder.cleanup()


def compiled(beginning: str, text: str, arch: str) -> Made:
    """The library of a source: the store's, or compiled now.

    Where no compiler is, any that was kept for these sources serves.

    Raises:
        NotCompiled: there is none.
    """
    tools, folder = toolchain.find(), store.default_folder()
    kept = store.Store(folder) if folder else None
    for found in kept.find_all(beginning) if kept else ():
        if isinstance(tools, str) or found.stamp == tools.stamp:
            return Made(found.path, kept, found)
    if isinstance(tools, str):
        raise NotCompiled(tools)
    key = f"{beginning}-{hashlib.sha256(tools.version.encode()).hexdigest()[:12]}"
    if kept:
        if found_now := kept.find(key):  # by the same version at another place
            return Made(found_now.path, kept, found_now)
        with suppress(OSError):  # read-only, full: then elsewhere
            return _compiled_into(kept, key, text, arch, tools)
    return _compiled_elsewhere(text, arch, tools)


def _compiled_into(kept: store.Store, key: str, text: str, arch: str, tools: Toolchain) -> Made:
    with kept.locked(key):
        found = kept.find(key)  # another process may have made it meanwhile
        if not found:
            with kept.work() as folder:
                found = kept.keep(key, tools.compile(text, arch, folder), tools.stamp)
        return Made(found.path, kept, found)


def _compiled_elsewhere(text: str, arch: str, tools: Toolchain) -> Made:
    try:
        folder = tempfile.TemporaryDirectory(prefix="scaled_mm-")
        return Made(tools.compile(text, arch, Path(folder.name)), folder=folder)
    except OSError as reason:
        raise NotCompiled(f"there is no folder to compile in: {reason}") from None


# --- the trial ------------------------------------------------------------------------------------


def _operand(program: Program, place: int, made: torch.Generator) -> Tensor:
    operand = program.operands[place]
    shape = operand.shape(M, N)
    if operand.is_float:
        dtype = (torch.float32, torch.bfloat16, torch.float16)[place % 3]
        return torch.randn(shape, generator=made).to(dtype)
    return torch.randint(-1000, 1000, shape, generator=made, dtype=torch.int32)


def try_out(ints: list[int], kernel: str, address: int, device: int) -> str:
    """What is wrong with the bits that a library gives of a small problem; empty: nothing."""
    program, dtypes = decoded(ints)
    made = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (M, K), generator=made, dtype=torch.int8)
    b = torch.randint(-128, 128, (N, K), generator=made, dtype=torch.int8).t()
    operands = [_operand(program, place, made) for place in range(len(program.operands))]
    wanted = reference.epilogue_mm(a, b, operands, program, dtypes)
    on = torch.device("cuda", device)
    there = [x.to(on) for x in (a, b.t(), *operands)]
    try:
        got = _library.try_compiled(there[0], there[1].t(), there[2:], ints, kernel, address)
    except (RuntimeError, ValueError, MemoryError) as error:
        return str(error)
    for place, (x, y) in enumerate(zip(got, wanted, strict=True)):
        bits_of = {1: torch.int8, 2: torch.int16, 4: torch.int32}[y.element_size()]
        x = x.cpu()
        same = x.view(bits_of) == y.view(bits_of)
        if y.dtype.is_floating_point:
            same |= x.float().isnan() & y.float().isnan()
        if count := int((~same).sum()):
            return f"{count} of {y.numel()} elements of output {place}"
    return ""
