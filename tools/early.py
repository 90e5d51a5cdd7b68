"""What a product gains by reading its weight early (docs/tuning.md, "Early weights").

    python tools/early.py                   # the kernels chosen
    SCALED_MM_KERNEL=stream_96x64 python tools/early.py

Microseconds of a call in a graph of calls, over copies of the weight that exceed the L2 together:
with the plain weight, which is read late, and with the packed one. Medians, the two in turn.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch

import scaled_mm
from scaled_mm.bench.clocks import CudaGraphClock

WEIGHTS = ((4096, 4096), (6144, 4096), (4096, 14336), (8192, 8192), (28672, 8192))  # N, K
TOKENS = (1, 8, 16, 32, 64, 65, 96, 128, 129, 192, 256, 257, 512, 513)
ROUNDS = 9


def main() -> None:
    clock = CudaGraphClock()
    print(f"{torch.cuda.get_device_name()}, copy bandwidth {1e-12 * clock.bandwidth:.2f} TB/s")
    print(f"{'N':>6} {'K':>6} {'M':>4} {'floor':>7} {'plain':>7} {'packed':>7}")
    for n, k in WEIGHTS:
        plain = [
            torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda").t()
            for _ in range(clock.weight_copies(n * k))
        ]
        weights = {"plain": plain, "packed": [scaled_mm.pack_weight_int8(b) for b in plain]}
        for m in TOKENS:
            a = torch.randint(-128, 128, (m, k), dtype=torch.int8, device="cuda")
            scales = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
            watches = {
                name: clock.stopwatch([partial(scaled_mm.scaled_mm, a, b, *scales) for b in bs])
                for name, bs in weights.items()
            }
            times: dict[str, list[float]] = {name: [] for name in watches}
            for _ in range(ROUNDS):
                for name, watch in watches.items():
                    times[name].append(1e6 * watch.seconds())
            floor = 1e6 * (n * k + m * k + 2 * m * n) / clock.bandwidth
            us = [statistics.median(times[name]) for name in ("plain", "packed")]
            print(f"{n:6} {k:6} {m:4} {floor:7.2f} {us[0]:7.2f} {us[1]:7.2f}", flush=True)
            clock.clear()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
