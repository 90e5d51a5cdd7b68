"""Times the kernels of a GPU's tables at shapes that tell them apart.

As `scaled-mm bench` times: CUDA-graph replay over copies of the weight that together exceed the L2,
kernels in turn, medians. Large calls run for a while before they are timed, since a GPU at its
power limit needs about that long to find its clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .. import _library, awq
from .._library import forced_kernels
from ..gpus import Device
from ..ops.int8 import scaled_mm
from ..ops.mixed_weight import ZEROS, MixedWeight, pack_weight
from ..ops.w4a8 import w4a8_mm

ROUNDS = 3
COLD_BYTES = 2e8  # the copies of a weight exceed the L2 together
SETTLE_US, HEAVY_US = 60_000, 50  # what takes longer than the latter, for so many tokens, settles
FEW_TOKENS = 512
NEAR = 2.0  # a kernel predicted at so many times the best is left out
GROUP = 128  # of int4 weights, and of blocks

Call = Callable[[], Any]


@dataclass(frozen=True)
class Shapes:
    """What a family of ops is measured at."""

    weights: tuple[tuple[int, int], ...]
    """N, K."""
    tokens: tuple[int, ...]
    in_blocks: tuple[bool, ...] = (False,)
    """Of the weight; of scales along K there are both kinds."""

    @property
    def count(self) -> int:
        return len(self.weights) * len(self.tokens) * len(self.in_blocks)


SHAPES = {
    "int8": Shapes(
        ((4096, 4096), (28672, 8192), (4096, 14336), (8192, 8192), (5120, 5120), (11008, 4096)),
        (
            *(1, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512),
            *(513, 1024, 1536, 2048, 4096, 8192),
        ),
    ),
    "lowbit": Shapes(
        ((4096, 4096), (28672, 8192), (4096, 14336), (6144, 4096), (8192, 8192)),
        (1, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 1024, 2048),
    ),
    "k_scales": Shapes(
        ((4096, 4096), (28672, 8192), (4096, 14336), (6144, 4096)),
        (1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 512, 1024, 2048),
        (False, True),
    ),
}


def ask(
    family: str, m: int, n: int, k: int, device: Device, in_blocks: bool = False
) -> dict[str, Any]:
    """What the library says of a shape."""
    if family == "k_scales":
        kind = (GROUP, in_blocks, torch.bfloat16)
        return _library.explain("k_scales", m, n, k, *kind, *device.facts)
    if family == "int8":
        return _library.explain("int8", m, n, k, torch.bfloat16, "none", *device.facts)
    weight = (GROUP, 4, ZEROS.index("integer"), False)
    return _library.explain("lowbit", m, n, k, *weight, *device.facts)


class Int8:
    """The calls of one weight shape."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.weights = [self.random(n, k).t() for _ in range(copies(n * k))]

    def calls(self, m: int) -> list[Call]:
        a = self.random(m, self.k)
        scales = torch.rand(m, 1, device="cuda"), torch.rand(1, self.n, device="cuda")
        return [partial(scaled_mm, a, weight, *scales) for weight in self.weights]

    @staticmethod
    def random(*shape: int) -> Tensor:
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


class Lowbit:
    """The same of int4, in AWQ's words."""

    def __init__(self, n: int, k: int) -> None:
        self.k = k
        groups = k // GROUP
        self.weights = [
            (self._words(k, n), self._floats(groups, n), self._words(groups, n))
            for _ in range(copies(n * k // 2))
        ]

    def calls(self, m: int) -> list[Call]:
        x = self._floats(m, self.k)
        return [partial(awq.awq_gemm, x, *weight) for weight in self.weights]

    @staticmethod
    def _words(rows: int, n: int) -> Tensor:
        shape = (rows, n // 8)
        return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device="cuda")

    @staticmethod
    def _floats(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda").to(torch.bfloat16)


class W4A8:
    """Of int8 activations and 4 bits, in groups."""

    def __init__(self, n: int, k: int) -> None:
        self.k = k
        self.weights = [self._weight(n, k) for _ in range(copies(n * k // 2))]

    def calls(self, m: int) -> list[Call]:
        x, scale = Int8.random(m, self.k), torch.rand(m, 1, device="cuda")
        return [partial(w4a8_mm, x, weight, scale) for weight in self.weights]

    @staticmethod
    def _weight(n: int, k: int) -> MixedWeight:
        q = torch.randint(-8, 8, (k, n), dtype=torch.int8, device="cuda")
        scales = torch.rand(k // GROUP, n, device="cuda").to(torch.bfloat16)
        return pack_weight(q, scales, bits=4)


class Blocks(Int8):
    """Of int8 in blocks, whose rows and columns are a group's."""

    def calls(self, m: int) -> list[Call]:
        a, groups = self.random(m, self.k), self.k // GROUP
        scale_a = torch.rand(m, groups, device="cuda")
        scale_b = torch.rand(groups, self.n // GROUP, device="cuda")
        return [partial(scaled_mm, a, weight, scale_a, scale_b) for weight in self.weights]


Weights = Int8 | Lowbit | W4A8
FAMILIES: dict[str, tuple[Callable[[int, int], Weights], ...]] = {
    "int8": (Int8,),
    "lowbit": (Lowbit,),
    "k_scales": (W4A8, Blocks),
}
"""The calls of each, plain and in blocks."""


def copies(size: int) -> int:
    return max(3, math.ceil(COLD_BYTES / size))


def capture(calls: list[Call], times: int) -> torch.cuda.CUDAGraph:
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(times):
            calls[i % len(calls)]()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, times: int, settle: int) -> float:
    for _ in range(settle):
        graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / times


def times(predicted: dict[str, float], m: int, calls: list[Call]) -> dict[str, float]:
    """Microseconds of a call on every kernel that is predicted near the best."""
    least = min(predicted.values())
    count = max(len(calls), min(100, int(1500 / least)))
    heavy = m > FEW_TOKENS or (m > 64 and least > HEAVY_US)
    settle = max(1, math.ceil(SETTLE_US / (least * count))) if heavy else 1
    graphs = {}
    for name, us in predicted.items():
        if us < NEAR * least:
            with forced_kernels(name):
                graphs[name] = capture(calls, count)
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(ROUNDS):
        for name in list(graphs)[:: -1 if i % 2 else 1]:
            found[name].append(replay_us(graphs[name], count, settle))
    return {name: statistics.median(us) for name, us in found.items()}


@torch.inference_mode()
def measure(family: str, device: Device) -> Iterator[dict[str, Any]]:
    """{m, n, k, us: {kernel: microseconds}} of every shape, on the current GPU, with in_blocks
    where that is so."""
    shapes = SHAPES[family]
    for in_blocks, (n, k) in product(shapes.in_blocks, shapes.weights):
        weight = FAMILIES[family][in_blocks](n, k)
        for m in shapes.tokens:
            rows = ask(family, m, n, k, device, in_blocks)["kernels"]
            predicted = {
                row["name"]: row["predicted_us"] for row in rows if row["predicted_us"] is not None
            }
            shape = {"m": m, "n": n, "k": k} | ({"in_blocks": True} if in_blocks else {})
            yield shape | {"us": times(predicted, m, weight.calls(m))}
        del weight
        torch.cuda.empty_cache()
