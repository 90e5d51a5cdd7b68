"""The measuring loop of `scaled-mm bench`: interleaved rounds, and outputs judged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import reference
from .clocks import Clock, Stopwatch, clock_of
from .contenders import CONTENDERS, DTYPES, Case, Contender, make_case

SCHEMA = 2  # 1 had no floors
CHECKED_ROWS = 16  # of every output, against the reference
OURS = {contender.name for contender in CONTENDERS if contender.ours}
PATIENCE_SECONDS = 0.5  # one that takes this long for a call is left out of the cases that follow


@dataclass
class Entry:
    """What one contender did with one case."""

    name: str
    verdict: str = ""  # exact | rounding | wrong; float: another computation; sums: no epilogue; or
    # why it is missing
    off_r1: int = 0  # elements whose bits are not the reference's, of `checked`
    beyond_bound: int = 0  # elements further off than the accuracy bound of scaled_mm
    checked: int = 0
    microseconds: float | None = None  # a call, median over the rounds
    gops: float | None = None  # 2 M K N / time
    floor_share: float | None = None  # floor / time; 1 is as fast as memory can be
    times_packed: float | None = None  # time over that of "packed", median of the rounds' ratios
    times_plain: float | None = None

    @property
    def right(self) -> bool:
        return self.verdict in ("exact", "rounding", "float")


@dataclass(frozen=True)
class Settings:
    epilogue: str = "scaled"
    out_dtype: str = "bfloat16"
    device: str = "cpu"
    cold: bool = True
    rounds: int = 9
    without: tuple[str, ...] = ()  # contenders left out

    def contenders(self) -> list[Contender]:
        """Who takes part, in the order of the tables."""
        return [c for c in CONTENDERS if self.device in c.devices and c.name not in self.without]


def in_short(reason: Exception) -> str:
    """What a table says of a contender that failed."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0][:60]


def spread(length: int, most: int) -> Tensor:
    """Up to `most` of the indices below `length`, the first and the last among them."""
    return torch.linspace(0, length - 1, min(length, most)).long()


