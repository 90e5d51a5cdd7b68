"""Measures the rows of a GPU's tuning table, and fits the two numbers that stand in every row.

    python tools/tune.py measure times.json    # on the GPU; a few minutes
    python tools/tune.py fit times.json        # anywhere: the columns `us` and `rate` of int8.table

A kernel's time is modelled as us + (memory^4 + (busy / rate)^4)^(1/4) + waves
(csrc/cuda/sm90/model.cpp). The fit makes small what is lost by choosing the kernel that the model
takes for the fastest, and with less weight how far the model is off near the fastest.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import scaled_mm
from scaled_mm._library import forced_kernels
from scaled_mm.cli.explain import ask_library
from scaled_mm.cli.gpus import Device, local_device

WEIGHTS = ((4096, 4096), (28672, 8192), (4096, 14336), (8192, 8192), (5120, 5120), (11008, 4096))
TOKENS = (1, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512)
MANY_TOKENS = (513, 1024, 1536, 2048, 4096, 8192)
ROUNDS = 3
COLD_BYTES = 2e8  # the copies of a weight exceed the L2 together
MANY = 3.0  # the weight of a shape with many tokens in the fit
STEPS = 40_000  # of the fit
SETTLE_US = 60_000  # a GPU at its power limit needs about this long to find its clock


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
        row["name"]: row["predicted_us"]
        for row in ask_library(m, n, k, device, torch.bfloat16, None)["kernels"]
    }
    least = min(predicted.values())
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8, device="cuda")
    scales = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
    calls = max(len(weights), min(100, int(1500 / least)))
    settle = max(1, math.ceil(SETTLE_US / (least * calls))) if m > TOKENS[-1] else 1
    graphs = {}
    for name, us in predicted.items():
        if us < 2 * least:
            with forced_kernels(name):
                graphs[name] = capture(a, weights, scales, calls)
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


@dataclass(frozen=True)
class Measured:
    """Of each shape and row: what was measured (nan: it was not), and the model's terms."""

    names: list[str]
    us: np.ndarray
    terms: dict[str, np.ndarray]
    weights: np.ndarray  # of the shapes

    @classmethod
    def of(cls, result: dict[str, Any]) -> Measured:
        device = Device(**result["device"])
        told = [
            ask_library(c["m"], c["n"], c["k"], device, torch.bfloat16, None)["kernels"]
            for c in result["times"]
        ]
        names = [row["name"] for row in told[0]]
        us = np.array([[c["us"].get(name, np.nan) for name in names] for c in result["times"]])
        terms = {
            name: np.array([[row[f"{name}_us"] for row in rows] for rows in told])
            for name in ("memory", "busy", "waves", "predicted")
        }
        weights = np.array([MANY if c["m"] >= 2048 else 1.0 for c in result["times"]])
        return cls(names, us, terms, weights)

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """As `predict` in csrc/cuda/sm90/model.cpp puts a row's terms together."""
        us, rate = columns.T
        memory, busy, waves = (self.terms[name] for name in ("memory", "busy", "waves"))
        return us + (memory**4 + (busy / rate) ** 4) ** 0.25 + waves

    def lost(self, predicted: np.ndarray) -> np.ndarray:
        """The time of the row that would be chosen over that of the best one, for each shape."""
        chosen = np.where(np.isnan(self.us), np.inf, predicted).argmin(axis=1)
        return self.us[np.arange(len(self.us)), chosen] / np.nanmin(self.us, axis=1)

    def off(self, predicted: np.ndarray) -> float:
        """How far the prediction is off, on average, for rows within 15 % of the best."""
        near = self.us < 1.15 * np.nanmin(self.us, axis=1, keepdims=True)
        return float(np.abs(np.log(predicted[near] / self.us[near])).mean())

    def goodness(self, columns: np.ndarray) -> float:
        """What the fit makes small: mostly the time that wrong choices lose.

        Rows are as likely to be chosen as if predictions were off by another 1 %: so choices have
        margins.
        """
        predicted = self.predict(columns)
        logs = np.log(predicted)
        logs -= np.where(np.isnan(self.us), np.inf, logs).min(axis=1, keepdims=True)
        likely = np.where(np.isnan(self.us), 0, np.exp(-logs / 0.01))
        excess = np.nan_to_num(np.log(self.us / np.nanmin(self.us, axis=1, keepdims=True)))
        lost = (likely * excess).sum(axis=1) / likely.sum(axis=1)
        mean = np.average(lost, weights=self.weights)
        return float(mean + 0.03 * lost.max() + 0.2 * self.off(predicted))


def report(what: str, measured: Measured, predicted: np.ndarray) -> None:
    lost = measured.lost(predicted)
    print(
        f"{what}: the rows chosen take {np.exp(np.log(lost).mean()):.3f} of the best rows' times, "
        f"{lost.max():.2f} at worst; predictions are off by {measured.off(predicted):.0%}"
    )


def fit(path: Path) -> None:
    """A random walk downhill: a choice is a step function, which has no slope to follow."""
    measured = Measured.of(json.loads(path.read_text()))
    report("as it is", measured, measured.terms["predicted"])
    rng = np.random.default_rng(0)
    columns = np.array([[3.0, 1.1]] * len(measured.names))
    best = measured.goodness(columns)
    for step in np.geomspace(0.2, 0.02, STEPS):
        changed = columns.copy()
        row = rng.integers(len(columns))
        changed[row] *= np.exp(step * rng.normal(size=2) * rng.permutation([0, 1]))
        changed[row] = changed[row].clip((0.5, 0.5), (8.0, 2.0))
        if (goodness := measured.goodness(changed)) < best:
            columns, best = changed, goodness
    for name, (us, rate) in zip(measured.names, columns, strict=True):
        print(f"{name:<18} {us:5.2f}, {rate:.3f}")
    report("with these", measured, measured.predict(columns))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("measure", "fit"):
        raise SystemExit(__doc__)
    {"measure": measure, "fit": fit}[sys.argv[1]](Path(sys.argv[2]))
