"""How the demo shows its report: a table, and a picture of every quantised layer's SQNR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .._extras import needed
from .bert import LINEARS
from .run import DemoReport, Result

_COLUMNS = (  # all of it fits a terminal of 80 columns
    "cosine\nmean",
    "\nleast",
    "rank\ncorr.",
    "SQNR\nmedian",
    "dB\nworst",
    "off\nR1",
    "\nms",
    "x as\nfp32",
    "fast\nbf16",
)


def show(report: DemoReport, console: Console) -> None:
    """Print the report: a row per contender, then what the numbers are of."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("Linears in", min_width=18)
    for heading in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in report.baselines:
        table.add_row(*_cells(result), style="dim", end_section=result is report.baselines[-1])
    for result in report.schemes:
        table.add_row(*_cells(result))
    console.print(table)

    first, share = report.schemes[0], report.linear_share
    place = (
        f"{report.threads} threads" if report.device == "cpu" else f"CUDA graphs on {report.device}"
    )
    every = "every token" if report.stride == 1 else f"every {report.stride}th token"
    console.print(
        f"Accuracy: {report.evaluated} sentences against float32; the other "
        f"{report.sentences - report.evaluated} calibrated the static scales.\n"
        f"Off R1: outputs that differ in any bit from scaled_mm.reference, of "
        f"{first.elements:,} per scheme\nrecomputed from the layers' inputs "
        f"({every}, all {len(first.sqnr_db)} layers).\n"
        f"Time: {report.sentences} sentences ({report.tokens} tokens) in length-sorted batches, "
        f"{place};\nmedians of {report.rounds} interleaved rounds. "
        f"The Linears take {share:.0%} of the float32 pass:\n"
        f"making them faster can win {1 / (1 - share):.1f}x at most.",
        highlight=False,
        soft_wrap=True,
    )


def _cells(result: Result) -> list[str]:
    cells = [
        result.name,
        f"{result.cosine_mean:.4f}",
        f"{result.cosine_min:.4f}",
        f"{result.rank_correlation:.4f}",
    ]
    if result.sqnr_db:
        worst = result.worst_layer()
        cells += [f"{result.median_db():.1f}", f"{result.sqnr_db[worst]:.1f}\n{worst}"]
        cells += [str(result.off_r1)]
    else:
        cells += [""] * 3
    cells += [f"{result.milliseconds:.{0 if result.milliseconds >= 10 else 2}f}"]
    return cells + [f"{times:.2f}" for times in (result.times_float32, result.times_bfloat16)]


_STYLES = (("#0072b2", "o"), ("#56b4e9", "s"), ("#d55e00", "v"), ("#009e73", "D"))  # Okabe and Ito


def plot(results: Sequence[Result], path: Path) -> None:
    """Write the picture to `path`, in the format that its suffix names. Draws without a display."""
    (figures,) = needed("the demo", "matplotlib.figure")
    figure = figures.Figure(figsize=(12, 5), layout="constrained")
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
