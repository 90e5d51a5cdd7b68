"""The measuring loop of `scaled-mm bench`: interleaved rounds, and outputs judged."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from .cases import DTYPES, Common, Product, make_case, shape_text
from .clocks import Clock, Stopwatch, clock_of, rounds_in_turns
from .contenders import CONTENDERS, Contender, Route
from .lowbit import LOWBIT_CONTENDERS, make_lowbit_case
from .peers import importable

SCHEMA = 3  # 1 had no floors, 2 none of operations
OURS = {
    contender.name
    for contenders in (CONTENDERS, *LOWBIT_CONTENDERS.values())
    for contender in contenders
    if contender.ours
}
PATIENCE_SECONDS = 0.5  # one that takes this long for a call is left out of the cases that follow


@dataclass
class Measurement:
    """What one contender did with one case."""

    name: str
    verdict: str = ""  # exact | bound (of awq_gemm) | rounding | wrong; float: another computation;
    # sums: no epilogue; or why it is missing
    off_r1: int = 0  # elements whose bits are not the reference's, of `checked`
    beyond_bound: int = 0  # elements further off than the accuracy bound of the op
    checked: int = 0
    microseconds: float | None = None  # a call, median over the rounds
    spread: float | None = None  # the slowest round over the fastest
    gops: float | None = None  # operations (2 M K N) / time
    floor_share: float | None = None  # the larger floor / time; 1 is as fast as the GPU can be
    times: dict[str, float | None] = field(default_factory=dict)
    """Time over that of each of ours, median of the rounds' ratios."""

    @property
    def right(self) -> bool:
        return self.verdict in ("exact", "bound", "rounding", "float")

    def json(self) -> dict[str, Any]:
        facts = asdict(self)
        times = facts.pop("times")
        return facts | {f"times_{name}": time for name, time in times.items()}


@dataclass(frozen=True)
class Settings(Common):
    """What to measure of the int8 products."""

    baselines: ClassVar = ("packed", "plain")  # those of ours that all times are divided by

    epilogue: str = "scaled"
    out_dtype: str = "bfloat16"
    cold: bool = True
    peers: bool = False  # other libraries too

    def contenders(self) -> list[Contender]:
        """Who takes part, in the order of the tables."""
        return taking_part([*CONTENDERS, *(importable() if self.peers else ())], self)

    def case(self, m: int, n: int, k: int) -> Product:
        return make_case(m, n, k, self.epilogue, DTYPES[self.out_dtype], self.device)


@dataclass(frozen=True)
class LowbitSettings(Common):
    """What to measure of weights of few bits."""

    op: str = "awq_gemm"  # of LOWBIT_CONTENDERS
    group: int = 128  # 0, of schemes of mixed_mm: one scale per channel
    out_dtype: str = "bfloat16"
    cold: bool = True

    @property
    def baselines(self) -> tuple[str, ...]:
        return (self.op,)

    def contenders(self) -> list[Contender]:
        return taking_part(LOWBIT_CONTENDERS[self.op], self)

    def case(self, m: int, n: int, k: int) -> Product:
        dtype = DTYPES[self.out_dtype]
        return make_lowbit_case(self.op, m, n, k, self.group, dtype, self.device)


AnySettings = Settings | LowbitSettings


def taking_part(contenders: Sequence[Contender], settings: AnySettings) -> list[Contender]:
    device, without = settings.device, settings.without
    return [c for c in contenders if device in c.devices and c.name not in without]


def judge(entry: Measurement, case: Product, out: Tensor, most: int = 2**24) -> None:
    """Compares the output with the reference: all of it, or a sample of a large one."""
    found = case.judge(out, most)
    entry.verdict, entry.checked = found.verdict, found.checked
    entry.off_r1, entry.beyond_bound = found.off_r1, found.beyond_bound


def rotating(route: Route, copies: int) -> Route:
    """The same, keeping its last outputs, so that the next go elsewhere in memory."""
    kept: deque[Tensor] = deque(maxlen=copies)

    def run(x: Tensor, weight: Any) -> Tensor:
        kept.append(route.run(x, weight))
        return kept[-1]

    return replace(route, run=run)


def prepare(
    entry: Measurement, contender: Contender, case: Product, settings: AnySettings, clock: Clock
) -> Stopwatch:
    """Runs the contender once and judges that into its entry; then all is ready for the rounds."""
    route = contender.prepare(case)
    weights, xs = [route.weight()], [route.x]
    out = route.run(xs[0], weights[0])
    if contender.unjudged:
        entry.verdict = contender.unjudged
    else:
        judge(entry, case, out, clock.checked_weight)
    if settings.cold and route.rotate_outputs:
        route = rotating(route, clock.activation_copies(out.numel() * out.itemsize))
    del out
    if settings.cold:
        _, n, k = case.mnk
        copies = clock.weight_copies(max(1, int(k * n * route.weight_bytes)))
        weights += [route.weight() for _ in range(copies - 1)]
        size = max(1, route.x.numel() * route.x.itemsize)
        xs += [route.x.clone() for _ in range(min(copies, clock.activation_copies(size)) - 1)]
    return clock.stopwatch(
        [partial(route.run, xs[i % len(xs)], weight) for i, weight in enumerate(weights)]
    )


