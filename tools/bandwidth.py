"""How near the memory-bound CUDA ops come to a copy's bandwidth.

    python tools/bandwidth.py

Times are medians of graph replays over operands that exceed the L2 together; a share of 1 means
that the bytes of operands and results move as fast as a copy of 1 GiB moves its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import scaled_mm
from scaled_mm.bench.clocks import CudaGraphClock

ROUNDS = 9


def nbytes(*values: Any) -> int:
    return sum(x.numel() * x.itemsize for x in values if isinstance(x, Tensor))


def quantisers() -> Iterator[tuple[str, Callable[[Tensor], Any], Callable[[], Tensor]]]:
    def activations(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(rows, cols, device="cuda").to(dtype)

    for rows, cols, dtype in (
        (8192, 8192, torch.bfloat16),
        (8192, 8192, torch.float32),
        (2048, 4096, torch.float16),
        (16, 8192, torch.bfloat16),
    ):
        make = partial(activations, rows, cols, dtype)
        for symmetric in (True, False):
            for per_token in (True, False):
                kind = f"{'sym' if symmetric else 'asym'}, per {'token' if per_token else 'tensor'}"
                options = {"symmetric": symmetric, "per_token": per_token}
                name = f"quantize_int8 {rows}x{cols} {str(dtype)[6:]} {kind}"
                yield name, partial(scaled_mm.quantize_int8, **options), make
        scale = torch.tensor([0.02], device="cuda")
        name = f"quantize_int8 {rows}x{cols} {str(dtype)[6:]} static"
        yield name, partial(scaled_mm.quantize_int8, scale=scale), make


def weights() -> Iterator[tuple[str, Callable[[Tensor], Any], Callable[[], Tensor]]]:
    def weight(k: int, n: int, column_major: bool) -> Tensor:
        shape = (n, k) if column_major else (k, n)
        b = torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
        return b.t() if column_major else b

    for k, n in ((8192, 28672), (4096, 4096)):
        for column_major in (True, False):
            make = partial(weight, k, n, column_major)
            layout = "column-major" if column_major else "row-major"
            yield f"azp_adj {k}x{n} {layout}", scaled_mm.azp_adj, make
        pack = torch.ops.scaled_mm.pack_weight_int8.default
        yield f"pack_weight_int8 {k}x{n} row-major", pack, make


def main() -> None:
    clock = CudaGraphClock()
    print(f"{torch.cuda.get_device_name()}, copy bandwidth {1e-12 * clock.bandwidth:.2f} TB/s")
    for name, op, make in (*quantisers(), *weights()):
        first = make()
        operands = [first, *(make() for _ in range(clock.weight_copies(nbytes(first)) - 1))]
        out = op(first)
        moved = nbytes(first) + nbytes(*(out if isinstance(out, tuple) else (out,)))
        stopwatch = clock.stopwatch([partial(op, x) for x in operands])
        seconds = statistics.median(stopwatch.seconds() for _ in range(ROUNDS))
        share = moved / clock.bandwidth / seconds
        print(f"{name:<56} {1e6 * seconds:8.1f} us  {share:5.2f}")
        del operands, stopwatch, first, out
        clock.clear()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
