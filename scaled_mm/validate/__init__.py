"""`scaled-mm validate`: is a quantised model what the algebra says, layer by layer, and how near?

`validate(model, quantised, batches)` is the same for any model.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from torch import nn

from ..calibrate import CalibrationWarning
from ..model import SCHEMES, QuantConfig, quantize_model
from ..smoothquant import ALPHAS, Smoothing
from .compare import STRIDE, agreement, validate
from .report import Agreement, LayerReport, Report, Thresholds
from .show import plot, show

__all__ = [
    "Agreement",
    "CalibrationWarning",
    "LayerReport",
    "Report",
    "Thresholds",
    "agreement",
    "command",
    "plot",
    "show",
    "validate",
]

HYBRID = "hybrid"
NORM_FED = ("*.query", "*.key", "*.value", "*.ffn_up")
"""MiniLM's Linears that a LayerNorm feeds."""


def config_of(scheme: str, alpha: float | None, search: bool, everywhere: bool) -> QuantConfig:
    """The config that the command's options mean; ValueError if they mean none.

    hybrid: static where a LayerNorm feeds the layer, smoothed at 0.75; else dynamic asymmetric.
    """
    if scheme == HYBRID:
        alpha = 0.75 if alpha is None else alpha
        overrides = tuple((pattern, "static-asymmetric") for pattern in NORM_FED)
        base = "dynamic-asymmetric"
    elif scheme in SCHEMES:
        overrides, base = (), scheme
    else:
        raise ValueError(f"--scheme must be one of {', '.join((*SCHEMES, HYBRID))}, got {scheme}")
    layers = ("*",) if everywhere else None
    smoothing = None
    if search:
        smoothing = Smoothing(layers=layers, search=ALPHAS[::2])
    elif alpha is not None:
        smoothing = Smoothing(alpha, layers)
    elif everywhere:
        raise ValueError("--everywhere must come with --alpha or --search, got neither")
    return QuantConfig(base, overrides=overrides, smoothing=smoothing)


def minilm(config: QuantConfig, text: Path | None) -> tuple[nn.Module, nn.Module, list[Any]]:
    """MiniLM, the same quantised, and evaluation batches: of the sentences (one a line, the demo's
    when None), those at even places calibrate, those at odd ones evaluate."""
    from ..demo import bert, data, measure

    folder = data.model_folder()
    sentences = data.sentences()
    if text is not None:
        sentences = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(sentences) < 4:
            raise ValueError(f"--text must hold at least 4 sentences, got {len(sentences)}")
    tokens = data.tokenize(folder, sentences)
    encoder = bert.load(folder)
    size = min(data.BATCH_SIZE["cpu"], len(tokens) // 4)  # the search wants two batches
    calibration = measure.calls(data.batches(tokens[0::2], size))
    quantised = quantize_model(encoder, config, calibration)
    return encoder, quantised, list(measure.calls(data.batches(tokens[1::2], size)))


def users(target: str) -> tuple[nn.Module, nn.Module, Any]:
    """What the user's `module:function` returns: model, quantised model, batches."""
    module, _, name = target.partition(":")
    if not name:
        raise ValueError(f"TARGET must be minilm or module:function, got {target}")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ValueError(f"TARGET must name a function of {module}, got {name}")
    found = function()
    if not (isinstance(found, tuple) and len(found) == 3):
        raise ValueError(
            f"{target} must return (model, quantised, batches), got {type(found).__name__}"
        )
    return found


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="minilm, or your module:function that returns (model, quantised, batches)."
        ),
    ] = "minilm",
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
        Path | None, typer.Option(help="Your sentences, one a line: half calibrate, half evaluate.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A picture: noise and ranges of every layer, .png.")
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
    """Compare a quantised model with the float one: noise, grid, bits against the reference."""
    if out is not None and (out.suffix != ".png" or not out.absolute().parent.is_dir()):
        raise ValueError(f"--out must be a .png in a folder that exists, got {out}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        if target == "minilm":
            model, quantised, batches = minilm(config_of(scheme, alpha, search, everywhere), text)
        else:
            model, quantised, batches = users(target)
    for warning in caught:
        print("scaled-mm: warning:", warning.message, file=sys.stderr)
    limits = Thresholds(min_cosine, min_sqnr, max_saturated)
    report = validate(model, quantised, batches, thresholds=limits, stride=stride)
    if out is not None:
        plot(report, out)
    if as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        show(report, Console())
    if not report.ok:
        raise typer.Exit(1)
