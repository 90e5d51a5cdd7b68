"""`scaled-mm bench --host`: what a call costs the host, in microseconds.

Operands are so small that next to nothing is computed. At M = 32, K = N = 512 a GPU is done long
before the host has launched the next call, so an eager loop that waits for nothing takes the time
of Python, of torch's dispatcher and of the launch. On the CPU a row of 16 values is multiplied, by
one thread; its CPU time is taken, which other programs do not lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..ops.int8 import int8_mm
from ..ops.quantize import quantize_int8
from .cases import DTYPES, EPILOGUES, Case, make_case
from .clocks import Clock, Stopwatch
from .contenders import CONTENDERS
from .measure import Settings, empty_result, timed_rows

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


def asked(settings: Settings) -> dict[str, Callable[[], tuple[Stopwatch, None]]]:
    """Label -> what makes a call of ours ready, one for every epilogue, and of every peer."""
    names = [contender.name for contender in settings.contenders()]
    ours = ("plain", "packed") if "packed" in names else ("plain",)
    wanted = [
        (f"{form}, {name}", prepared(form), epilogue)
        for form in ours
        for epilogue, name in EPILOGUES.items()
    ]
    wanted += [(label, prepare, settings.epilogue) for label, prepare in OTHERS.items()]
    wanted += [(name, prepared(name), settings.epilogue) for name in PEERS if name in names]

    def ready(prepare: Callable[[Case], Call], epilogue: str) -> tuple[Stopwatch, None]:
        sizes = (*SIZES[settings.device], epilogue, DTYPES[settings.out_dtype])
        call = prepare(make_case(*sizes, settings.device))
        now = time.thread_time if settings.device == "cpu" else time.perf_counter

        def seconds() -> float:
            if settings.device == "cuda":
                torch.cuda.synchronize()
            start = now()
            for _ in range(CALLS):
                call()
            return (now() - start) / CALLS

        for _ in range(3):
            call()
        return Stopwatch(seconds, 1.0, [call]), None

    return {label: partial(ready, prepare, epilogue) for label, prepare, epilogue in wanted}


@torch.inference_mode()
def run(settings: Settings, clock: Clock) -> dict[str, Any]:
    """The result, JSON-ready."""
    sizes = dict(zip("mnk", SIZES[settings.device], strict=True))
    rows = timed_rows(asked(settings), settings.rounds)
    return {**empty_result(settings, clock), "host": {**sizes, "calls": CALLS, "rows": rows}}
