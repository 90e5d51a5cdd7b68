"""`scaled-mm info`: what is built, what of it this machine runs, and whether it computes right."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import typer
from rich import box
from rich.table import Table
from rich.text import Text
from torch import Tensor

from scaled_mm import _library, reference
from scaled_mm._version import VERSION
from scaled_mm.bench import machine
from scaled_mm.ops.int8 import pack_weight_int8, scaled_mm
from scaled_mm.ops.lowbit import awq_dequantize, awq_gemm
from scaled_mm.ops.quantize import quantize_int8
from scaled_mm.tuning import cache

from ..terminal import Console, cell, print_json

_ISA = "SCALED_MM_CPU_ISA"
_SIZES = (37, 84, 203)  # M, N, K: no multiple of any tile, so that body and tails both run
_ALIGNED = (70, 1040, 272)  # the GPU's kernels read these in place; the above are relaid first


@dataclass
class SelfCheck:
    """Small problems on one CPU instruction set, or on the GPU, against `scaled_mm.reference`."""

    isa: str
    """The instruction set, or the arch of the CUDA kernels ("sm90")."""
    elements: int = 0
    different: int = 0
    """How many are off the reference's bits."""

    def compare(self, got: Tensor, want: Tensor) -> None:
        self.elements += got.numel()
        self.different += int((got.cpu() != want).sum())

    def compare_bits(self, got: Tensor, want: Tensor) -> None:
        self.compare(_bits(got), _bits(want))


def self_check(isa: str) -> SelfCheck:
    """On the CPU with `isa`.

    Raises:
        ValueError: this machine does not run `isa`.
    """
    made = SelfCheck(isa)
    with _library.forced_cpu_isa(isa):
        _check(made, "cpu", _SIZES)
        _check_awq(made, "cpu")
    return made


def gpu_self_check() -> SelfCheck:
    """On the current GPU, which must be served."""
    made = SelfCheck(_library.arch_of_gpu(torch.cuda.current_device()))
    for sizes in (_SIZES, _ALIGNED):
        _check(made, "cuda", sizes)
    _check_awq(made, "cuda")
    return made


def _check(made: SelfCheck, device: str, sizes: tuple[int, int, int]) -> None:
    """Run the epilogues in every output dtype, plain and packed, and all quantisers."""
    m, n, k = sizes
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(m, k, generator=generator)
    b = torch.randint(-128, 128, (n, k), generator=generator, dtype=torch.int8).t()
    scale_b = torch.rand(n, generator=generator) + 0.01
    bias = torch.randn(n, generator=generator)
    adj = reference.azp_adj(b)
    for symmetric in (True, False):
        for per_token in (True, False):
            ours = quantize_int8(x.to(device), symmetric=symmetric, per_token=per_token)
            want = reference.quantize_int8(x, symmetric=symmetric, per_token=per_token)
            for part, expected in zip(ours, want, strict=True):
                if part is not None and expected is not None:
                    made.compare_bits(part, expected)
    a, scale_a, azp = reference.quantize_int8(x, symmetric=False)
    assert azp is not None
    weight = b.to(device)
    weights = (weight, pack_weight_int8(weight))
    calls: tuple[dict[str, Any], ...] = (
        {},
        {"bias": bias},
        {"azp_with_adj": -128 * adj, "bias": bias},
        {"azp": azp, "azp_adj": adj, "bias": bias},
        {"residual": torch.randn(m, n, generator=generator)},
        {"bias": bias, "activation": "reglu"},
    )
    for operands in calls:
        given: dict[str, Any] = {
            name: operand.to(device) if isinstance(operand, Tensor) else operand
            for name, operand in operands.items()
        }
        scales = (scale_a.to(device), scale_b.to(device))
        for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
            exact = reference.scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype, **operands)
            for each in weights:
                got = scaled_mm(a.to(device), each, *scales, out_dtype=out_dtype, **given)
                made.compare_bits(got, exact)


