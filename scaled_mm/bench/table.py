"""The tables of `scaled-mm bench`, as rows and in Markdown, from its JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from .cases import EPILOGUES, by_weight, shape_text
from .contenders import CONTENDERS
from .endings import tables as ending_tables
from .grouped import tables as grouped_tables
from .grouped_contenders import CONTENDERS as GROUPED_CONTENDERS
from .layer import CONTENDERS as LAYER_CONTENDERS
from .lowbit import LOWBIT_CONTENDERS
from .measure import row_table
from .model import tables as model_tables
from .peers import PEERS

VERDICTS = {
    "exact": "equal to R1",
    "bound": "within the bound",
    "rounding": "{off} of {checked} off R1 by rounding",
    "wrong": "WRONG: {beyond} of {checked}",
    "float": "no int8 product",
    "sums": "int32 sums",
}
JUDGED = ("packed", "plain", "awq_gemm", "awq_dequantize", "w8a16", "w4a16", "w4a8")  # of ours
SUMMARY = {
    f"{ours} / {key.replace('_', ' ')}": (key, ours)
    for key in ("best_right", "best")  # the latter is shown where the best is not right
    for ours in JUDGED
}
FLOORS = ("HBM floor", "tensor floor", "% of ")
SPREAD = 1.5  # the slowest round over the fastest: more is no measurement
Cells = list[list[str]]


def verdict(entries: list[dict[str, Any]]) -> str:
    """The worst verdict on the outputs that there are, then why others are missing."""
    there = [entry for entry in entries if entry["verdict"] in VERDICTS]
    reasons = dict.fromkeys(e["verdict"] for e in entries if e["verdict"] not in VERDICTS)
    worst = [max((entry["verdict"] for entry in there), key=[*VERDICTS].index)] if there else []
    counts = {
        "off": sum(e["off_r1"] for e in there),
        "beyond": sum(e["beyond_bound"] for e in there),
        "checked": sum(e["checked"] for e in there),
    }
    return "; ".join([*(VERDICTS[text].format(**counts) for text in worst), *reasons])


def speed(gops: float | None) -> str:
    if gops is None:
        return "-"
    return f"{gops:.0f}" if gops >= 100 else f"{gops:.3g}"


def duration(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def contenders_of(cases: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Name and entries of each contender, an entry per case."""
    for i, first in enumerate(cases[0]["routes"]):
        yield first["name"], [case["routes"][i] for case in cases]


def ratios(cases: list[dict[str, Any]], title: str) -> list[str]:
    """A row of SUMMARY: ours against the best, and who that is."""
    key, ours = SUMMARY[title]
    found = [case.get(key) for case in cases]
    cells = [f"{best[ours]:.2f}x" if best and best[ours] else "-" for best in found]
    names = dict.fromkeys(best["name"] for best in found if best)
    return [title, *cells, ", ".join(names)]


def cpu_rows(cases: list[dict[str, Any]]) -> Cells:
    rows = [["GOP/s", *map(column, cases), "output"]]
    for name, entries in contenders_of(cases):
        rows.append([name, *(speed(e["gops"]) for e in entries), verdict(entries)])
    names = [row[0] for row in rows]
    same = all(case.get("best") == case.get("best_right") for case in cases)
    titles = [
        title
        for title, (key, ours) in SUMMARY.items()
        if ours in names and not (same and key == "best")
    ]
    return [*rows, *(ratios(cases, title) for title in titles)]


