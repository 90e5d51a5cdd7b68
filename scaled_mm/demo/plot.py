"""The demo's picture: SQNR of every quantised layer under every scheme."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .bert import LINEARS
from .data import extra

if TYPE_CHECKING:
    from .run import Result

_STYLES = (("#0072b2", "o"), ("#56b4e9", "s"), ("#d55e00", "v"), ("#009e73", "D"))  # Okabe and Ito


def plot(results: Sequence[Result], path: Path) -> None:
    """Write the picture to `path`, in the format that its suffix names. Draws without a display."""
    figure = extra("matplotlib.figure").Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots()
    layers = list(results[0].sqnr_db)
    for result, (colour, marker) in zip(results, _STYLES, strict=True):
        decibels = [result.sqnr_db[layer] for layer in layers]
        axes.plot(decibels, marker=marker, color=colour, linewidth=1, label=result.name)
    for first in range(0, len(layers), 2 * len(LINEARS)):  # every other encoder layer in grey
        axes.axvspan(first - 0.5, first + len(LINEARS) - 0.5, color="0.95", zorder=0)
    axes.set_xticks(range(len(layers)), layers, rotation=90)
    axes.set_xlim(-0.5, len(layers) - 0.5)
    axes.set_xlabel("Linear (encoder layer . role)")
    axes.set_ylabel("SQNR of the layer's output, dB")
    axes.set_title("MiniLM-L6-v2 in int8: quantisation noise per layer (higher is better)")
    axes.grid(axis="y", color="0.85")
    axes.set_ylim(top=axes.get_ylim()[1] + 6)  # room for the legend
    axes.legend(loc="upper center", ncols=2)
    figure.savefig(path, dpi=120)
