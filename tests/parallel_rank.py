"""A rank of a world of processes, and the cases that the tests of `scaled_mm.parallel` run in it.

Each case runs on every rank, and raises where something is wrong. They are in `parallel_int8`,
`parallel_weight_only`, `parallel_experts` and `parallel_checkpoints`; `parallel_world` starts the
worlds.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from scaled_mm.parallel import ColwiseQuantizedParallel, RowwiseQuantizedParallel


@dataclass(frozen=True)
class Rank:
    """One process of a world."""

    mesh: DeviceMesh
    folder: Path
    """For files that all ranks see."""

    @property
    def world(self) -> int:
        return self.mesh.size()

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    @property
    def device(self) -> str:
        return self.mesh.device_type

    def part(self, x: Tensor, axis: int = -1) -> Tensor:
        """Of a tensor that all ranks have: this rank's, as torch.chunk cuts."""
        chunks = x.chunk(self.world, axis)
        return chunks[self.rank] if self.rank < len(chunks) else x.narrow(axis, 0, 0)

    def cut(self, layer: nn.Module, style: ParallelStyle) -> nn.Module:
        """A copy of the layer, cut."""
        return parallelize_module(copy.deepcopy(layer), self.mesh, style)

    def by_columns(self, layer: nn.Module, **layouts: Any) -> nn.Module:
        return self.cut(layer, ColwiseQuantizedParallel(**layouts))

    def by_rows(self, layer: nn.Module, **layouts: Any) -> nn.Module:
        return self.cut(layer, RowwiseQuantizedParallel(**layouts))


Case = Callable[[Rank], None]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        assert name not in CASES
        CASES[name] = function
        return function

    return register


@contextlib.contextmanager
def refused(error: type[Exception], message: str) -> Iterator[None]:
    try:
        yield
    except error as caught:
        assert re.search(message, str(caught)), f"{caught} is not {message}"
    else:
        raise AssertionError(f"not refused: {message}")


def seeded(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