@torch.inference_mode()
def measure(
    case: Product, settings: AnySettings, slow: set[str], clock: Clock
) -> list[Measurement]:
    """An entry per contender of the device, in the order of the table.

    `slow`: those left out for having taken too long before; who does so now is added.
    """
    contenders = {contender.name: contender for contender in settings.contenders()}
    entries = {name: Measurement(name) for name in contenders}
    failed = {name: "left out: too slow at a shape before" for name in contenders if name in slow}
    able = {
        name: partial(prepare, entries[name], contender, case, settings, clock)
        for name, contender in contenders.items()
        if name not in failed
    }
    times = rounds_in_turns(able, settings.rounds, clock.budget_seconds, failed)
    for name, entry in entries.items():
        entry.verdict = failed.get(name, entry.verdict)
        own = times.get(name)
        entry.times = {base: median_ratio(own, times.get(base)) for base in settings.baselines}
        if own:
            entry.microseconds = 1e6 * statistics.median(own)
            entry.spread = max(own) / min(own)
            if entry.microseconds > 1e6 * PATIENCE_SECONDS and name not in OURS:
                slow.add(name)
            entry.gops = 1e-3 * case.operations / entry.microseconds
            if floors := [floor for floor in floors_of(case, clock).values() if floor]:
                entry.floor_share = max(floors) / entry.microseconds
    return [*entries.values()]


def timed_rows(
    contenders: Mapping[str, Callable[[], tuple[Stopwatch, float | None]]],
    rounds: int,
    budget_seconds: float = math.inf,
) -> list[dict[str, Any]]:
    """A row per contender: microseconds, and how far its output is off; or why there are none. A
    contender is what makes it ready, and tells how far it is off if that was looked at."""
    rows: dict[str, dict[str, Any]] = {
        name: {"name": name, "microseconds": None, "verdict": ""} for name in contenders
    }

    def ready(name: str) -> Stopwatch:
        stopwatch, rows[name]["error"] = contenders[name]()
        return stopwatch

    failed = dict[str, str]()
    able = {name: partial(ready, name) for name in contenders}
    times = rounds_in_turns(able, rounds, budget_seconds, failed)
    for name, row in rows.items():
        row["verdict"] = failed.get(name, "")
        if name in times:
            row["microseconds"] = 1e6 * statistics.median(times[name])
    return [*rows.values()]


def row_table(columns: Sequence[str], cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table of `timed_rows` of several cases, its header first: microseconds, and in the last
    column how far an output is off, or why some are missing."""
    table = [["us", *columns, "off float32"]]
    for i, first in enumerate(cases[0]["rows"]):
        entries = [case["rows"][i] for case in cases]
        cells = [f"{e['microseconds']:.1f}" if e["microseconds"] else "-" for e in entries]
        off = next((f"{e['error']:.2%}" for e in entries if e.get("error") is not None), "")
        reasons = ", ".join(dict.fromkeys(e["verdict"] for e in entries if e["verdict"]))
        table.append([first["name"], *cells, reasons or off])
    return table


def floors_of(case: Product, clock: Clock) -> dict[str, float | None]:
    """What no kernel can be faster than, in microseconds; None: not stated.

    floor_us: every operand read and the output written once, at the bandwidth of a copy.
    operations_us: the operations at the full rate of the tensor cores.
    """
    operations = case.operations * case.int8_operations
    return {
        "floor_us": 1e6 * case.bytes_moved() / clock.bandwidth if clock.bandwidth else None,
        "operations_us": 1e-6 * operations / clock.tops if clock.tops and operations else None,
    }


def median_ratio(times: Sequence[float] | None, others: Sequence[float] | None) -> float | None:
    """Of the rounds that both took part in, which are the first ones."""
    if not times or not others:
        return None
    return statistics.median(t / o for t, o in zip(times, others, strict=False))


def best(entries: Sequence[Measurement], *, right: bool) -> Measurement | None:
    """The fastest of the others; with `right`, of those whose numbers are right."""
    others = [
        entry
        for entry in entries
        if entry.gops and entry.name not in OURS and entry.verdict != "sums"
        if entry.right or not right
    ]
    return max(others, key=lambda entry: entry.gops or 0, default=None)


def summary(entries: Sequence[Measurement]) -> dict[str, Any]:
    """The fastest of the others, and the fastest right one: its name, its time over ours."""
    found = {"best": best(entries, right=False), "best_right": best(entries, right=True)}
    return {
        key: {"name": entry.name, **entry.times}
        for key, entry in found.items()
        if entry is not None
    }


def run(
    shapes: Sequence[tuple[int, int, int]],
    settings: AnySettings,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures every (M, N, K) of `shapes`; the result is JSON-ready."""
    (*_, result) = growing(shapes, settings, progress)
    return result


def empty_result(settings: Any, clock: Clock) -> dict[str, Any]:
    """JSON-ready, before anything is measured."""
    return {
        "schema": SCHEMA,
        "machine": clock.machine(),
        "settings": asdict(settings),
        "results": [],
    }


def growing(
    shapes: Sequence[tuple[int, int, int]],
    settings: AnySettings,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """`run`, yielding the result so far after every shape."""
    clock = clock_of(settings.device)
    result = empty_result(settings, clock)
    slow: set[str] = set()
    for i, (m, n, k) in enumerate(shapes):
        progress(f"{i + 1}/{len(shapes)}: {shape_text(m, n, k)}")
        case = settings.case(m, n, k)
        entries = measure(case, settings, slow, clock)
        routes = [entry.json() for entry in entries]
        facts = {**case.facts(), **floors_of(case, clock), "routes": routes}
        result["results"].append(facts | summary(entries))
        yield result
        del case
        clock.clear()
