"""Validation's table and picture."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from .report import LayerReport, ValidationReport

SHOWN = 2  # outlier channels named


def show(report: ValidationReport, console: Console) -> None:
    """Print a row per layer, then the model's outputs and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in (
        "SQNR\ndB",
        "max\nerror",
        "satur.\n%",
        "grid\n%",
        "azp\nmean",
        "of R0\nbound",
        "off\nR1",
        "peak\nbefore",
        "\nafter",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(" outlier\n channels", overflow="fold")
    for name, layer in zip(_short([x.name for x in report.layers]), report.layers, strict=True):
        table.add_row(name, *_cells(layer))
    console.print(table)
    outputs = report.outputs
    checked = sum(layer.checked for layer in report.layers)
    off = sum(layer.off_r1 for layer in report.layers)
    console.print(
        f"Outputs: {outputs.rows} rows, cosine {outputs.cosine_mean:.5f} mean, "
        f"{outputs.cosine_min:.5f} least; SQNR {outputs.sqnr_db:.1f} dB; the same argmax in "
        f"{outputs.same_argmax:.1%}.\n"
        f"Bits: {off} of {checked:,} recomputed outputs off R1 (stride {report.stride}).\n"
        "SQNR, and max error as a part of the largest output, are the layer's own. Of R0 bound: "
        "the largest\ndistance from the exact result, as a part of what is published. Peak: the "
        "widest input channel's\nrange over the median one's, before and after smoothing.",
        highlight=False,
        soft_wrap=True,
    )
    failures = report.failures()
    for line in failures:
        console.print(f"FAIL {line}", style="red", highlight=False, soft_wrap=True, markup=False)
    console.print("FAIL" if failures else "PASS", style="bold red" if failures else "bold green")


def _short(names: list[str]) -> list[str]:
    """The names without the modules that all of them are in."""
    parts = [name.split(".") for name in names]
    inside = min(map(len, parts)) - 1
    while inside and len({tuple(path[:inside]) for path in parts}) > 1:
        inside -= 1
    return [".".join(path[inside:]) for path in parts]


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


def plot(report: ValidationReport, path: Path) -> None:
    """Write the picture: SQNR of each layer; ranges of its input channels before and after."""
    from ..demo.data import extra

    figure = extra("matplotlib.figure").Figure(
        figsize=(max(8.0, 0.25 * len(report.layers) + 3), 8), layout="constrained"
    )
    noise, peaks = figure.subplots(2, 1, sharex=True)
    places = range(len(report.layers))
    noise.plot(places, [x.sqnr_db for x in report.layers], marker="o", color="#0072b2", lw=1)
    noise.axhline(report.thresholds.sqnr_db, color="#d55e00", ls="--", lw=1, label="threshold")
    noise.set_ylabel("SQNR of the layer's output, dB")
    noise.set_title("Quantisation noise per layer (higher is better)")
    noise.legend()
    before, after = ([getattr(x, name) for x in report.layers] for name in _PEAKS)
    peaks.bar([i - 0.2 for i in places], before, 0.4, color="#56b4e9", label="before smoothing")
    peaks.bar([i + 0.2 for i in places], after, 0.4, color="#009e73", label="after")
    peaks.set_yscale("log")
    peaks.set_ylabel("widest input channel / median one")
    peaks.set_xticks(places, [x.name for x in report.layers], rotation=90)
    peaks.legend()
    for axes in (noise, peaks):
        axes.grid(axis="y", color="0.85")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=120)


_PEAKS = ("peak_before", "peak_after")
