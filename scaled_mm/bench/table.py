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
    "packed / best right": ("best_right", "packed"),
    "plain / best right": ("best_right", "plain"),
    "packed / best": ("best", "packed"),  # shown where the best is not right
    "plain / best": ("best", "plain"),
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


def speed(gops: float | None) -> str:
    if gops is None:
        return "-"
    return f"{gops:.0f}" if gops >= 100 else f"{gops:.3g}"


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
            rows.append([first["name"], *(speed(e["gops"]) for e in entries), verdict(entries)])
        same = all(case.get("best") == case.get("best_right") for case in cases)
        for title, (key, ours) in SUMMARY.items():
            if same and key == "best":
                continue
            ratios = [f"{case[key][ours]:.2f}x" if key in case else "-" for case in cases]
            names = dict.fromkeys(case[key]["name"] for case in cases if key in case)
            rows.append([title, *ratios, ", ".join(names)])
        yield f"K={k} N={n}, {epilogue}, {dtype}, weights {cache}", rows


def machine_line(result: dict[str, Any]) -> str:
    m = result["machine"]
    flags = ", ".join(m["flags"]) or "none of note"
    return (
        f"scaled_mm {m['scaled_mm']}, ISA path {m['isa']}; torch {m['torch']}; {m['cpu']} ({flags})"
        f", {m['threads']} threads, {m['last_level_cache'] >> 20} MiB last-level cache"
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
            table.add_row(*row, style="bold" if row[0] in SUMMARY else None)
        console.print(table)
