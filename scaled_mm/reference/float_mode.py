"""The floating-point mode in which the reference computes: IEEE 754's own, whatever the caller's.

A thread can be told to round in another direction (fesetround), or to take subnormals for zero
(`torch.set_flush_denormal`). The kernels undo both for the time of a task (csrc/cpu/float_env.h);
numpy does not. It computes in the calling thread, so that is the one thread to care for. Torch's
workers were born in the mode of whoever made them: what rounds, or reads a subnormal as a number,
is therefore left to numpy here (`arrays.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

ENVIRONMENT_BYTES = 256  # more than a fenv_t of any platform
TO_NEAREST = 0  # FE_TONEAREST


@cache
def _libm() -> Any:
    for name in (None, "libm.so.6"):  # the functions are the program's own, or glibc's
        library = ctypes.CDLL(name)
        if hasattr(library, "fesetenv"):
            return library
    raise OSError("the C library has no fesetenv")


@contextmanager
def ieee() -> Iterator[None]:
    """Round to nearest even and keep subnormals, in this thread; afterwards all is as it was.

    Also a decorator.
    """
    before = ctypes.create_string_buffer(ENVIRONMENT_BYTES)
    _libm().fegetenv(before)
    torch.set_flush_denormal(False)
    _libm().fesetround(TO_NEAREST)
    try:
        yield
    finally:
        _libm().fesetenv(before)
