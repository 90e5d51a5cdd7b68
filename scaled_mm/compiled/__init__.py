"""Epilogues compiled for CUDA: a program becomes a library with one kernel, on demand.

    source.py      the program as CUDA source, for one line of a kernel's table
    toolchain.py   nvcc and headers
    store.py       the folder that keeps what was compiled
    launches.py    a program and a kernel -> the library's function, compiled where it must be

The CUDA library calls `_compile` when a program meets a kernel for the first time
(csrc/cuda/compiled.cpp); from then on it has the function, and no Python is on the way.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import _library

VARIABLE = "SCALED_MM_JIT"
"""off: nothing is compiled; on: what is, runs, else the program is interpreted; require: an error
there. Read once, at import."""
MODES = ("off", "on", "require")

_INTERPRET, _ERROR = 0, -1


def load() -> None:
    """Takes the mode from the environment.

    Raises:
        ValueError: it is none.
    """
    set_mode(os.environ.get(VARIABLE) or "off")


def set_mode(name: str) -> None:
    if name not in MODES:
        raise ValueError(f"{VARIABLE} must be {', '.join(MODES)}, got {name}")
    if name != "off":
        from . import launches as launches  # now, not in the first call of an epilogue
    _library.set_compiler(_ADDRESS, name)


@contextmanager
def in_mode(name: str) -> Iterator[None]:
    """For a while, what `SCALED_MM_JIT` does for a process."""
    before = _library.jit_mode()
    set_mode(name)
    try:
        yield
    finally:
        set_mode(before)


def _compile(
    program: Any,
    count: int,
    arch: bytes,
    kernel: bytes,
    light: int,
    device: int,
    error: int,
    error_size: int,
) -> int:
    """What the CUDA library calls: the address of the function, or why there is none."""
    try:
        from .launches import launch

        return launch(program[:count], arch.decode(), kernel.decode(), bool(light), device)
    except BaseException as reason:  # none may pass through the library
        mode = _library.jit_mode()
        if mode != "require" and isinstance(reason, Exception):
            with suppress(Exception):  # where a warning is an error
                warnings.warn(f"an epilogue is interpreted on CUDA: {reason}", stacklevel=2)
            return _INTERPRET
        text = f"{VARIABLE}={mode}: {reason or type(reason).__name__}".encode()
        text = text[: error_size - 1] + b"\0"
        ctypes.memmove(error, text, len(text))
        return _ERROR


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_int64,
)(_compile)
_ADDRESS = ctypes.cast(_CALLBACK, ctypes.c_void_p).value or 0
