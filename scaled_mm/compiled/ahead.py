"""Compiling before a call, where no GPU has to be."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _library
from ..gpus import DEVICES, Device
from . import launches, toolchain
from .source import NotCompiled, lines

_GPU = {"sm90": "H200"}
"""By which a kernel is chosen for a shape."""


def serves(arch: str) -> bool:
    """Whether programs are compiled for it."""
    return arch in _GPU


def chosen(ints: list[int], gpu: Device, shape: tuple[int, int, int]) -> tuple[str | None, bool]:
    """The kernel that the program gets, and whether the program is light."""
    answer = _library.explain("program", ints, *shape, *gpu.facts)
    name = next((x["name"] for x in answer["kernels"] if x["chosen"]), None)
    return name, answer["light"]


def compile_ahead(ints: list[int], arch: str, shapes: Sequence[tuple[int, int, int]]) -> list[str]:
    """Fills the folder with what the shapes need; the kernels.

    Raises:
        ValueError: there are no compiled epilogues for the arch.
        RuntimeError: there is no compiler, or it failed.
    """
    if not serves(arch):
        raise ValueError(f"arch must be one of {', '.join(_GPU)}, got {arch}")
    known, gpu = lines(toolchain.CSRC, arch), DEVICES[_GPU[arch]]
    wanted = {chosen(ints, gpu, shape)[0] for shape in shapes} if shapes else set(known)
    light = chosen(ints, gpu, (16, 4096, 4096))[1]
    made = []
    for name in known:
        if name not in wanted:
            continue
        try:
            text, key = launches.prepared(ints, arch, name, light)
        except NotCompiled:
            continue
        try:
            launches.compiled(key, text, arch).forget()
        except NotCompiled as reason:
            raise RuntimeError(str(reason)) from None
        made.append(name)
    return made
