"""`scaled-mm info`: what is built, what of it this machine runs, and whether it computes right."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from . import _library, reference
from .ops import int8_mm, pack_weight_int8, scaled_mm
from .quantize import quantize_int8

_ISA = "SCALED_MM_CPU_ISA"
_M, _K, _N = 37, 203, 83  # no multiple of any tile: body and tails both run


@dataclass(frozen=True)
class SelfCheck:
    """A small problem on one CPU instruction set, against `scaled_mm.reference`."""

    isa: str
    elements: int
    different: int


def self_check(isa: str) -> SelfCheck:
    """Run the four epilogues in every output dtype, plain and packed, and all quantisers on `isa`.

    Raises:
        ValueError: this machine does not run `isa`.
    """
    generator = torch.Generator().manual_seed(0)
    elements = different = 0

    def compare(got: Tensor, want: Tensor) -> None:
        nonlocal elements, different
        elements += got.numel()
        different += int((_bits(got) != _bits(want)).sum())

    x = torch.randn(_M, _K, generator=generator)
    b = torch.randint(-128, 128, (_N, _K), generator=generator, dtype=torch.int8).t()
    scale_b = torch.rand(_N, generator=generator) + 0.01
    bias = torch.randn(_N, generator=generator)
    adj = reference.azp_adj(b)
    with _forced(isa):
        for symmetric in (True, False):
            for per_token in (True, False):
                ours = quantize_int8(x, symmetric=symmetric, per_token=per_token)
                want = reference.quantize_int8(x, symmetric=symmetric, per_token=per_token)
                for part, expected in zip(ours, want, strict=True):
                    if part is not None and expected is not None:
                        compare(part, expected)
        a, scale_a, azp = reference.quantize_int8(x, symmetric=False)
        for operands in (
            {},
            {"bias": bias},
            {"azp_with_adj": -128 * adj, "bias": bias},
            {"azp": azp, "azp_adj": adj, "bias": bias},
        ):
            for out_dtype in (torch.bfloat16, torch.float16, torch.float32):
                exact = reference.scaled_mm(a, b, scale_a, scale_b, out_dtype=out_dtype, **operands)
                for weight in (b, pack_weight_int8(b)):
                    compare(
                        scaled_mm(a, weight, scale_a, scale_b, out_dtype=out_dtype, **operands),
                        exact,
                    )
    return SelfCheck(isa, elements, different)


def _bits(x: Tensor) -> Tensor:
    """Floats as the integers that have their bits: -0 is not +0."""
    return x.view({2: torch.int16, 4: torch.int32}[x.itemsize]) if x.is_floating_point() else x


@contextmanager
def _forced(isa: str) -> Iterator[None]:
    before = os.environ.get(_ISA)
    os.environ[_ISA] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ISA]
        else:
            os.environ[_ISA] = before


def facts() -> dict[str, str]:
    """What is built and what it runs on: label -> text.

    Raises:
        ValueError: SCALED_MM_CPU_ISA names an instruction set that this machine does not run.
    """
    from . import __version__

    one = torch.ones(1, 1, dtype=torch.int8)
    int8_mm(one, one)  # refuses a wrong SCALED_MM_CPU_ISA in the words of the library
    forced = f" (by {_ISA})" if os.environ.get(_ISA) else ""
    return {
        "scaled_mm": __version__,
        "CPU library": _library.CPU_LIBRARY.name,
        "CUDA library": _cuda_library(),
        "CPU": f"{_cpu_model()}, {torch.get_num_threads()} threads",
        "instruction set": _library.cpu_isa() + forced,
        "others it runs": ", ".join(
            isa for isa in _library.cpu_isas() if isa != _library.cpu_isa()
        ),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def _cuda_library() -> str:
    if not _library.CUDA_LIBRARY.exists():
        return "not built"
    if not torch.version.cuda:
        return f"{_library.CUDA_LIBRARY.name}, not loaded: this torch has no CUDA"
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{_library.CUDA_LIBRARY.name}, {', '.join(gpus) or 'no GPU found'}"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            label, _, model = line.partition(":")
            if label.strip() == "model name":
                return model.strip()
    return platform.processor() or platform.machine()


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what is built, what runs on this machine, and whether it computes right."""
    known = facts()
    checks = [self_check(isa) for isa in _library.cpu_isas()]
    if as_json:
        print(json.dumps({**known, "self-check": [asdict(check) for check in checks]}, indent=1))
    else:
        _show(known, checks, Console())
    if any(check.different for check in checks):
        raise typer.Exit(1)


def _show(known: dict[str, str], checks: list[SelfCheck], console: Console) -> None:
    about = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, text in known.items():
        about.add_row(f"[bold]{label}", text)
    console.print(about)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("self-check")
    table.add_column("elements", justify="right")
    table.add_column("off the reference", justify="right")
    for check in checks:
        verdict = "0" if check.different == 0 else f"[bold red]{check.different}"
        table.add_row(check.isa, str(check.elements), verdict)
    console.print(table)
