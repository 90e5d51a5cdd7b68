"""Options of `scaled-mm validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import COSINE, HYBRID, LENGTH, SATURATED, SCHEMES, SQNR, STRIDE, WEIGHTS
from . import AsJson


def options(
    target: Annotated[
        str,
        typer.Argument(
            help="minilm, your module:function that returns (model, quantised, batches), or a "
            "quantised checkpoint, which is compared with --float."
        ),
    ] = "minilm",
    original: Annotated[
        str | None,
        typer.Option(
            "--float",
            help="Of a checkpoint: your module:function that returns (model, batches), or the "
            "folder of a float checkpoint that transformers reads, with its tokenizer.",
        ),
    ] = None,
    scheme: Annotated[
        str, typer.Option(help=f"Of MiniLM: {', '.join(SCHEMES)}, {HYBRID}, {WEIGHTS}.")
    ] = "static-asymmetric",
    alpha: Annotated[
        float | None, typer.Option(help="Smooth the layers that a norm feeds (SmoothQuant).")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Smooth each layer by an alpha of its own.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Smooth every layer, not only those.")
    ] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Your sentences, one a line: half calibrate MiniLM, half evaluate; all evaluate a "
            "checkpoint."
        ),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Of a checkpoint: token ids instead, a sequence a line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A picture: noise and ranges of every layer, .png.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="A report as one file: tables, charts, outlier channels; .html."),
    ] = None,
    as_json: AsJson = False,
    perplexity: Annotated[
        Path | None,
        typer.Option(
            help="Of a checkpoint of a language model: a text; perplexity and KL divergence on it."
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="With it: another quantised checkpoint; several may be given."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=2, help="With it: how many tokens the model reads at a time.")
    ] = LENGTH,
    window_stride: Annotated[
        int | None,
        typer.Option(min=1, help="With it: from window to window. [a window: no overlap]"),
    ] = None,
    stride: Annotated[int, typer.Option(min=1, help="Compare bits of every so many-th token.")] = (
        STRIDE
    ),
    min_cosine: Annotated[
        float, typer.Option(min=-1, max=1, help="Passes: mean cosine of the outputs.")
    ] = COSINE,
    min_sqnr: Annotated[float, typer.Option(help="Passes: SQNR of every layer, dB.")] = SQNR,
    max_saturated: Annotated[
        float, typer.Option(min=0, max=1, help="Passes: part of a layer's inputs beyond the grid.")
    ] = SATURATED,
) -> None:
    """See `scaled_mm_cli.commands.validate.command`."""
