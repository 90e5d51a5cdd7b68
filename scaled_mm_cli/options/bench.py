"""Options of `scaled-mm bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import BLOCKS, DEVICES, DTYPES, EPILOGUES, LAYERS, MIXED, MODELS
from . import Threads


def options(
    shape: Annotated[list[str] | None, typer.Option(help="MxNxK; may be repeated.")] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="NxK, with every --m; may be repeated.")
    ] = None,
    m: Annotated[
        list[int] | None, typer.Option("--m", min=1, help="With every --weight; may be repeated.")
    ] = None,
    epilogue: Annotated[
        str,
        typer.Option(help=f"{', '.join(EPILOGUES)}; with --endings FILE.py:NAME, one's own."),
    ] = "scaled",
    dtype: Annotated[str, typer.Option(help=f"Of the output: {', '.join(DTYPES)}.")] = "bfloat16",
    device: Annotated[str, typer.Option(help=", ".join(DEVICES))] = "cpu",
    threads: Threads = None,
    cold: Annotated[bool, typer.Option("--cold/--warm", help="Weights from memory.")] = True,
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    without: Annotated[list[str] | None, typer.Option(help="A contender to leave out.")] = None,
    awq: Annotated[bool, typer.Option("--awq", help="Time the int4 products instead.")] = False,
    awq_dequantize: Annotated[
        bool, typer.Option("--awq-dequantize", help="Time awq_dequantize on its own.")
    ] = False,
    mixed: Annotated[
        str | None, typer.Option(help=f"Time mixed_mm or w4a8_mm instead: {', '.join(MIXED)}.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(
            min=0, help="Rows to a scale of --awq and --mixed; 0: all. Default: 128, w8a16 all."
        ),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Time other libraries that are installed, too.")
    ] = False,
    host: Annotated[
        bool, typer.Option("--host", help="Time what a call costs the host, on small operands.")
    ] = False,
    layer: Annotated[
        str | None, typer.Option(help=f"Time a layer, with every --m: {', '.join(LAYERS)}.")
    ] = None,
    grouped: Annotated[
        str | None,
        typer.Option(help=f"Time a block of experts, {', '.join(BLOCKS)} or all; --m: its tokens."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"Time a language model, a folder or {', '.join(MODELS)}; --m: its batches."
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Of --model, instead of all of them.")
    ] = None,
    endings: Annotated[
        bool,
        typer.Option("--endings", help="Time residual, activations and 8-bit outputs, three ways."),
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write tables.")] = None,
    png_file: Annotated[
        Path | None, typer.Option("--png", help="Draw the result of a GPU or --model.")
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option(help="Show the result in this JSON; of several, as one. Measures nothing."),
    ] = None,
) -> None:
    """See `scaled_mm_cli.commands.bench.command`."""
