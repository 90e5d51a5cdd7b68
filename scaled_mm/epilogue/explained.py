"""What runs for an epilogue of one's own, in words."""

from __future__ import annotations

import torch

from .._program import Program
from ..explain import ask_library, check_sizes, made_of
from ..gpus import DEVICES, Device, local_device
from .built_in import BuiltIn


def explained(
    program: Program, built_in: BuiltIn | None, m: int, n: int, k: int, device: Device | None
) -> str:
    """A line for the CPU, and one for the GPU."""
    check_sizes(m, n, k)
    if n % program.out_columns:
        raise ValueError(f"n must be even for pairs of columns, got {n}")
    gpu = device or local_device() or DEVICES["H200"]
    out_dtype = (built_in.out_dtype or torch.bfloat16) if built_in else torch.int32
    activation = built_in.activation if built_in else None
    answer = ask_library(m, n, k, gpu, out_dtype, activation)
    found = made_of(answer, m=m, n=n, k=k, out_dtype=str(out_dtype)[6:], device=gpu)
    on_cpu = "the program ends a row of sums while it is in cache"
    on_gpu = (
        f"writes the sums to memory, {4 * m * n:,} bytes; one more kernel reads them and "
        f"interprets the program's {len(program.nodes)} nodes"
    )
    if built_in:
        on_cpu = on_gpu = f"ends the sums as {built_in.name}, inside the product"
    if kernel := found.chosen:
        on_gpu = f"{kernel.name} ({kernel.predicted_us:.1f} us) {on_gpu}"
    else:
        on_gpu = found.notes[0] if found.empty else "no kernel serves the product"
    return f"CPU ({found.cpu_isa}): {on_cpu}\n{gpu.name} ({found.arch}): {on_gpu}"
