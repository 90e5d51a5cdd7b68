"""The plug-in for vLLM: int8 and int4 layers run on this library's kernels.

Installed beside vLLM, this library is found by its entry point (group `vllm.general_plugins`, name
`scaled_mm`), and vLLM calls `register` in each of its processes. Nothing has to be imported. Which
kernel a layer got, vLLM says in its log ("Selected ScaledMMInt8LinearKernel for ...", "Using
ScaledMMInt4LinearKernel for mixed-precision linear").

To run without it: `VLLM_PLUGINS=` with the names of the other plug-ins, or
`VLLM_DISABLED_KERNELS=ScaledMMInt8LinearKernel,ScaledMMInt4LinearKernel`. Any `--linear-backend`
but `auto` chooses among vLLM's own.

Source: `register_linear_kernel` of vLLM 0.33.
"""

from __future__ import annotations

import logging

__all__ = ["register"]


def register() -> None:
    """Registers both kernels on the CPU and on CUDA, before vLLM's own; harmless when done again.

    A vLLM that lacks what is used here is left as it is, with a warning.
    """
    log = logging.getLogger("vllm.scaled_mm")  # below vLLM's own, so that its settings hold
    try:
        from vllm.model_executor.kernels import linear
        from vllm.platforms import PlatformEnum

        from .vllm_kernels import ScaledMMInt4LinearKernel, ScaledMMInt8LinearKernel

        kernels = {
            "int8": (ScaledMMInt8LinearKernel, linear._POSSIBLE_INT8_KERNELS),
            "mp": (ScaledMMInt4LinearKernel, linear._POSSIBLE_KERNELS),
        }
        put = linear.register_linear_kernel
    except (ImportError, AttributeError) as error:
        log.warning("scaled_mm registers no kernel with this vLLM: %s", error)
        return
    for kernel_type, (kernel, table) in kernels.items():
        for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
            if kernel not in table.get(platform, ()):
                put(kernel, platform, kernel_type)  # at the end
                table[platform].insert(0, table[platform].pop())