def gpu_rows(cases: list[dict[str, Any]], ours: str) -> Cells:
    rows = [["us", *map(column, cases), "output"]]
    own: list[dict[str, Any]] = []
    for name, entries in contenders_of(cases):
        times = [duration(entry["microseconds"]) for entry in entries]
        rows.append([name, *times, verdict(entries)])
        own = entries if name == ours else own
    by = "floor / time"
    if cases[0]["floor_us"]:
        floors = [duration(case["floor_us"]) for case in cases]
        rows.append([FLOORS[0], *floors, "operands and output once"])
    if cases[0].get("operations_us"):  # not in older results
        floors = [duration(case["operations_us"]) for case in cases]
        rows.append([FLOORS[1], *floors, "operations at the full rate"])
        by = "the larger floor / time"
    if cases[0]["floor_us"]:
        rows.append([f"% of floor ({ours})", *percent(own), by])
    if cases[0]["floor_us"] and "weight_bytes" in cases[0] and cases[0]["m"]:
        alone = [
            case["weight_bytes"] / case["bytes"] * case["floor_us"] / larger_floor(case)
            for case in cases
        ]
        rows.append([f"% of weight floor ({ours})", *percent(own, alone), "of its words alone"])
    if "operations_us" in cases[0]:
        rows.append(["best right of the others", *map(best_other, cases), "whose us"])
    there = [row[0] for row in rows]
    judged = [f"{name} / best right" for name in JUDGED if name in there]
    return [*rows, *(ratios(cases, title) for title in judged)]


def larger_floor(case: dict[str, Any]) -> float:
    return max(case["floor_us"], case.get("operations_us") or 0.0)


def best_other(case: dict[str, Any]) -> str:
    """Who is the fastest of the others that are right, and how long it takes."""
    name = case.get("best_right", {}).get("name")
    times = [route["microseconds"] for route in case["routes"] if route["name"] == name]
    return f"{name} {duration(times[0])}" if times else "-"


def percent(entries: list[dict[str, Any]], of: Sequence[float] = ()) -> list[str]:
    """The shares of the floor, or of these parts of it."""
    shares = [entry["floor_share"] for entry in entries]
    parts = of or [1.0] * len(shares)
    return [f"{100 * s * part:.0f}" if s else "-" for s, part in zip(shares, parts, strict=True)]


def column(case: dict[str, Any]) -> str:
    return f"M={case['m']}" if case["m"] else f"{case['k']}x{case['n']}"


