"""Validation's table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scaled_mm._extras import needed
from scaled_mm.validate.report import LayerReport, ValidationReport
from scaled_mm.validate.text import TextReport

from ..terminal import cell, lines, printable

SHOWN = 2  # outlier channels named
LABELS = 40  # names along an axis; more would touch each other
NAMED = 5  # the noisiest layers, named where not every layer is
HEADINGS = (
    "SQNR\ndB",
    "max\nerror",
    "satur.\n%",
    "grid\n%",
    "azp\nmean",
    "of R0\nbound",
    "off\nR1",
    "peak\nbefore",
    "\nafter",
    " outlier\n channels",
)
LEGEND = (
    "SQNR (signal to quantisation noise ratio) is the layer's own, against the float "
    "layer on the same inputs; so is max error, as a part of the largest output. Grid: "
    "the part of the int8 values that occurred. R1 is the result of the operations in "
    "their promised order, which a kernel must give bit for bit. Of R0 bound: the largest "
    "distance from the exact result, as a part of the published bound. Peak: the widest "
    "input channel's range over the median one's, before and after smoothing."
)


def show(report: ValidationReport, console: Console) -> None:
    """Print a row per layer, the noisiest first, then the model's outputs and the verdict."""
    layers = report.by_noise()
    inside, names = within([printable(x.name) for x in layers])
    console.print(_fitted(inside, names, [_cells(layer) for layer in layers], console))
    outputs = report.outputs
    checked = sum(layer.checked for layer in report.layers)
    off = sum(layer.off_r1 for layer in report.layers)
    told = (
        f"Outputs: {outputs.rows} rows, cosine {outputs.cosine_mean:.5f} mean, "
        f"{outputs.cosine_min:.5f} least; SQNR {outputs.sqnr_db:.1f} dB; the same argmax in "
        f"{outputs.same_argmax:.1%}.",
        f"Bits: {off} of {checked:,} recomputed outputs off R1 (stride {report.stride}).",
        *text_lines(report.text),
        LEGEND,
    )
    for text in told:
        lines(console, *wrap(text, 80))
    failures = report.failures()
    lines(console, *(f"FAIL {line}" for line in failures), style="red")
    lines(console, *report.advice())
    verdict = "FAIL" if failures else "PASS"
    lines(console, verdict, style="bold red" if failures else "bold green")


def text_lines(text: TextReport | None) -> list[str]:
    """What was measured on a text, a line for each model."""
    if text is None:
        return []
    sizes = f"{text.windows:,} windows of {text.length:,}, stride {text.stride:,}"
    return [
        f"Text: {text.tokens:,} tokens counted, {sizes}. KL is of (float || quantised), in nats a "
        "token.",
        f"perplexity {text.float_perplexity:.4f}: float",
        *(f"perplexity {x.perplexity:.4f}, KL {x.kl:.6f}: {x.name}" for x in text.models),
    ]


def _fitted(
    inside: str, names: Sequence[str], rows: Sequence[Sequence[str]], console: Console
) -> Table:
    """The table; the last columns go where whole names have no room beside them."""
    wide = console.options.update(width=1000)
    for columns in range(len(HEADINGS), 0, -1):
        table = _table(inside, names, rows, columns)
        if console.measure(table, options=wide).maximum <= console.width:
            break
    return table