def judge(entry: Entry, case: Case, out: Tensor, most: int = 2**24) -> None:
    """Compares a sample of rows with the reference, and of columns when a weight has more than
    `most` elements.

    Off the bits by rounding (another order of the scales, bf16 before the bias) is no fault of a
    peer; more than 16 times the accuracy bound of scaled_mm is none of rounding's.
    """
    m, k, n = case.mkn
    rows, columns = spread(m, CHECKED_ROWS), spread(n, max(1, most // max(1, k)))

    def sample(x: Tensor) -> Tensor:
        x = x[rows] if len(x) == m > 1 else x
        return x[:, columns] if x.shape[1] == n > 1 else x

    given = {"scale_a": case.scale_a, "scale_b": case.scale_b, **case.operands}
    some = {name: sample(x).cpu() for name, x in given.items()}
    report = reference.check(
        out[rows][:, columns], case.a[rows].cpu(), case.b[:, columns].cpu(), **some
    )
    entry.off_r1, entry.beyond_bound = report.different, report.beyond
    entry.checked = report.elements
    if report.different == 0:
        entry.verdict = "exact"
    else:
        entry.verdict = "rounding" if report.worst_of_bound <= 16 else "wrong"


@dataclass
class Runner:
    """A contender on its marks."""

    entry: Entry
    stopwatch: Stopwatch
    rounds: int  # it takes part in


def prepare(contender: Contender, case: Case, settings: Settings, clock: Clock) -> Runner:
    """Runs and judges the contender once, and settles how often it runs in how many rounds."""
    entry = Entry(contender.name)
    route = contender.prepare(case)
    weights, xs = [route.weight()], [route.x]
    out = route.run(xs[0], weights[0])
    if contender.unjudged:
        entry.verdict = contender.unjudged
    else:
        judge(entry, case, out, clock.checked_weight)
    del out
    if settings.cold:
        copies = clock.weight_copies(max(1, case.b.numel() * route.weight_bytes))
        weights += [route.weight() for _ in range(copies - 1)]
        size = max(1, route.x.numel() * route.x.itemsize)
        xs += [route.x.clone() for _ in range(min(copies, clock.activation_copies(size)) - 1)]
    calls = [partial(route.run, xs[i % len(xs)], weight) for i, weight in enumerate(weights)]
    stopwatch = clock.stopwatch(calls)
    fitting = round(clock.budget_seconds / stopwatch.round_seconds)
    return Runner(entry, stopwatch, max(1, min(settings.rounds, fitting)))


@torch.inference_mode()
def measure(case: Case, settings: Settings, slow: set[str], clock: Clock) -> list[Entry]:
    """An entry per contender of the device, in the order of the table.

    `slow`: those left out for having taken too long before; who does so now is added.
    """
    entries: list[Entry] = []
    runners: list[Runner] = []
    for contender in settings.contenders():
        if contender.name in slow:
            entries.append(Entry(contender.name, "left out: too slow at a shape before"))
            continue
        try:
            runners.append(prepare(contender, case, settings, clock))
            entries.append(runners[-1].entry)
        except Exception as reason:  # one may fail in any way it likes: the others go on
            entries.append(Entry(contender.name, in_short(reason)))
    times: dict[str, list[float]] = {runner.entry.name: [] for runner in runners}
    for i in range(settings.rounds):
        for runner in runners[:: -1 if i % 2 else 1]:
            if i < runner.rounds:
                try:
                    times[runner.entry.name].append(runner.stopwatch.seconds())
                except Exception as reason:
                    runner.entry.verdict, runner.rounds = in_short(reason), 0
                    times[runner.entry.name].clear()
    for entry in entries:
        if own := times.get(entry.name):
            entry.microseconds = 1e6 * statistics.median(own)
            if entry.microseconds > 1e6 * PATIENCE_SECONDS and entry.name not in OURS:
                slow.add(entry.name)
            entry.gops = 2e-3 * math.prod(case.mkn) / entry.microseconds
            if clock.bandwidth:
                floor = case.bytes_moved() / clock.bandwidth
                entry.floor_share = 1e6 * floor / entry.microseconds
            entry.times_packed = median_ratio(own, times.get("packed"))
            entry.times_plain = median_ratio(own, times.get("plain"))
    return entries


def median_ratio(times: Sequence[float], others: Sequence[float] | None) -> float | None:
    """Of the rounds that both took part in, which are the first ones."""
    if not others:
        return None
    return statistics.median(t / o for t, o in zip(times, others, strict=False))


def best(entries: Sequence[Entry], *, right: bool) -> Entry | None:
    """The fastest of the others; with `right`, of those whose numbers are right."""
    others = [
        entry
        for entry in entries
        if entry.gops and entry.name not in OURS and entry.verdict != "sums"
        if entry.right or not right
    ]
    return max(others, key=lambda entry: entry.gops or 0, default=None)


def summary(entries: Sequence[Entry]) -> dict[str, Any]:
    """The fastest of the others, and the fastest right one: its name, its time over ours."""
    found = {"best": best(entries, right=False), "best_right": best(entries, right=True)}
    return {
        key: {"name": entry.name, "packed": entry.times_packed, "plain": entry.times_plain}
        for key, entry in found.items()
        if entry is not None
    }


def run(
    shapes: Sequence[tuple[int, int, int]],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures every (M, K, N) of `shapes`; the result is JSON-ready."""
    (*_, result) = growing(shapes, settings, progress)
    return result


def growing(
    shapes: Sequence[tuple[int, int, int]],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """`run`, yielding the result so far after every shape."""
    clock = clock_of(settings.device)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "machine": clock.machine(),
        "settings": asdict(settings),
        "results": [],
    }
    slow: set[str] = set()
    for i, (m, k, n) in enumerate(shapes):
        progress(f"{i + 1}/{len(shapes)}: M={m} K={k} N={n}")
        case = make_case(m, k, n, settings.epilogue, DTYPES[settings.out_dtype], settings.device)
        entries = measure(case, settings, slow, clock)
        floor = 1e6 * case.bytes_moved() / clock.bandwidth if clock.bandwidth else None
        shape = {"m": m, "k": k, "n": n, "bytes": case.bytes_moved(), "floor_us": floor}
        routes = [asdict(entry) for entry in entries]
        result["results"].append({**shape, "routes": routes, **summary(entries)})
        yield result
        del case
        clock.clear()