def titled(result: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The title and cases of each table: one for a weight shape, or for all where there is no M."""
    settings, every = result["settings"], result["results"]
    cache = "cold" if settings["cold"] else "warm"
    about = f"{settings['out_dtype']}, weights {cache}"
    if "op" in settings:
        group = settings["group"]
        groups = f"groups of {group}" if group else "per channel"
        about = f"{settings['op']}, {groups}, {about}"
    else:
        about = f"{EPILOGUES[settings['epilogue']]}, {about}"
    if every and not every[0]["m"]:
        yield about, every
        return
    for (n, k), cases in by_weight(every).items():
        yield f"N={n} K={k}, {about}", cases


def tables(result: dict[str, Any]) -> Iterator[tuple[str, Cells]]:
    """Title and rows, the header first, of every table."""
    if result.get("layers"):
        rows = row_table([f"M={layer['m']}" for layer in result["layers"]], result["layers"])
        yield f"{result['settings']['layer']}, without attention's core, us", rows
        return
    for key, of in (
        ("endings", ending_tables),
        ("models", model_tables),
        ("blocks", grouped_tables),
    ):
        if result.get(key):
            yield from of(result)
            return
    ours = result["settings"].get("op", "plain")  # the contender that the summary is about
    in_time = result["settings"]["device"] == "cuda" or ours == "awq_dequantize"
    for title, cases in titled(result):
        yield title, gpu_rows(cases, ours) if in_time else cpu_rows(cases)
    if host := result.get("host"):
        rows = [["host", "us", "output"]]
        rows += [[r["name"], duration(r["microseconds"]), r["verdict"]] for r in host["rows"]]
        yield "Host time of an eager call, M={m} N={n} K={k}".format(**host), rows


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def totals(result: dict[str, Any]) -> list[str]:
    """Lines over all cells of a GPU's result: ours against the best right route, and each."""
    if result["settings"]["device"] != "cuda" or not result["results"]:
        return []
    return [line for ours in JUDGED for line in total(result, ours)]


def total(result: dict[str, Any], ours: str) -> list[str]:
    cells = [
        (case["best_right"][ours], case)
        for case in result["results"]
        if case.get("best_right", {}).get(ours)
    ]
    if not cells:
        return []
    ratio, worst = min(cells, key=lambda cell: cell[0])
    at = shape_text(worst["m"], worst["n"], worst["k"])
    against: dict[str, list[float]] = {}
    for case in result["results"]:
        for route in case["routes"]:
            if route[f"times_{ours}"] and route["name"] != ours:
                against.setdefault(route["name"], []).append(route[f"times_{ours}"])
    each = ", ".join(f"{name} {geomean(times):.2f}x" for name, times in against.items())
    return [
        f"{ours} / best right: geomean {geomean([ratio for ratio, _ in cells]):.2f}x over "
        f"{len(cells)} cells, worst {ratio:.2f}x at {at} ({worst['best_right']['name']})",
        f"{ours} / each, geomeans over its cells: {each}",
    ]


def warnings_of(result: dict[str, Any]) -> list[str]:
    """A line where the rounds of a contender of ours differ too much to be compared."""
    wide = [
        (route["spread"], f"{route['name']} at M={case['m']} N={case['n']} K={case['k']}")
        for case in result["results"]
        for route in case["routes"]
        if route["name"] in JUDGED and (route.get("spread") or 1) > SPREAD
    ]
    if not wide:
        return []
    most, where = max(wide)
    return [
        f"warning: in {len(wide)} cells rounds differ by more than {SPREAD:g}x, "
        f"most by {most:.1f}x ({where}): is the machine idle?"
    ]


def machine_line(result: dict[str, Any]) -> str:
    m = result["machine"]
    versions = f"scaled_mm {m['scaled_mm']}" + (f" ({m['commit']})" if m.get("commit") else "")
    if "gpu" in m:
        about = [m["gpu"], f"{m['sms']} SMs"]
        about += [m[key] for key in ("power_limit", "max_clock") if key in m]
        return (
            f"{versions}; torch {m['torch']}, CUDA {m['cuda']}, driver {m.get('driver', 'unknown')}"
            f", Triton {m['triton'] or 'none'}; {', '.join(about)}; "
            f"copy bandwidth {m['copy_tb_per_s']:.2f} TB/s"
            + (f", int8 at full clock {m['int8_tops']:.0f} TOPS" if "int8_tops" in m else "")
        )
    flags = ", ".join(m["flags"]) or "none of note"
    return (
        f"{versions}, ISA path {m['isa']}; torch {m['torch']}; {m['cpu']} ({flags})"
        f", {m['threads']} threads, {m['last_level_cache'] >> 20} MiB last-level cache"
    )


def taking_part(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Who is in the tables, and what that is."""
    settings = result["settings"]
    if result.get("models"):
        yield from ((model["name"], model["what"]) for model in result["models"])
        return
    contenders: Sequence[Any] = (*CONTENDERS, *PEERS.values())
    if result.get("layers") or result.get("blocks"):
        contenders = LAYER_CONTENDERS if result.get("layers") else GROUPED_CONTENDERS
    elif "op" in settings:
        contenders = LOWBIT_CONTENDERS[settings["op"]]
    names = {
        row["name"]
        for cases, rows in (("results", "routes"), ("layers", "rows"), ("blocks", "rows"))
        for case in result.get(cases, ())
        for row in case[rows]
    }
    for each in contenders:
        if settings["device"] in each.devices and each.name in names:
            yield each.name, each.what


def markdown(result: dict[str, Any]) -> str:
    parts = [machine_line(result)]
    for title, (header, *rows) in tables(result):
        rule = ["---", *["---:"] * (len(header) - 2), "---"]
        lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        parts.append("\n".join([f"**{title}**", "", *lines]))
    named = "\n".join(f"- {name}: {what}" for name, what in taking_part(result))
    return "\n\n".join([*parts, *totals(result), *([named] if named else [])]) + "\n"
