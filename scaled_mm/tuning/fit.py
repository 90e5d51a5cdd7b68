"""Fits the two numbers of every kernel to what was measured.

A kernel's time is modelled as us + (memory^4 + max(busy / rate, least)^4)^(1/4) + waves
(`joined` in csrc/dispatch/predict.h). The fit makes small what is lost by choosing the kernel that
the model takes for the fastest, and with less weight how far the model is off near the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..gpus import Device
from .measure import ask

TERMS = ("memory", "busy", "waves", "least")
MANY, MANY_TOKENS = 3.0, 2048  # the weight of a shape with so many tokens
STEPS = 25_000
LEAST, MOST = (0.3, 0.3), (12.0, 3.0)  # of us and rate, in a fit
MARGIN = 0.01  # rows are as likely to be chosen as if predictions were off by another 1 %


@dataclass(frozen=True)
class Measured:
    """Of each shape and kernel: what was measured (nan: it was not), and the model's terms."""

    names: list[str]
    us: np.ndarray
    terms: dict[str, np.ndarray]
    weights: np.ndarray
    """Of the shapes."""
    columns: np.ndarray
    """The kernels' own numbers, us and rate."""

    @classmethod
    def of(
        cls, family: str, shapes: list[dict[str, Any]], device: Device, share: float
    ) -> Measured:
        """`share` of the peak of memory: what kernels reach of it, in place of the table's."""
        told = [
            ask(family, each["m"], each["n"], each["k"], device, each.get("in_blocks", False))
            for each in shapes
        ]
        rows = [{row["name"]: row for row in answer["kernels"] if "rate" in row} for answer in told]
        known = {name: row for each in rows for name, row in each.items()}
        names = [*known]
        us = [
            [each["us"].get(name, np.nan) if name in row else np.nan for name in names]
            for each, row in zip(shapes, rows, strict=True)
        ]
        terms = {  # those of a kernel that does not serve the shape play no part
            term: np.array([[row.get(n, known[n])[f"{term}_us"] for n in names] for row in rows])
            for term in TERMS
        }
        terms["memory"] *= told[0]["gpu"]["memory_share"] / share
        weights = [MANY if each["m"] >= MANY_TOKENS else 1.0 for each in shapes]
        columns = np.array([[row["fixed_us"], row["rate"]] for row in known.values()])
        return cls(names, np.array(us, dtype=float), terms, np.array(weights), columns)

    def part(self, shapes: slice) -> Measured:
        """Some of the shapes."""
        terms = {name: term[shapes] for name, term in self.terms.items()}
        return replace(self, us=self.us[shapes], terms=terms, weights=self.weights[shapes])

    def predict(self, columns: np.ndarray) -> np.ndarray:
        us, rate = columns.T
        memory, busy, waves, least = (self.terms[name] for name in TERMS)
        busy = np.maximum(busy / rate, least)
        return us + np.sqrt(np.sqrt(memory**4 + busy**4)) + waves

    def lost(self, columns: np.ndarray) -> np.ndarray:
        """The time of the kernel that would be chosen over that of the best one, for each shape."""
        predicted = np.where(np.isnan(self.us), np.inf, self.predict(columns))
        chosen = predicted.argmin(axis=1)
        return self.us[np.arange(len(self.us)), chosen] / np.nanmin(self.us, axis=1)

    def off(self, columns: np.ndarray) -> float:
        """How far predictions are off, on average, for kernels within 15 % of the best."""
        near = self.us < 1.15 * np.nanmin(self.us, axis=1, keepdims=True)
        return float(np.abs(np.log(self.predict(columns)[near] / self.us[near])).mean())

    def goodness(self, columns: np.ndarray) -> float:
        """What the fit makes small: mostly the time that wrong choices lose."""
        missing = np.isnan(self.us)
        logs = np.log(self.predict(columns))
        logs -= np.where(missing, np.inf, logs).min(axis=1, keepdims=True)
        likely = np.where(missing, 0, np.exp(-logs / MARGIN))
        best = np.nanmin(self.us, axis=1, keepdims=True)
        excess = np.where(missing, 0, np.log(np.where(missing, best, self.us) / best))
        lost = (likely * excess).sum(axis=1) / likely.sum(axis=1)
        mean = np.average(lost, weights=self.weights)
        return float(mean + 0.03 * lost.max() + 0.2 * self.off(columns))


@dataclass(frozen=True)
class Loss:
    """What choices lose against the best kernels."""

    mean: float
    """Geometric mean of their times over the best ones'."""
    worst: float
    off: float
    """How far predictions are off near the best."""

    @classmethod
    def of(cls, measured: Measured, columns: np.ndarray) -> Loss:
        lost = measured.lost(columns)
        return cls(float(np.exp(np.log(lost).mean())), float(lost.max()), measured.off(columns))


def fitted(measured: Measured, steps: int = STEPS) -> np.ndarray:
    """A random walk downhill from the kernels' own numbers: a choice is a step function, which has
    no slope to follow."""
    rng = np.random.default_rng(0)
    columns = measured.columns.clip(LEAST, MOST)
    best = measured.goodness(columns)
    for step in np.geomspace(0.2, 0.02, steps):
        changed = columns.copy()
        row = rng.integers(len(columns))
        changed[row] *= np.exp(step * rng.normal(size=2) * rng.permutation([0, 1]))
        changed[row] = changed[row].clip(LEAST, MOST)
        if (goodness := measured.goodness(changed)) < best:
            columns, best = changed, goodness
    return columns


@dataclass(frozen=True)
class Result:
    """A family's fit."""

    names: list[str]
    columns: np.ndarray
    own: Loss
    """With the tables' numbers."""
    now: Loss
    """With the fitted ones."""
    unseen: Loss
    """With numbers fitted to one half of the shapes, at the other half; the worse of both."""

    @property
    def better(self) -> bool:
        """Whether the fit is worth having: it loses less, also where it was not made."""
        return self.now.mean < self.own.mean and self.unseen.mean <= self.own.mean + 0.002


def fit(measured: Measured, steps: int = STEPS) -> Result:
    columns = fitted(measured, steps)
    halves = [measured.part(slice(i, None, 2)) for i in (0, 1)]
    unseen = [
        Loss.of(other, fitted(half, steps // 2))
        for half, other in (halves, halves[::-1])
        if len(half.us) and len(other.us)
    ]
    own, now = Loss.of(measured, measured.columns), Loss.of(measured, columns)
    return Result(
        measured.names, columns, own, now, max(unseen, key=lambda loss: loss.mean, default=now)
    )
