"""The pictures of benchmark results: small panels, one a weight shape, at most six lines each.

The colours are Okabe and Ito's, which colour-blind readers tell apart. The background is
transparent, and the ink is a grey that can be read on white and on black.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._extras import needed
from .cases import by_weight
from .endings import ratio
from .model import ratios
from .table import larger_floor

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#7d8590"
OURS = ("packed", "plain")
LABELS = {
    "bf16 mm": "bf16, cuBLAS",
    "fp8 rowwise": "fp8, cuBLAS",
    "_int_mm sums": "torch._int_mm, no epilogue",
    "triton": "Triton, autotuned",
    "packed": "scaled_mm",
    "plain": "scaled_mm",
}


def figure_of(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many inches without a background, and its axes [rows, columns]."""
    figure = needed("--png", "matplotlib.figure")[0].Figure((width, height), layout="constrained")
    figure.patch.set_alpha(0)
    panels = figure.subplots(rows, columns, sharex=True, sharey="row", squeeze=False)
    for axes in panels.flat:
        axes.patch.set_alpha(0)
        axes.tick_params(colors=INK, labelsize=8, which="both")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(INK)
        axes.grid(axis="y", color=INK, alpha=0.25)
    return figure, panels


def save(figure: Any, path: Path) -> None:
    """As SVG, text stays text, and the same figure gives the same bytes."""
    matplotlib = needed("--png", "matplotlib")[0]
    for legend in figure.legends:
        for text in legend.get_texts():
            text.set_color(INK)
    svg = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "scaled_mm"}):
        figure.savefig(path, dpi=130, **svg)


def plot(
    result: dict[str, Any],
    path: Path,
    weights: Sequence[tuple[int, int]] = (),
    parts: Sequence[str] = ("speed-up", "floor"),
) -> None:
    """Writes the picture of a GPU's result, in the format that the suffix names.

    Args:
        weights: (N, K) to show; none: all.
        parts: "speed-up", the others' times over ours; "floor", times over the time that the
            bytes or the operations take at least.

    Raises:
        ValueError: the result has no floors.
        ModuleNotFoundError: matplotlib is missing; the message names the command that installs it.
    """
    if result.get("endings"):
        _endings(result["endings"], path)
        return
    if result.get("models"):
        _ratios(*ratios(result), "time / bf16's", path)
        return
    cases = result["results"]
    if not cases or not cases[0].get("floor_us"):
        raise ValueError("--png must be given with shapes measured by --device cuda, got none")
    of_weights = by_weight(case for case in cases if _power(case["m"]))
    shown = list(weights or of_weights)
    figure, panels = figure_of(
        len(parts), len(shown), 0.6 + 3.1 * len(shown), 0.7 + 2.5 * len(parts)
    )
    for j, weight in enumerate(shown):
        panels[0, j].set_title(f"N={weight[0]} K={weight[1]}", color=INK, fontsize=10)
        panels[-1, j].set_xlabel("M, tokens", color=INK, fontsize=9)
        for i, part in enumerate(parts):
            _panel(panels[i, j], of_weights[weight], part)
    for i, part in enumerate(parts):
        label = "scaled_mm: times as fast" if part == "speed-up" else "time over the floor"
        panels[i, 0].set_ylabel(label, color=INK, fontsize=9)
    handles, labels = panels[-1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    save(figure, path)


def _power(m: int) -> bool:
    return m & (m - 1) == 0  # lines through one more token than a tile has are no lines


def _panel(axes: Any, cases: list[dict[str, Any]], part: str) -> None:
    names = [route["name"] for route in cases[0]["routes"]]
    ours = next(name for name in OURS if name in names)
    lines = [name for name in names if name not in OURS][:5]
    for name, colour, marker in zip([*lines, ours], COLOURS, MARKERS, strict=False):
        points = []
        for case in cases:
            routes = {route["name"]: route for route in case["routes"]}
            times = {who: route["microseconds"] for who, route in routes.items()}
            least = times[ours] if part == "speed-up" else larger_floor(case)
            if times[name] and least and (part != "speed-up" or name != ours):
                points.append((case["m"], times[name] / least))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                marker=marker,
                markersize=3,
                linewidth=1.3,
                label=LABELS.get(name, name.lstrip("_")),
            )
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 16, 256, 4096], ["1", "16", "256", "4096"])
    axes.set_ylim(0, 3 if part == "speed-up" else 4)


def labelled(points: dict[str, tuple[float, float]], labels: tuple[str, str], path: Path) -> None:
    """A named dot for each (x, y), y on a logarithmic axis."""
    figure, ((axes,),) = figure_of(1, 1, 7, 3.8)
    for name, (x, y) in points.items():
        axes.plot(x, y, "o", color=COLOURS[0] if name.startswith("w") else COLOURS[1])
        axes.annotate(name, (x, y), (6, 3), textcoords="offset points", color=INK, fontsize=8)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel(labels[0], color=INK, fontsize=9)
    axes.set_ylabel(labels[1], color=INK, fontsize=9)
    save(figure, path)


def _endings(cases: list[dict[str, Any]], path: Path) -> None:
    """Every ending of the largest weight at up to six M: in the product over the faster way."""
    weight, every = max(by_weight(cases).items(), key=lambda x: (math.prod(x[0]), x[0]))
    own = every[-len(COLOURS) :]
    names = [name for name in own[0]["us"] if name != "plain"]
    rows = {f"M={case['m']}": [ratio(case["us"][name]) for name in names] for case in own}
    _ratios(rows, names, f"in the product / the faster way, N={weight[0]} K={weight[1]}", path)


def _ratios(rows: dict[str, list[float]], names: Sequence[str], label: str, path: Path) -> None:
    """A dot for each name and row: `rows` is a line's label -> its values, in the names' order."""
    figure, ((axes,),) = figure_of(1, 1, 9, 3.6)
    for i, (row, values) in enumerate(rows.items()):
        places = [x + 0.12 * (i - len(rows) / 2) for x in range(len(names))]
        axes.plot(places, values, MARKERS[i], color=COLOURS[i], label=row)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label, color=INK, fontsize=9)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    save(figure, path)
