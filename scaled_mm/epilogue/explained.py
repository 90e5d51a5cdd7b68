"""What runs for an epilogue of one's own, in words."""

from __future__ import annotations

import torch

from .._program import Program
from ..explain import ask_library, check_sizes, made_of
from ..gpus import DEVICES, Device, local_device


def explained(program: Program, m: int, n: int, k: int, device: Device | None) -> str:
    """A line for the CPU, and one for the GPU."""
    check_sizes(m, n, k)
    if n % program.out_columns:
        raise ValueError(f"n must be even for pairs of columns, got {n}")
    gpu = device or local_device() or DEVICES["H200"]
    answer = ask_library(m, n, k, gpu, torch.int32, None)
    found = made_of(answer, m=m, n=n, k=k, out_dtype="int32", device=gpu)
    kernel = found.chosen
    if kernel is None:
        on_gpu = found.notes[0] if found.empty else "no kernel serves the product"
    else:
        on_gpu = (
            f"{found.arch}/{kernel.name} writes the sums to memory, {4 * m * n:,} bytes "
            f"({kernel.predicted_us:.1f} us); one more kernel reads them and interprets the "
            f"program's {len(program.nodes)} nodes"
        )
    return "\n".join(
        [
            f"CPU ({found.cpu_isa}): a row of sums is ended by the program while it is in cache",
            f"{gpu.name} ({found.arch}): {on_gpu}",
        ]
    )
