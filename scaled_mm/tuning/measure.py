"""Times the kernels of a GPU's tables at shapes that tell them apart.

By the clock of `scaled-mm bench`: CUDA-graph replay over copies of the weight that together exceed
the L2, kernels in turn, medians.
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
from ..bench.clocks import Clock, Stopwatch, rounds_in_turns
from ..gpus import Device
from ..ops.int8 import scaled_mm
from ..ops.mixed_weight import ZEROS, MixedWeight, pack_weight
from ..ops.w4a8 import w4a8_mm

ROUNDS = 3
COLD_BYTES = 2e8  # the copies of a weight exceed the L2 together
NEAR = 2.0  # a kernel predicted at so many times the best is left out
GROUP = 128  # of int4 weights, and of blocks

Call = Callable[[], Any]
Calls = Callable[[int], list[Call]]


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


def copies(size: int) -> int:
    return max(3, math.ceil(COLD_BYTES / size))


def int8_values(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def words(rows: int, n: int) -> Tensor:
    shape = (rows, n // 8)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device="cuda")


def int8(n: int, k: int) -> Calls:
    """The calls of one weight shape, in every copy of the weight, for so many tokens."""
    weights = [int8_values(n, k).t() for _ in range(copies(n * k))]

    def calls(m: int) -> list[Call]:
        a = int8_values(m, k)
        scales = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
        return [partial(scaled_mm, a, weight, *scales) for weight in weights]

    return calls


def lowbit(n: int, k: int) -> Calls:
    """The same of int4, in AWQ's words."""
    groups = k // GROUP
    weights = [
        (words(k, n), floats(groups, n), words(groups, n)) for _ in range(copies(n * k // 2))
    ]

    def calls(m: int) -> list[Call]:
        x = floats(m, k)
        return [partial(awq.awq_gemm, x, *weight) for weight in weights]

    return calls


def w4a8(n: int, k: int) -> Calls:
    """Of int8 activations and 4 bits, in groups."""

    def weight() -> MixedWeight:
        q = torch.randint(-8, 8, (k, n), dtype=torch.int8, device="cuda")
        return pack_weight(q, torch.rand(k // GROUP, n, device="cuda").bfloat16(), bits=4)

    weights = [weight() for _ in range(copies(n * k // 2))]

    def calls(m: int) -> list[Call]:
        x, scale = int8_values(m, k), torch.rand(m, 1, device="cuda")
        return [partial(w4a8_mm, x, weight, scale) for weight in weights]

    return calls


def blocks(n: int, k: int) -> Calls:
    """Of int8 in blocks, whose rows and columns are a group's."""
    weights = [int8_values(n, k).t() for _ in range(copies(n * k))]

    def calls(m: int) -> list[Call]:
        a, scale_a = int8_values(m, k), torch.rand(m, k // GROUP, device="cuda")
        scale_b = torch.rand(k // GROUP, n // GROUP, device="cuda")
        return [partial(scaled_mm, a, weight, scale_a, scale_b) for weight in weights]

    return calls


FAMILIES: dict[str, tuple[Callable[[int, int], Calls], ...]] = {
    "int8": (int8,),
    "lowbit": (lowbit,),
    "k_scales": (w4a8, blocks),
}
"""The calls of each, plain and in blocks."""


def times(predicted: dict[str, float], calls: list[Call], clock: Clock) -> dict[str, float]:
    """Microseconds of a call on every kernel that is predicted near the best."""

    def ready(kernel: str) -> Stopwatch:
        with forced_kernels(kernel):
            return clock.stopwatch(calls)

    near = NEAR * min(predicted.values())
    kernels = {name: partial(ready, name) for name, us in predicted.items() if us < near}
    seconds = rounds_in_turns(kernels, ROUNDS)
    return {name: 1e6 * statistics.median(own) for name, own in seconds.items()}


@torch.inference_mode()
def measure(family: str, device: Device, clock: Clock) -> Iterator[dict[str, Any]]:
    """{m, n, k, us: {kernel: microseconds}} of every shape, on the current GPU, with in_blocks
    where that is so."""
    shapes = SHAPES[family]
    for in_blocks, (n, k) in product(shapes.in_blocks, shapes.weights):
        calls = FAMILIES[family][in_blocks](n, k)
        for m in shapes.tokens:
            rows = ask(family, m, n, k, device, in_blocks)["kernels"]
            predicted = {
                row["name"]: row["predicted_us"] for row in rows if row["predicted_us"] is not None
            }
            shape = {"m": m, "n": n, "k": k} | ({"in_blocks": True} if in_blocks else {})
            yield shape | {"us": times(predicted, calls(m), clock)}
        del calls
        clock.clear()
