"""Loads the compiled kernels into torch; the ops then are `torch.ops.scaled_mm.*`."""

import ctypes
import os
from pathlib import Path

import torch

CPU_LIBRARY = Path(__file__).with_name("_C_cpu.abi3.so")
CUDA_LIBRARY = Path(__file__).with_name("_C_cuda.abi3.so")


def _load() -> ctypes.CDLL:
    if not CPU_LIBRARY.exists():
        raise ImportError(
            f"scaled_mm is not built: {CPU_LIBRARY.name} is missing beside {__file__}; run "
            "`make build` in the source tree, or `pip install --no-build-isolation .` there and "
            "start Python elsewhere"
        )
    torch.ops.load_library(str(CPU_LIBRARY))
    if torch.version.cuda and CUDA_LIBRARY.exists():
        torch.ops.load_library(str(CUDA_LIBRARY))
    library = ctypes.CDLL(str(CPU_LIBRARY))
    for function in (
        library.scaled_mm_cpu_isas,
        library.scaled_mm_cuda_rows,
        library.scaled_mm_explain,
    ):
        function.restype = ctypes.c_char_p
    return library


_cpu = _load()


def cpu_isas() -> list[str]:
    """The instruction sets that have kernels and run on this machine, best first."""
    names: bytes = _cpu.scaled_mm_cpu_isas()
    return names.decode().split(", ")


def cpu_isa() -> str:
    """The instruction set in use: `SCALED_MM_CPU_ISA` when set, else the best."""
    return os.environ.get("SCALED_MM_CPU_ISA") or cpu_isas()[0]


def cuda_archs() -> list[str]:
    """The GPU architectures whose kernels are loaded, such as sm90; none without a CUDA torch."""
    if not (torch.version.cuda and CUDA_LIBRARY.exists()):
        return []
    library = ctypes.CDLL(str(CUDA_LIBRARY))
    library.scaled_mm_cuda_archs.restype = ctypes.c_char_p
    names: bytes = library.scaled_mm_cuda_archs()
    return names.decode().split(", ")


def cuda_rows() -> list[str]:
    """The rows of the tuning tables of `cuda_archs`: the names that `SCALED_MM_CUDA_ROW` takes."""
    rows: list[str] = []
    for arch in cuda_archs():
        names: bytes = _cpu.scaled_mm_cuda_rows(arch.encode())
        rows += names.decode().split(", ")
    return rows
