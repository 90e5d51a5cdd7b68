"""The roofline picture of `scaled-mm bench --png`: TOPS against operations per byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._extras import needed

DATASHEET_TOPS = 1979  # int8, dense, of an H100 or H200 SXM at full clock
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito
_OURS = ("packed", "plain")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def plot(result: dict[str, Any], path: Path) -> None:
    """Writes the picture of a GPU's result: a line per contender and weight shape along M.

    Raises:
        ValueError: the result has no floors.
        ModuleNotFoundError: matplotlib is missing; the message names the command that installs it.
    """
    cases = result["results"]
    if not cases or not cases[0].get("floor_us"):
        raise ValueError("--png must be given with shapes measured by --device cuda, got none")
    figure = needed("--png", "matplotlib.figure")[0].Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots()
    intensities = [_intensity(case) for case in cases]
    bandwidth = result["machine"]["copy_tb_per_s"]
    ends = (min(intensities) / 1.5, max(*intensities, 2 * DATASHEET_TOPS / bandwidth) * 1.5)
    knee = DATASHEET_TOPS / bandwidth
    axes.plot(
        [ends[0], knee, ends[1]],
        [ends[0] * bandwidth, DATASHEET_TOPS, DATASHEET_TOPS],
        color="0.3",
        linewidth=1.5,
        label=f"copy measured {bandwidth:.2f} TB/s; datasheet (H100, H200) {DATASHEET_TOPS} TOPS",
    )
    weights = list(dict.fromkeys((case["n"], case["k"]) for case in cases))
    names = list(dict.fromkeys(route["name"] for case in cases for route in case["routes"]))
    for name, colour in zip(names, _COLOURS * len(names), strict=False):
        for weight, marker in zip(weights, _MARKERS * len(weights), strict=False):
            points = [
                (_intensity(case), 1e-3 * route["gops"])
                for case in cases
                for route in case["routes"]
                if (case["n"], case["k"]) == weight and route["name"] == name and route["gops"]
            ]
            if points:
                ours = name in _OURS
                axes.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    marker=marker,
                    markersize=5 if ours else 3.5,
                    linewidth=1.4 if ours else 0.6,
                    zorder=3 if ours else 2,
                )
        axes.plot([], [], color=colour, linewidth=2, label=_label(name))
    for (n, k), marker in zip(weights, _MARKERS * len(weights), strict=False):
        axes.plot([], [], color="0.3", marker=marker, linestyle="", label=f"N={n} K={k}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(
        "operations (2 M N K) per byte of int8 operands and output, for every contender"
    )
    axes.set_ylabel("TOPS")
    axes.set_title(f"{result['machine']['gpu']}: int8 linear layers against the roofline")
    axes.grid(which="major", color="0.88")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=130)


def _intensity(case: dict[str, Any]) -> float:
    operations: float = 2 * case["m"] * case["n"] * case["k"]
    return operations / case["bytes"]


def _label(name: str) -> str:
    if name in _OURS:
        return f"scaled_mm, {name}"
    return f"torch.{name}" if name.startswith("_") else name  # a leading _ is left out of a legend
