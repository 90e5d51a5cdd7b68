"""Options of `scaled-mm quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import FORMATS, LENGTH, SCHEMES, WEIGHTS
from . import AsJson


def options(
    model_dir: Annotated[
        Path, typer.Argument(help="The folder of a float checkpoint: safetensors and config.json.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder: new, empty, or of an interrupted run."),
    ] = None,
    scheme: Annotated[str, typer.Option(help=f"{', '.join(SCHEMES)}, {WEIGHTS}.")] = "dynamic",
    format: Annotated[
        str | None, typer.Option(help=f"{', '.join(FORMATS)}. [as the scheme has it]")
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=SCHEME for layers of these names; several may be given."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of the Linears to quantise; several may be given. [all]"),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of Linears that stay float; several may be given. [vocabulary heads]"
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Smooth the layers that a norm feeds (SmoothQuant).")
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Smooth, with the best alpha for each norm. Without --out: try every scheme, with "
            "and without smoothing and rotation, and write only a table.",
        ),
    ] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Rotate a Llama-like model first, in its weights.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the rotation's signs; it is recorded.")] = 0,
    text: Annotated[
        Path | None,
        typer.Option(help="Sentences that calibrate, one a line, for the model's own tokenizer."),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="The same as token ids: a sequence a line, spaces between the ids."),
    ] = None,
    length: Annotated[
        int, typer.Option(min=1, help="Tokens of a sequence, at most; the rest is cut off.")
    ] = LENGTH,
    as_json: AsJson = False,
) -> None:
    """See `scaled_mm_cli.commands.quantize.command`."""
