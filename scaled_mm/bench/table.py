"""The tables of `scaled-mm bench`, for the terminal and for Markdown, from its JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .contenders import CONTENDERS, EPILOGUES

VERDICTS = {
    "exact": "equal to R1",
    "rounding": "{off} of {checked} off R1 by rounding",
    "wrong": "WRONG: {beyond} of {checked}",
    "float": "no int8 product",
    "sums": "int32 sums",
}
SUMMARY = {
    "packed / best right": ("best_right", "packed"),
    "plain / best right": ("best_right", "plain"),
    "packed / best": ("best", "packed"),  # shown where the best is not right
    "plain / best": ("best", "plain"),
}
FLOOR = ("HBM floor", "% of floor (plain)")
Cells = list[list[str]]


def verdict(entries: list[dict[str, Any]]) -> str:
    """The worst of the contender's verdicts in a table; a reason it is missing is the worst."""
    order = list(VERDICTS)
    worst = max(entries, key=lambda e: order.index(e["verdict"]) if e["verdict"] in order else 9)
    counts = {
        "off": sum(e["off_r1"] for e in entries),
        "beyond": sum(e["beyond_bound"] for e in entries),
        "checked": sum(e["checked"] for e in entries),
    }
    text: str = worst["verdict"]
    return VERDICTS[text].format(**counts) if text in VERDICTS else text


def verdict_and_reasons(entries: list[dict[str, Any]]) -> str:
    """The worst verdict on the outputs that there are, then why others are missing."""
    there = [entry for entry in entries if entry["verdict"] in VERDICTS]
    reasons = dict.fromkeys(e["verdict"] for e in entries if e["verdict"] not in VERDICTS)
    return "; ".join([*([verdict(there)] if there else []), *reasons])


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
    rows = [["GOP/s", *(f"M={case['m']}" for case in cases), "output"]]
    for name, entries in contenders_of(cases):
        rows.append([name, *(speed(e["gops"]) for e in entries), verdict(entries)])
    same = all(case.get("best") == case.get("best_right") for case in cases)
    titles = [title for title, (key, _) in SUMMARY.items() if not (same and key == "best")]
    return [*rows, *(ratios(cases, title) for title in titles)]


def gpu_rows(cases: list[dict[str, Any]]) -> Cells:
    rows = [["us", *(f"M={case['m']}" for case in cases), "output"]]
    plain: list[dict[str, Any]] = []
    for name, entries in contenders_of(cases):
        times = [duration(entry["microseconds"]) for entry in entries]
        rows.append([name, *times, verdict_and_reasons(entries)])
        plain = entries if name == "plain" else plain
    shares = [e["floor_share"] for e in plain]
    floor, share = FLOOR
    rows.append(
        [floor, *(duration(case["floor_us"]) for case in cases), "operands and output once"]
    )
    rows.append([share, *(f"{100 * s:.0f}" if s else "-" for s in shares), "floor / time"])
    return [*rows, ratios(cases, "plain / best right")]


def tables(result: dict[str, Any]) -> Iterator[tuple[str, Cells]]:
    """Title and rows, the header first, of a table per weight shape."""
    settings = result["settings"]
    weights = dict.fromkeys((r["k"], r["n"]) for r in result["results"])
    for k, n in weights:
        cases = [r for r in result["results"] if (r["k"], r["n"]) == (k, n)]
        epilogue, dtype = EPILOGUES[settings["epilogue"]], settings["out_dtype"]
        cache = "cold" if settings["cold"] else "warm"
        rows = gpu_rows(cases) if settings["device"] == "cuda" else cpu_rows(cases)
        yield f"K={k} N={n}, {epilogue}, {dtype}, weights {cache}", rows
    if host := result.get("host"):
        rows = [["host", "us", "output"]]
        rows += [[r["name"], duration(r["microseconds"]), r["verdict"]] for r in host["rows"]]
        yield "Host time of an eager call, M={m} K={k} N={n}".format(**host), rows


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def totals(result: dict[str, Any]) -> list[str]:
    """Lines over all cells of a GPU's result: plain against the best right route, and each."""
    if result["settings"]["device"] != "cuda":
        return []
    cells = [
        (case["best_right"]["plain"], case)
        for case in result["results"]
        if case.get("best_right", {}).get("plain")
    ]
    if not cells:
        return []
    ratio, worst = min(cells, key=lambda cell: cell[0])
    at = "M={m} K={k} N={n}".format(**worst)
    against: dict[str, list[float]] = {}
    for case in result["results"]:
        for route in case["routes"]:
            if route["times_plain"] and route["name"] != "plain":
                against.setdefault(route["name"], []).append(route["times_plain"])
    each = ", ".join(f"{name} {geomean(times):.2f}x" for name, times in against.items())
    return [
        f"plain / best right: geomean {geomean([ratio for ratio, _ in cells]):.2f}x over "
        f"{len(cells)} cells, worst {ratio:.2f}x at {at} ({worst['best_right']['name']})",
        f"plain / each, geomeans over its cells: {each}",
    ]


def machine_line(result: dict[str, Any]) -> str:
    m = result["machine"]
    versions = f"scaled_mm {m['scaled_mm']}"
    if "gpu" in m:
        about = [m["gpu"], f"{m['sms']} SMs"]
        about += [m[key] for key in ("power_limit", "max_clock") if key in m]
        return (
            f"{versions}; torch {m['torch']}, CUDA {m['cuda']}, driver {m.get('driver', 'unknown')}"
            f", Triton {m['triton'] or 'none'}; {', '.join(about)}; "
            f"copy bandwidth {m['copy_tb_per_s']:.2f} TB/s"
        )
    flags = ", ".join(m["flags"]) or "none of note"
    return (
        f"{versions}, ISA path {m['isa']}; torch {m['torch']}; {m['cpu']} ({flags})"
        f", {m['threads']} threads, {m['last_level_cache'] >> 20} MiB last-level cache"
    )


def markdown(result: dict[str, Any]) -> str:
    parts = [machine_line(result)]
    for title, (header, *rows) in tables(result):
        rule = ["---", *["---:"] * (len(header) - 2), "---"]
        lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        parts.append("\n".join([f"**{title}**", "", *lines]))
    device = result["settings"]["device"]
    what = "\n".join(f"- {c.name}: {c.what}" for c in CONTENDERS if device in c.devices)
    return "\n\n".join([*parts, *totals(result), what]) + "\n"


def show(result: dict[str, Any], console: Console) -> None:
    console.print(machine_line(result))
    for title, (header, *rows) in tables(result):
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if 0 < i < len(header) - 1 else "left")
        for row in rows:
            table.add_row(*map(escape, row), style="bold" if row[0] in (*SUMMARY, *FLOOR) else None)
        console.print(table)
    for line in totals(result):
        console.print(line, highlight=False)
