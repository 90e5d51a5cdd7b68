"""The stopwatch of `scaled-mm bench`: interleaved rounds, outputs judged, facts of the machine."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__, _library, reference
from .contenders import CONTENDERS, DTYPES, Case, Contender, Route, make_case

CHECKED_ROWS = 16  # of every output, against the reference
SLICE_SECONDS = 0.02  # a contender's share of a round is at least this long
BUDGET_SECONDS = 2.0  # and over all rounds about this long: slow ones take part in fewer
OURS = {contender.name for contender in CONTENDERS if contender.ours}
PATIENCE_SECONDS = 0.5  # one that takes this long for a call is left out of the cases that follow
COPIES_BYTES = 2**30  # at most this much memory goes into one contender's copies of the weight


@dataclass
class Entry:
    """What one contender did with one case."""

    name: str
    verdict: str = ""  # exact | rounding | wrong; float: another computation; or why it is missing
    off_r1: int = 0  # elements whose bits are not the reference's, of `checked`
    beyond_bound: int = 0  # elements further off than the accuracy bound of scaled_mm
    checked: int = 0
    microseconds: float | None = None  # a call, median over the rounds
    gops: float | None = None  # 2 M K N / time
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


def last_level_cache() -> int:
    """Bytes, from sysfs; 32 MiB where that does not say."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [path.read_text().strip() for path in caches.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(s[:-1]) * units[s[-1]] for s in sizes if s[-1:] in units), default=2**25)


def judge(entry: Entry, case: Case, out: Tensor) -> None:
    """Compares a sample of rows with the reference.

    Off the bits by rounding (another order of the scales, bf16 before the bias) is no fault of a
    peer; more than 16 times the accuracy bound of scaled_mm is none of rounding's.
    """
    rows = torch.linspace(0, len(out) - 1, min(len(out), CHECKED_ROWS)).long()
    given = {"scale_a": case.scale_a, **case.operands}
    some = {name: x[rows] if len(x) == len(out) > 1 else x for name, x in given.items()}
    report = reference.check(out[rows], case.a[rows], case.b, scale_b=case.scale_b, **some)
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
    route: Route
    weights: list[Any]
    calls: int = 1  # in a round
    rounds: int = 1

    def seconds(self) -> float:
        """Of one call, the mean over a round."""
        run, weights, copies = self.route.run, self.weights, len(self.weights)
        start = time.perf_counter()
        for i in range(self.calls):
            run(weights[i % copies])
        return (time.perf_counter() - start) / self.calls


def prepare(contender: Contender, case: Case, settings: Settings) -> Runner:
    """Runs and judges the contender once, and settles how often it runs in how many rounds."""
    entry = Entry(contender.name)
    route = contender.prepare(case)
    runner = Runner(entry, route, [route.weight()])
    out = route.run(runner.weights[0])
    if contender.quantised:
        judge(entry, case, out)
    else:
        entry.verdict = "float"
    if settings.cold:
        size = max(1, case.b.numel() * route.weight_bytes)
        copies = max(2, math.ceil(2 * last_level_cache() / size))
        copies = min(copies, 1000, max(1, COPIES_BYTES // size))
        runner.weights += [route.weight() for _ in range(copies - 1)]
    once = runner.seconds()
    runner.calls = max(1, math.ceil(SLICE_SECONDS / once))
    runner.rounds = max(1, min(settings.rounds, round(BUDGET_SECONDS / (once * runner.calls))))
    return runner


@torch.inference_mode()
def measure(case: Case, settings: Settings, slow: set[str]) -> list[Entry]:
    """An entry per contender of the device, in the order of the table.

    `slow`: those left out for having taken too long before; who does so now is added.
    """
    entries: list[Entry] = []
    runners: list[Runner] = []
    for contender in CONTENDERS:
        if settings.device not in contender.devices or contender.name in settings.without:
            continue
        if contender.name in slow:
            entries.append(Entry(contender.name, "left out: too slow at a shape before"))
            continue
        try:
            runners.append(prepare(contender, case, settings))
            entries.append(runners[-1].entry)
        except Exception as reason:  # a peer may fail in any way it likes
            if contender.ours:
                raise
            text = str(reason) or type(reason).__name__
            entries.append(Entry(contender.name, text.splitlines()[0][:60]))
    times: dict[str, list[float]] = {runner.entry.name: [] for runner in runners}
    for i in range(settings.rounds):
        for runner in runners[:: -1 if i % 2 else 1]:
            if i < runner.rounds:
                times[runner.entry.name].append(runner.seconds())
    for entry in entries:
        if own := times.get(entry.name):
            entry.microseconds = 1e6 * statistics.median(own)
            if entry.microseconds > 1e6 * PATIENCE_SECONDS and entry.name not in OURS:
                slow.add(entry.name)
            entry.gops = 2e-3 * math.prod(case.mkn) / entry.microseconds
            entry.times_packed = median_ratio(own, times["packed"])
            entry.times_plain = median_ratio(own, times["plain"])
    return entries


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """Of the rounds that both took part in, which are the first ones."""
    return statistics.median(t / o for t, o in zip(times, others, strict=False))


def best(entries: Sequence[Entry], *, right: bool) -> Entry | None:
    """The fastest of the others; with `right`, of those whose numbers are right."""
    ours = {contender.name for contender in CONTENDERS if contender.ours}
    others = [e for e in entries if e.gops and e.name not in ours and (e.right or not right)]
    return max(others, key=lambda entry: entry.gops or 0, default=None)


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    info = Path("/proc/cpuinfo")
    lines = [line.partition(":") for line in info.read_text().splitlines()] if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    telling = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "i8mm")
    return {
        "cpu": facts.get("model name", platform.processor() or platform.machine()),
        "flags": [flag for flag in telling if flag in flags],
        "last_level_cache": last_level_cache(),
        "threads": torch.get_num_threads(),
        "isa": _library.cpu_isa(),
        "scaled_mm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def run(
    shapes: Sequence[tuple[int, int, int]],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures every (M, K, N) of `shapes`; the result is JSON-ready."""
    results = []
    slow: set[str] = set()
    for m, k, n in shapes:
        progress(f"M={m} K={k} N={n}")
        case = make_case(m, k, n, settings.epilogue, DTYPES[settings.out_dtype], settings.device)
        entries = measure(case, settings, slow)
        summary = {}
        for key, right in (("best", False), ("best_right", True)):
            if found := best(entries, right=right):
                summary[key] = {
                    "name": found.name,
                    "packed": found.times_packed,
                    "plain": found.times_plain,
                }
        routes = [asdict(entry) for entry in entries]
        results.append({"m": m, "k": k, "n": n, "routes": routes, **summary})
    return {"schema": 1, "machine": machine(), "settings": asdict(settings), "results": results}
