"""What a planted bug is, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    path: str
    old: str  # text that stands once in the file
    new: str
    tests: str  # "test_file", "test_file::test_function[id]"; the first that should notice first
    isa: str = ""  # only where this instruction set runs
    gpu: bool = False  # only where there is a GPU
    breaks_build: bool = False  # a static_assert must notice it, before any test
    reason: str = ""  # why no test can notice: then it must survive

    @property
    def compiled(self) -> bool:
        """Not what a CPU library leaves out: there the source itself is read by the tests."""
        device = self.path.endswith((".cu", ".cuh")) or "/cutlass" in self.path
        return self.path.startswith("csrc") and (self.gpu or not device)


def of(
    path: str,
    tests: str,
    bugs: Mapping[str, tuple[str, str] | tuple[str, str, str]],
    *,
    isa: str = "",
    gpu: bool = False,
    breaks_build: bool = False,
) -> list[Mutant]:
    """The bugs of one file that the same tests notice: name -> (old, new) or (old, new, reason)."""
    return [
        Mutant(name, path, old, new, tests, isa, gpu, breaks_build, *reason)
        for name, (old, new, *reason) in bugs.items()
    ]
