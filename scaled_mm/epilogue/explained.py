"""What runs for an epilogue of one's own, in words."""

from __future__ import annotations

import torch

from .. import _library, compiled
from .._program import Program
from ..explain import check_sizes, made_of
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
    in_one, why_not = _compiled(program, m, n, k, gpu)
    out_dtype = (built_in.out_dtype or torch.bfloat16) if built_in else torch.int32
    activation = (built_in.activation or "none") if built_in else "none"
    answer = _library.explain("int8", m, n, k, out_dtype, activation, *gpu.facts)
    found = made_of(answer, m=m, n=n, k=k, out_dtype=str(out_dtype)[6:], device=gpu)
    on_cpu = "the program ends a row of sums while it is in cache"
    on_gpu = (
        f"writes the sums to memory, {4 * m * n:,} bytes; one more kernel reads them and "
        f"interprets the program's {len(program.nodes)} nodes{why_not}"
    )
    if built_in:
        on_cpu = on_gpu = f"ends the sums as {built_in.name}, inside the product"
    kernel = found.chosen
    if kernel and in_one and not built_in:
        on_gpu = in_one
    elif kernel:
        on_gpu = f"{kernel.name} ({kernel.predicted_us:.1f} us) {on_gpu}"
    else:
        on_gpu = found.notes[0] if found.empty else "no kernel serves the product"
    return f"CPU ({found.cpu_isa}): {on_cpu}\n{gpu.name} ({found.arch}): {on_gpu}"


def _compiled(program: Program, m: int, n: int, k: int, gpu: Device) -> tuple[str, str]:
    """How the program runs compiled, or why it does not."""
    from ..compiled import ahead, launches
    from ..compiled.source import NotCompiled

    arch = _library.arch_of_sources(gpu.capability)
    if _library.jit_mode() == "off":
        return "", f"; {compiled.VARIABLE}=on has it compiled" if ahead.serves(arch) else ""
    ints = program.encoded(torch.bfloat16)
    name, light = ahead.chosen(ints, gpu, (m, n, k))
    try:
        launches.prepared(ints, arch, name or "", light)
    except NotCompiled as reason:
        return "", f"; it is not compiled: {reason}"
    return f"{arch}/{name} ends its sums by the program, which is compiled for it once", ""
