"""`scaled-mm bench --host`: what a call costs the host, in microseconds.

At M = 32, K = N = 512 a GPU is done long before the host has launched the next call, so an eager
loop that waits for nothing takes the time of Python, of torch's dispatcher and of the launch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from .cases import DTYPES, EPILOGUES, make_case
from .measure import SCHEMA, Settings, in_short

M, K, N = 32, 512, 512
CALLS = 2000  # in a round
PEERS = ("bf16 mm", "fp8 rowwise", "_int_mm sums", "_int_mm compiled", "triton")


def calls(settings: Settings) -> dict[str, Callable[[], Any] | str]:
    """Label -> a call of ours for every epilogue and of every peer; or why there is none."""
    by_name = {contender.name: contender for contender in settings.contenders()}
    wanted = [(f"plain, {name}", "plain", epilogue) for epilogue, name in EPILOGUES.items()]
    wanted += [(name, name, settings.epilogue) for name in PEERS if name in by_name]
    made: dict[str, Callable[[], Any] | str] = {}
    for label, name, epilogue in wanted:
        try:
            case = make_case(M, K, N, epilogue, DTYPES[settings.out_dtype], settings.device)
            route = by_name[name].prepare(case)
            call = partial(route.run, route.x, route.weight())
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
    times: dict[str, list[float]] = {label: [] for label in made}
    for _ in range(settings.rounds):
        for label, call in made.items():
            if callable(call):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[label].append((time.perf_counter() - start) / CALLS)
    rows = [
        {
            "name": label,
            "verdict": call if isinstance(call, str) else "",
            "microseconds": 1e6 * statistics.median(times[label]) if times[label] else None,
        }
        for label, call in made.items()
    ]
    return {
        "schema": SCHEMA,
        "machine": machine,
        "settings": asdict(settings),
        "results": [],
        "host": {"m": M, "k": K, "n": N, "calls": CALLS, "rows": rows},
    }