def _check_awq(made: SelfCheck, device: str) -> None:
    """As `_check` for int4: the dequantised weight, and one-hot rows times it, which give it again.

    In a shape that the GPU's streaming kernels take, and in one that they do not.
    """
    generator = torch.Generator().manual_seed(1)
    for k, n, group in ((192, 288, 32), (60, 24, 20)):
        for dtype in (torch.float16, torch.bfloat16):
            shapes = ((k, n // 8), (k // group, n // 8))
            q, z = (
                torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int32)
                for shape in shapes
            )
            s = torch.randn(k // group, n, generator=generator).to(dtype)
            want = reference.awq_dequantize(q, s, z)
            there = (q.to(device), s.to(device), z.to(device))
            made.compare_bits(awq_dequantize(*there), want)
            again = awq_gemm(torch.eye(k, dtype=dtype, device=device), *there)
            made.compare(again, want)  # a sum with zeros has no -0


def _bits(x: Tensor) -> Tensor:
    """Floats as the integers that have their bits: -0 is not +0."""
    return x.view({2: torch.int16, 4: torch.int32}[x.itemsize]) if x.is_floating_point() else x


def facts() -> dict[str, str]:
    """What is built and what it runs on: label -> text.

    Raises:
        ValueError: SCALED_MM_CPU_ISA names an instruction set that this machine does not run.
    """
    isa = _library.cpu_isa()  # refuses a wrong SCALED_MM_CPU_ISA in the words of the library
    forced = f" (by {_ISA})" if os.environ.get(_ISA) else ""
    return {
        "scaled_mm": VERSION,
        "CPU library": _library.CPU_LIBRARY.name,
        "CUDA library": _cuda_library(),
        "GPU": _gpus(),
        "tuning": "; ".join(cache.state().lines()),
        "CPU": f"{machine.cpu_name()}, {torch.get_num_threads()} threads",
        "instruction set": isa + forced,
        "others it runs": ", ".join(each for each in _library.cpu_isas() if each != isa),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def _cuda_library() -> str:
    name = _library.CUDA_LIBRARY.name
    if not _library.CUDA_LIBRARY.exists():
        return "not built"
    if not torch.version.cuda:
        return f"{name}, not loaded: this torch has no CUDA"
    return f"{name} for {', '.join(_library.cuda_archs()) or 'no arch'}"


def _gpus() -> str:
    """Every GPU with its arch, and what the library has no kernels for."""
    if not torch.cuda.is_available():
        return "none found"
    named = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        arch = _library.arch_of_gpu(index) or _no_kernels(10 * major + minor)
        named.append(f"{torch.cuda.get_device_name(index)} ({major}.{minor}, {arch})")
    return "; ".join(named)


def _no_kernels(capability: int) -> str:
    """What to do about it, where there are sources for such a GPU."""
    if not _library.arch_of_sources(capability):
        return "no kernels"
    listed = f"{capability // 10}.{capability % 10}"
    return f"no kernels: build with TORCH_CUDA_ARCH_LIST={listed} make cuda"


def command(given: SimpleNamespace) -> None:
    known = facts()
    checks = [self_check(isa) for isa in _library.cpu_isas()]
    if _library.serves_gpu():
        checks.append(gpu_self_check())
    if given.as_json:
        print_json({**known, "self-check": [asdict(check) for check in checks]})
    else:
        _show(known, checks, Console())
    if any(check.different for check in checks):
        raise typer.Exit(1)


def _show(known: dict[str, str], checks: list[SelfCheck], console: Console) -> None:
    about = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, text in known.items():
        about.add_row(Text(label, "bold"), cell(text))
    console.print(about)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("self-check")
    table.add_column("elements", justify="right")
    table.add_column("off the reference", justify="right")
    for check in checks:
        verdict = Text(str(check.different), "bold red" if check.different else "")
        table.add_row(check.isa, str(check.elements), verdict)
    console.print(table)