def _table(inside: str, names: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    first = Text.assemble("layer of\n", cell(inside)) if inside else Text("layer")
    table.add_column(first, overflow="fold")
    for heading in HEADINGS[:columns]:
        last = heading == HEADINGS[-1]
        table.add_column(heading, justify="left" if last else "right", no_wrap=not last)
    for name, row in zip(names, rows, strict=True):
        table.add_row(cell(name), *row[:columns])
    return table


def within(names: Sequence[str]) -> tuple[str, list[str]]:
    """The module that all of them are in, or "", and their names in it."""
    parts = [name.split(".") for name in names]
    inside = min(map(len, parts)) - 1
    while inside and len({tuple(path[:inside]) for path in parts}) > 1:
        inside -= 1
    return ".".join(parts[0][:inside]), [".".join(path[inside:]) for path in parts]


def middle_cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room // 2]}…{name[-room // 2 :]}"


def _cells(layer: LayerReport) -> list[str]:
    channels = [str(channel) for channel in layer.outlier_channels[:SHOWN]]
    more = len(layer.outlier_channels) - SHOWN
    return [
        f"{layer.sqnr_db:.1f}",
        f"{layer.max_error_relative:.3f}",
        f"{100 * layer.saturated:.3f}",
        f"{100 * layer.grid:.0f}",
        f"{layer.azp_mean:.1f}",
        f"{layer.worst_of_bound:.2f}",
        str(layer.off_r1),
        f"{layer.peak_before:.1f}",
        f"{layer.peak_after:.1f}",
        " " + ",".join(channels) + (f"+{more}" if more > 0 else ""),
    ]


# --- the picture ----------------------------------------------------------------------------------


def plot(report: ValidationReport, path: Path) -> None:
    """Write the picture: SQNR of each layer; ranges of its input channels before and after.

    Every layer is named where they are few; where they are many, the first of each block and the
    noisiest.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; the message names the command.
    """
    (figures,) = needed("the picture", "matplotlib.figure")
    count = len(report.layers)
    width = min(max(8.0, 0.25 * count + 3), 16.0)
    figure = figures.Figure(figsize=(width, 8), layout="constrained")
    noise, peaks = figure.subplots(2, 1, sharex=True)
    decibels = [_finite(x.sqnr_db) for x in report.layers]
    size = 6 if count <= LABELS else 3
    noise.plot(range(count), decibels, marker="o", markersize=size, color="#0072b2", lw=1)
    noise.axhline(report.thresholds.sqnr_db, color="#d55e00", ls="--", lw=1, label="threshold")
    noise.set_ylabel("SQNR of the layer's output, dB")
    noise.set_title("Quantisation noise per layer (higher is better)")
    noise.legend()
    smoothed = any(x.peak_before != x.peak_after for x in report.layers)
    for label, colour, name, shift in _PEAKS if smoothed else _PEAKS[:1]:
        heights = [_finite(getattr(x, name)) for x in report.layers]
        at = [i + shift * smoothed for i in range(count)]
        peaks.bar(at, heights, 0.4, color=colour, label=label)
    peaks.set_yscale("log")
    peaks.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    peaks.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    peaks.set_ylabel("widest input channel / median one")
    if smoothed:
        peaks.legend(loc="upper right")
    _name_layers(report, noise, peaks)
    for axes in (noise, peaks):
        axes.grid(axis="y", color="0.85")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=120)


def _finite(value: float) -> float:
    return value if isfinite(value) else nan


def _name_layers(report: ValidationReport, noise: Any, peaks: Any) -> None:
    # A $ would begin a formula.
    inside, names = within([printable(x.name).replace("$", r"\$") for x in report.layers])
    if inside:
        peaks.set_xlabel(f"layers of {inside}")
    ticks = [(place, middle_cut(name, 24)) for place, name in labelled(names)]
    peaks.set_xlim(-0.8, len(names) - 0.2)
    peaks.set_xticks([place for place, _ in ticks], [label for _, label in ticks], rotation=90)
    if len(ticks) == len(names):
        return
    for rank, place in enumerate(sorted(noisiest(report))):
        at, below = (place, _finite(report.layers[place].sqnr_db)), (0, -12 - 9 * (rank % 3))
        noise.annotate(names[place], at, below, textcoords="offset points", ha="center", fontsize=7)


def labelled(names: Sequence[str]) -> list[tuple[int, str]]:
    """Where along an axis of layers a label stands, and the label.

    Of few layers each has its name. Of many, the first of each block, or of every so many blocks,
    has the block's: the name up to its first number.
    """
    labels = list(enumerate(names))
    if len(names) > LABELS:
        blocks = [_block(name) for name in names]
        labels = [(i, x) for i, x in enumerate(blocks) if i == 0 or x != blocks[i - 1]]
    return labels[:: -(-len(labels) // LABELS)]


def _block(name: str) -> str:
    parts = name.split(".")
    last = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[: last + 1])


def noisiest(report: ValidationReport) -> list[int]:
    """The places of the noisiest layers."""
    return [report.layers.index(layer) for layer in report.by_noise()[:NAMED]]


_PEAKS = (
    ("before smoothing", "#56b4e9", "peak_before", -0.2),
    ("after", "#009e73", "peak_after", 0.2),
)
