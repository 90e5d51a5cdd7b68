"""The plug-in for vLLM: int8, int4 and W8A16 layers run on this library's kernels.

Installing this library changes nothing in vLLM. With `SCALED_MM_VLLM=1` in the environment, each of
vLLM's processes registers the kernels when it starts (entry point `scaled_mm` of the group
`vllm.general_plugins`); `register()` does so in the process that calls it. Which kernel a layer
got, vLLM says in its log ("Selected ScaledMMInt8LinearKernel for ...", "Using
ScaledMMInt4LinearKernel for mixed-precision linear").

The kernels take layers on the CPU and on GPUs of compute capability 9.0, where they were measured
to win. Any `--linear-backend` but `auto` chooses among vLLM's own.

Source: `register_linear_kernel` of vLLM 0.33.
"""

from __future__ import annotations

import logging
import os

from .._torch import vllm_tables

__all__ = ["register"]


def register_if_asked() -> None:
    """What vLLM calls when it starts: `register()` with `SCALED_MM_VLLM=1`, else nothing."""
    if os.environ.get("SCALED_MM_VLLM") == "1":
        register()


def register() -> None:
    """Registers the kernels on the CPU and on CUDA, before vLLM's own; harmless when done again.

    A vLLM that lacks what is used here is left as it is, with a warning.
    """
    log = logging.getLogger("vllm.scaled_mm")  # below vLLM's own, so that its settings hold
    try:
        from vllm.model_executor.kernels import linear
        from vllm.platforms import PlatformEnum

        from . import vllm_kernels as ours

        int8, mixed = vllm_tables(linear)
        kernels = (
            ("int8", ours.ScaledMMInt8LinearKernel, int8),
            ("mp", ours.ScaledMMW8A16LinearKernel, mixed),
            ("mp", ours.ScaledMMInt4LinearKernel, mixed),  # the last is the first to be asked
        )
        put = linear.register_linear_kernel
    except (ImportError, AttributeError) as error:
        log.warning("scaled_mm registers no kernel with this vLLM: %s", error)
        return
    for kernel_type, kernel, table in kernels:
        for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
            if kernel not in table.get(platform, ()):
                put(kernel, platform, kernel_type)  # at the end
                table[platform].insert(0, table[platform].pop())
