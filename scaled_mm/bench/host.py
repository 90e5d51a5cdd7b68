"""`scaled-mm bench --host`: what a call costs the host, in microseconds.

Operands are so small that next to nothing is computed. At M = 32, K = N = 512 a GPU is done long
before the host has launched the next call, so an eager loop that waits for nothing takes the time
of Python, of torch's dispatcher and of the launch. On the CPU a row of 16 values is multiplied, by
one thread; its CPU time is taken, which other programs do not lengthen.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..ops.int8 import int8_mm
from ..ops.quantize import quantize_int8
from .cases import DTYPES, EPILOGUES, Case, make_case
from .clocks import in_short
from .contenders import CONTENDERS
from .measure import SCHEMA, Settings

SIZES = {"cuda": (32, 512, 512), "cpu": (1, 16, 16)}  # device -> M, N, K
CALLS = 2000  # in a round
PEERS = ("float32 mm", "bf16 mm", "fp8 rowwise", "_int_mm sums", "_int_mm compiled", "triton")


Call = Callable[[], Any]


def prepared(name: str) -> Callable[[Case], Call]:
    """The call of a contender."""

    def prepare(case: Case) -> Call:
        contender = next(
            c for c in CONTENDERS if c.name == name and case.a.device.type in c.devices
        )
        route = contender.prepare(case)
        return partial(route.run, route.x, route.weight())

    return prepare


def floats(case: Case) -> Tensor:
    return case.a.to(case.out_dtype)


def linear(case: Case) -> nn.Linear:
    """As torch has it; with a bias."""
    k, n = case.b.shape
    return nn.Linear(k, n, device=case.a.device, dtype=case.out_dtype).requires_grad_(False)


def static(case: Case) -> Call:
    return partial(quantize_int8, floats(case), scale=torch.ones_like(case.scale_a))


OTHERS: dict[str, Callable[[Case], Call]] = {
    "int8_mm": lambda case: partial(int8_mm, case.a, case.b),
    "quantize_int8": lambda case: partial(quantize_int8, floats(case)),
    "quantize_int8, static": static,
    "ScaledLinear": lambda case: partial(ScaledLinear.from_linear(linear(case)), floats(case)),
    "torch.mm": lambda case: partial(torch.mm, floats(case), case.b.to(case.out_dtype)),
    "nn.Linear": lambda case: partial(linear(case), floats(case)),
}
"""What is timed besides the contenders; torch.mm and nn.Linear are of the output's dtype, and the
`ScaledLinear` quantises each token."""


def calls(settings: Settings) -> dict[str, Call | str]:
    """Label -> a call of ours for every epilogue and of every peer; or why there is none."""
    names = [contender.name for contender in settings.contenders()]
    ours = ("plain", "packed") if "packed" in names else ("plain",)
    wanted = [
        (f"{form}, {name}", prepared(form), epilogue)
        for form in ours
        for epilogue, name in EPILOGUES.items()
    ]
    wanted += [(label, prepare, settings.epilogue) for label, prepare in OTHERS.items()]
    wanted += [(name, prepared(name), settings.epilogue) for name in PEERS if name in names]
    made: dict[str, Call | str] = {}
    for label, prepare, epilogue in wanted:
        try:
            sizes = SIZES[settings.device]
            call = prepare(make_case(*sizes, epilogue, DTYPES[settings.out_dtype], settings.device))
            for _ in range(3):
                call()
            made[label] = call
        except Exception as reason:  # the others go on
            made[label] = in_short(reason)
    return made


@torch.inference_mode()
def run(settings: Settings, machine: dict[str, Any]) -> dict[str, Any]:
    """The result, JSON-ready; `machine`: what it is measured on."""
    made = calls(settings)
    now = time.thread_time if settings.device == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {label: [] for label in made}
    for _ in range(settings.rounds):
        for label, call in made.items():
            if callable(call):
                if settings.device == "cuda":
                    torch.cuda.synchronize()
                start = now()
                for _ in range(CALLS):
                    call()
                times[label].append((now() - start) / CALLS)
    rows = [
        {
            "name": label,
            "verdict": call if isinstance(call, str) else "",
            "microseconds": 1e6 * statistics.median(times[label]) if times[label] else None,
        }
        for label, call in made.items()
    ]
    m, n, k = SIZES[settings.device]
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": asdict(settings),
        "results": [],
        "host": {"m": m, "n": n, "k": k, "calls": CALLS, "rows": rows},
    }
