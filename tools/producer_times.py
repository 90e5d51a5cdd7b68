"""What quantisers and producers take, in microseconds: the table of docs/layers.md.

    python tools/producer_times.py [DEVICE]

By the clock of `scaled-mm bench`, of bfloat16 inputs that do not fit the last-level cache.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from typing import Any

import torch

import scaled_mm
from scaled_mm.bench.clocks import clock_of

SHAPES = ((4096, 1), (4096, 64), (4096, 2048), (4096, 8192), (14336, 2048), (14336, 8192))  # K, M
NAMES = ("quantize_int8", "RMS norm with a residual", "SiLU product", "GELU")


def times(clock: Any, device: str, k: int, m: int) -> list[float]:
    """Of each of `NAMES`."""
    size = (clock.activation_copies(2 * m * k), m, 2 * k)
    pairs = torch.randn(size, device=device).bfloat16()
    xs, weight = pairs[..., :k].contiguous(), torch.ones(k, device=device).bfloat16()
    norm = partial(scaled_mm.rms_norm_quantize_int8, weight=weight, eps=1e-5)
    kinds: list[list[Any]] = [
        [partial(scaled_mm.quantize_int8, x) for x in xs],
        [partial(norm, x, residual=xs[i - 1]) for i, x in enumerate(xs)],
        [partial(scaled_mm.silu_mul_quantize_int8, pair) for pair in pairs],
        [partial(scaled_mm.gelu_quantize_int8, x) for x in xs],
    ]
    watches = [clock.stopwatch(calls) for calls in kinds]
    return [1e6 * statistics.median(watch.seconds() for _ in range(5)) for watch in watches]


@torch.inference_mode()
def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    clock = clock_of(device)
    print(f"| K, M | {' | '.join(NAMES)} |\n|---|{'---:|' * len(NAMES)}")
    for k, m in SHAPES:
        print(f"| {k}, {m} | {' | '.join(f'{us:.1f}' for us in times(clock, device, k, m))} |")
        clock.clear()


if __name__ == "__main__":
    main()
