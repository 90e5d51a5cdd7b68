"""Compiling before a call, where no GPU has to be."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _library
from ..gpus import DEVICES
from . import launches, toolchain
from .source import NotCompiled, lines

_GPU = {"sm90": "H200"}
"""By which a kernel is chosen for a shape."""


def chosen(ints: list[int], arch: str, shape: tuple[int, int, int]) -> tuple[str | None, bool]:
    """The kernel that the program gets, and whether the program is light."""
    answer = _library.explain("program", ints, *shape, *DEVICES[_GPU[arch]].facts)
    name = next((x["name"] for x in answer["kernels"] if x["chosen"]), None)
    return name, answer["light"]


def compile_ahead(
    ints: list[int], arch: str, shapes: Sequence[tuple[int, int, int]]
) -> list[str]:
    """Fills the folder with what the shapes need; the kernels.

    Raises:
        ValueError: there are no compiled epilogues for the arch.
        RuntimeError: there is no compiler, or it failed.
    """
    known = lines(toolchain.CSRC, arch)
    if not known:
        raise ValueError(f"arch must be one of {', '.join(_GPU)}, got {arch}")
    wanted = {chosen(ints, arch, shape)[0] for shape in shapes} if shapes else set(known)
    light = chosen(ints, arch, (16, 4096, 4096))[1]
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
