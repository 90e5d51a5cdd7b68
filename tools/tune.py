"""Measures the rows of a GPU's tuning table, and fits the two numbers that stand in every row.

    python tools/tune.py measure times.json    # on the GPU; a few minutes
    python tools/tune.py fit times.json        # anywhere: the columns `us` and `rate` of table.h

A row's time is modelled as us + (memory^4 + (busy / rate)^4)^(1/4) + waves (csrc/cuda/config.cpp);
what is fitted is how far the model is off where the row could be chosen: rows within a few per cent
of the best at a shape weigh most. The fit needs scipy.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scaled_mm
from scaled_mm.explain import Device, ask_library, local_device

WEIGHTS = ((4096, 4096), (28672, 8192), (4096, 14336), (8192, 8192), (5120, 5120), (11008, 4096))
TOKENS = (1, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512)
MANY_TOKENS = (513, 1024, 1536, 2048, 4096, 8192)
ROUNDS = 3
COLD_BYTES = 2e8  # the copies of a weight exceed the L2 together
SETTLE_US = 15_000  # a GPU at its power limit needs about this long to find its clock


def capture(a: Tensor, weights: list[Tensor], scales: tuple[Tensor, Tensor], calls: int) -> Any:
    scaled_mm.scaled_mm(a, weights[0].t(), *scales)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            scaled_mm.scaled_mm(a, weights[i % len(weights)].t(), *scales)
    return graph


def replay_us(graph: Any, calls: int, settle: int) -> float:
    for _ in range(settle):
        graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / calls


def times(m: int, n: int, k: int, device: Device, weights: list[Tensor]) -> dict[str, float]:
    """Microseconds of a call on every row that is predicted within twice the best."""
    predicted = {
        row["name"]: row["predicted_us"] for row in ask_library(m, n, k, device, 2)["rows"]
    }
    least = min(predicted.values())
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8, device="cuda")
    scales = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
    calls = max(len(weights), min(100, int(1500 / least)))
    settle = max(1, math.ceil(SETTLE_US / (least * calls))) if m > TOKENS[-1] else 1
    graphs = {}
    for name, us in predicted.items():
        if us < 2 * least:
            os.environ["SCALED_MM_CUDA_ROW"] = name
            graphs[name] = capture(a, weights, scales, calls)
    del os.environ["SCALED_MM_CUDA_ROW"]
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(ROUNDS):
        for name in list(graphs)[:: -1 if i % 2 else 1]:
            found[name].append(replay_us(graphs[name], calls, settle))
    return {name: statistics.median(us) for name, us in found.items()}


def measure(path: Path) -> None:
    device = local_device()
    if device is None:
        raise SystemExit("measure needs a GPU")
    result: dict[str, Any] = {"device": vars(device), "times": []}
    for n, k in WEIGHTS:
        copies = max(3, math.ceil(COLD_BYTES / (n * k)))
        weights = [
            torch.randint(-128, 128, (n, k), dtype=torch.int8, device="cuda") for _ in range(copies)
        ]
        for m in (*TOKENS, *MANY_TOKENS):
            us = times(m, n, k, device, weights)
            result["times"].append({"m": m, "n": n, "k": k, "us": us})
            best = min(us, key=lambda name: us[name])
            print(f"M={m} N={n} K={k}: {best} {us[best]:.2f} us", flush=True)
            path.write_text(json.dumps(result))


def model(us: float, rate: float, row: dict[str, Any]) -> float:
    """As `predict` in csrc/cuda/config.cpp puts a row's terms together."""
    memory, busy, waves = (row[f"{name}_us"] for name in ("memory", "busy", "waves"))
    return us + (memory**4 + (busy / rate) ** 4) ** 0.25 + waves


def report(what: str, cases: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    """cases: measured and predicted times of the rows that were measured, for each shape."""
    lost = [us[min(us, key=lambda name: told[name])] / min(us.values()) for us, told in cases]
    mean = math.exp(statistics.fmean(map(math.log, lost)))
    print(
        f"{what}: the rows chosen take {mean:.3f} of the best rows' times, {max(lost):.2f} at worst"
    )


def fit(path: Path) -> None:
    from scipy.optimize import least_squares

    result = json.loads(path.read_text())
    device = Device(**result["device"])
    measured = []  # times of a shape, and what the library says of its rows
    for case in result["times"]:
        rows = ask_library(case["m"], case["n"], case["k"], device, 2)["rows"]
        measured.append((case["us"], {row["name"]: row for row in rows}))
    now = [(us, {name: rows[name]["predicted_us"] for name in us}) for us, rows in measured]
    report("as it is", now)

    fitted = {}
    for name in dict.fromkeys(name for us, _ in measured for name in us):
        own = [(rows[name], us[name], min(us.values())) for us, rows in measured if name in us]

        def off(x: Any, own: list[tuple[dict[str, Any], float, float]] = own) -> list[float]:
            weights = [math.exp(-8 * (us / least - 1)) + 0.02 for _, us, least in own]
            logs = [math.log(model(*x, row) / us) for row, us, _ in own]
            return [math.sqrt(w) * log for w, log in zip(weights, logs, strict=True)]

        found = least_squares(off, (3.0, 1.0), bounds=((0.5, 0.5), (8.0, 2.0)), loss="soft_l1")
        fitted[name] = found.x
        print(f"{name:<18} {found.x[0]:5.2f}, {found.x[1]:.3f}")
    then = [(us, {name: model(*fitted[name], rows[name]) for name in us}) for us, rows in measured]
    report("with these", then)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("measure", "fit"):
        raise SystemExit(__doc__)
    {"measure": measure, "fit": fit}[sys.argv[1]](Path(sys.argv[2]))
