"""The tables of `scaled-mm bench`, for the terminal and for Markdown, from its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from .contenders import CONTENDERS, EPILOGUES

VERDICTS = {
    "exact": "equal to R1",
    "rounding": "{off} of {checked} off R1 by rounding",
    "wrong": "WRONG: {beyond} of {checked}",
    "float": "no int8 product",
}
SUMMARY = {
    "packed / best right route": ("best_right", "packed"),
    "packed / best route": ("best", "packed"),
    "plain / best right route": ("best_right", "plain"),
    "plain / best route": ("best", "plain"),
}


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


def tables(result: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and rows, the header first, of a table per weight shape."""
    settings = result["settings"]
    weights = dict.fromkeys((r["k"], r["n"]) for r in result["results"])
    for k, n in weights:
        cases = [r for r in result["results"] if (r["k"], r["n"]) == (k, n)]
        epilogue, dtype = EPILOGUES[settings["epilogue"]], settings["out_dtype"]
        cache = "cold" if settings["cold"] else "warm"
        rows = [["GOP/s", *(f"M={case['m']}" for case in cases), "output"]]
        for i, first in enumerate(cases[0]["routes"]):
            entries = [case["routes"][i] for case in cases]
            speeds = ["-" if e["gops"] is None else f"{e['gops']:.4g}" for e in entries]
            rows.append([first["name"], *speeds, verdict(entries)])
        for title, (key, ours) in SUMMARY.items():
            ratios = [f"{case[key][ours]:.2f}x" if key in case else "-" for case in cases]
            names = dict.fromkeys(case[key]["name"] for case in cases if key in case)
            rows.append([title, *ratios, ", ".join(names)])
        yield f"K={k} N={n}, {epilogue}, {dtype}, weights {cache}", rows


def machine_line(result: dict[str, Any]) -> str:
    m = result["machine"]
    flags = ", ".join(m["flags"]) or "none of note"
    return (
        f"{m['cpu']} ({flags}), {m['threads']} threads, {m['last_level_cache'] >> 20} MiB "
        f"last-level cache; ISA path {m['isa']}; torch {m['torch']}"
    )


def markdown(result: dict[str, Any]) -> str:
    parts = [machine_line(result)]
    for title, (header, *rows) in tables(result):
        rule = ["---", *["---:"] * (len(header) - 2), "---"]
        lines = [f"| {' | '.join(row)} |" for row in (header, rule, *rows)]
        parts.append("\n".join([f"**{title}**", "", *lines]))
    what = "\n".join(f"- {c.name}: {c.what}" for c in CONTENDERS)
    return "\n\n".join([*parts, what]) + "\n"


def show(result: dict[str, Any], console: Console) -> None:
    console.print(machine_line(result))
    for title, (header, *rows) in tables(result):
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if 0 < i < len(header) - 1 else "left")
        for row in rows:
            table.add_row(*row, end_section=row is rows[-1 - len(SUMMARY)])
        console.print(table)
