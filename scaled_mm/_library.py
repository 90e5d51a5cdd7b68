"""Loads the compiled kernels into torch; the ops then are `torch.ops.scaled_mm.*`.

Two libraries, for the CPU and for CUDA, answer questions about themselves by ops that take no
tensor. Such an op has no device to be dispatched by, so the library is named by its dispatch key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ._torch import dispatch_keys, thrown

CPU_LIBRARY = Path(__file__).with_name("_C_cpu.abi3.so")
CUDA_LIBRARY = Path(__file__).with_name("_C_cuda.abi3.so")

FAMILIES = ("int8", "lowbit", "k_scales")
"""The families of ops whose kernels have numbers that `scaled-mm tune` fits."""


def _load() -> bool:
    """Loads the libraries; whether the CUDA one is among them."""
    if not CPU_LIBRARY.exists():
        raise ImportError(
            f"scaled_mm is not built: {CPU_LIBRARY.name} is missing beside {__file__}; run "
            "`make build` in the source tree, or `pip install --no-build-isolation .` there and "
            "start Python elsewhere"
        )
    torch.ops.load_library(str(CPU_LIBRARY))
    if not (torch.version.cuda and CUDA_LIBRARY.exists()):
        return False
    torch.ops.load_library(str(CUDA_LIBRARY))
    return True


HAS_CUDA = _load()
_CPU, _CUDA = dispatch_keys("CPU"), dispatch_keys("CUDA")


def _ask(keys: Any, op: str, *arguments: object) -> Any:
    try:
        return getattr(torch.ops.scaled_mm, op).default.redispatch(keys, *arguments)
    except RuntimeError as error:
        raise thrown(error) from None


# --- the CPU library ------------------------------------------------------------------------------


def cpu_isas() -> list[str]:
    """The instruction sets that have kernels and run on this machine, best first."""
    return _ask(_CPU, "_cpu_isas").split()


def cpu_isa() -> str:
    """The instruction set in use: the one that is forced, else the best.

    Raises:
        ValueError: `SCALED_MM_CPU_ISA` names one that this machine does not run.
    """
    return _ask(_CPU, "_cpu_isa")


@contextmanager
def forced_cpu_isa(name: str) -> Iterator[None]:
    """For a while, what `SCALED_MM_CPU_ISA` does for a process. "" forces nothing."""
    before = _ask(_CPU, "_force_cpu_isa", name)
    try:
        yield
    finally:
        _ask(_CPU, "_force_cpu_isa", before)


# --- CUDA kernels ---------------------------------------------------------------------------------


def cuda_archs() -> list[str]:
    """The arch folders whose kernels are loaded, such as sm90; none without a CUDA torch."""
    return _ask(_CUDA, "_archs").split() if HAS_CUDA else []


def cuda_kernels(arch: str, family: str = "int8") -> list[str]:
    """The kernels of an arch folder, one of `FAMILIES`: what `SCALED_MM_KERNEL` takes."""
    return _ask(_CPU, "_kernels", arch, family).split()


def arch_of(capability: int) -> str:
    """The arch folder that serves GPUs of a compute capability, 10 * major + minor; "" where none
    of those loaded does."""
    return _ask(_CUDA, "_arch_of", capability) if HAS_CUDA else ""


def arch_of_sources(capability: int) -> str:
    """The arch folder whose kernels would serve such GPUs if they were built; "" where none."""
    return _ask(_CPU, "_arch_of", capability)


def arch_of_gpu(index: int) -> str:
    """The arch folder that serves a GPU; "" where none of those loaded does."""
    if not HAS_CUDA:
        return ""
    major, minor = torch.cuda.get_device_capability(index)
    return arch_of(10 * major + minor)


def serves_gpu() -> bool:
    """Whether there are kernels for the current GPU."""
    return torch.cuda.is_available() and arch_of_gpu(torch.cuda.current_device()) != ""


@contextmanager
def forced_kernels(names: str) -> Iterator[None]:
    """For a while, what `SCALED_MM_KERNEL` does for a process. "" forces nothing."""
    libraries = (_CPU, _CUDA) if HAS_CUDA else (_CPU,)
    before = [_ask(keys, "_force_kernels", names) for keys in libraries]
    try:
        yield
    finally:
        for keys, earlier in zip(libraries, before, strict=True):
            _ask(keys, "_force_kernels", earlier)


_jit_mode = "off"


def jit_mode() -> str:
    """Whether epilogues are compiled for CUDA: off, on or require (scaled_mm/compiled)."""
    return _jit_mode


def set_compiler(address: int, mode: str) -> None:
    """What the CUDA library calls to have an epilogue compiled (csrc/cuda/compiled.cpp), unless the
    mode is off."""
    global _jit_mode
    _jit_mode = mode
    if HAS_CUDA:
        _ask(_CUDA, "_set_compiler", 0 if mode == "off" else address, mode == "require")


def try_compiled(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: list[torch.Tensor],
    program: list[int],
    kernel: str,
    address: int,
) -> list[torch.Tensor]:
    """The outputs by a function that was compiled for a kernel."""
    return _ask(_CUDA, "_try_compiled", a, b, operands, program, kernel, address)


def known_gpus() -> list[dict[str, Any]]:
    """The lines of csrc/dispatch/gpus.def."""
    return json.loads(_ask(_CPU, "_gpus"))


def fingerprint(arch: str) -> str:
    """Of an arch folder's tables and models: another one where a kernel, its numbers or a model
    changed."""
    return _ask(_CPU, "_fingerprint", arch)


def tune(
    device: str,
    capability: int,
    sms: int,
    memory_share: float,
    rows: dict[str, tuple[float, float]],
) -> None:
    """From here on, kernels are chosen for GPUs of this name, capability and number of
    multiprocessors by these numbers (csrc/dispatch/tuning.h).

    Args:
        memory_share: of the peak of device memory, what kernels reach.
        rows: kernel, such as sm90/int8/stream_8x64 -> its fixed time in us, and its rate.

    Raises:
        ValueError: a name that no kernel has, or a number out of its range. Nothing is changed.
    """

    def ask(library: Any, rows: dict[str, tuple[float, float]]) -> None:
        numbers = [float(number) for pair in rows.values() for number in pair]
        gpu = (device, capability, sms, float(memory_share))
        _ask(library, "_tune", *gpu, " ".join(rows), numbers)

    ask(_CPU, rows)
    if HAS_CUDA:  # which may have been built for fewer archs
        built = tuple(f"{arch}/" for arch in cuda_archs())
        ask(_CUDA, {name: pair for name, pair in rows.items() if name.startswith(built)})


def untune() -> None:
    """Takes back what `tune` did, for all GPUs."""
    for keys in (_CPU, _CUDA) if HAS_CUDA else (_CPU,):
        _ask(keys, "_untune")


def explain(family: str, *question: object) -> dict[str, Any]:
    """The choice of a kernel, as `scaled-mm explain` shows it (csrc/dispatch/explain.cpp).

    The CPU library answers, which holds the tables of every arch.

    Raises:
        ValueError: `SCALED_MM_KERNEL` names no kernel.
    """
    return json.loads(_ask(_CPU, f"_explain_{family}", *question))
