"""`scaled-mm quantize`: a float checkpoint in, a quantised one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rich.console import Console as RichConsole

from scaled_mm.checkpoint.float_model import (
    read_lines,
    read_tokens,
    tokenized,
    vocabulary,
    with_decoder,
)
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.quantizing import QuantizeReport, quantize_checkpoint
from scaled_mm.quantization.compressed_tensors import FORMATS
from scaled_mm.quantization.model import SCHEMES, QuantConfig
from scaled_mm.quantization.rotation import Rotation
from scaled_mm.quantization.schemes import NAMES_OF_WEIGHTS, known_scheme, scheme_of
from scaled_mm.quantization.smoothquant import ALPHAS, Smoothing

from ..terminal import lines
from . import progress_display, shards_of, tell
from .search import search as find
from .search import show as show_found

_SHOWN = 8
KNOWN = f"{', '.join(SCHEMES)}, {NAMES_OF_WEIGHTS}"


def show(report: QuantizeReport, console: RichConsole) -> None:
    """The report: a line for each shard, then what was quantised and what was not."""
    console.print(shards_of(report, "layers quantised", "layers"))
    told = [
        f"{count} layers: {scheme}" for scheme, count in Counter(report.layers.values()).items()
    ]
    told.append(f"{report.share:.1%} of the parameters are quantised")
    if report.calibration is not None:
        told.append(f"the float model was run {report.calibration}")
    if report.smoothed:
        told.append(f"{report.smoothed} layers are smoothed, and the norms in front divided")
    if report.rotation is not None:
        told.append(f"rotated, with the seed {report.rotation.seed}: {report.rotation}")
    if report.floats is not None:
        told.append(f"Linears that stay float: {_listed(report.floats)}")
    by_reason: dict[str, list[str]] = {}
    for name, why in report.others.items():
        by_reason.setdefault(why, []).append(name)
    told += [f"stay float, {why}: {_listed(names)}" for why, names in by_reason.items()]
    for what, names in (
        ("left out, for the model computes them", report.dropped),
        ("copied along", report.copied),
        ("left out", report.left_out),
    ):
        told += [f"{what}: {_listed(names)}"] * bool(names)
    before, after = report.bytes_before / 1e6, report.bytes / 1e6
    told.append(f"{before:,.1f} MB became {after:,.1f} MB in {report.seconds:.2f} s")
    lines(console, *told)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more


def command(given: SimpleNamespace) -> None:
    if given.format not in (None, *FORMATS):
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, got {given.format}")
    config = config_of(given)
    if given.rotate:
        config = replace(config, rotation=Rotation(seed=given.seed))
    elif given.seed:
        raise ValueError(f"--seed must come with --rotate, got {given.seed} alone")
    if given.out is None:
        if not given.search:
            raise ValueError("--out must be given, or --search alone, got neither")
        others = given.override or given.alpha is not None or given.rotate
        if others or given.scheme != "dynamic" or given.format is not None:
            rule = "must come with --out: without it, --search tries them all"
            raise ValueError(f"--scheme, --format, --override, --alpha and --rotate {rule}")
        sequences = _batches(given, config) or []
        with_text = given.text is not None
        words = ["--text", str(given.text)] if with_text else ["--tokens", str(given.tokens)]
        for option, patterns in (("--target", given.target), ("--ignore", given.ignore)):
            words += [word for pattern in patterns or () for word in (option, pattern)]
        found = find(given.model_dir, replace(config, smoothing=None), sequences, words)
        tell(found, show_found, given.as_json)
        return
    batches = _batches(given, config)
    with progress_display() as display:
        bar = display.add_task("quantize")
        report = quantize_checkpoint(
            given.model_dir,
            given.out,
            config,
            batches,
            lambda done, total: display.update(bar, advance=done, total=total),
            format=given.format,
        )
    tell(report, show, given.as_json)


def config_of(given: SimpleNamespace) -> QuantConfig:
    """The config that the command's options mean; ValueError if they mean none."""
    pairs = []
    for each in given.override or ():
        pattern, equals, name = each.rpartition("=")
        if not (pattern and equals) or known_scheme(name) is None:
            raise ValueError(f"--override must be PATTERN=SCHEME, a scheme of {KNOWN}, got {each}")
        pairs.append((pattern, name))
    if known_scheme(given.scheme) is None:
        raise ValueError(f"--scheme must be one of {KNOWN}, got {given.scheme}")
    smoothing = None
    if given.search:
        smoothing = Smoothing(search=ALPHAS[::2])
    elif given.alpha is not None:
        smoothing = Smoothing(given.alpha)
    default = QuantConfig()
    return QuantConfig(
        given.scheme,
        targets=tuple(given.target or default.targets),
        ignore=default.ignore if given.ignore is None else tuple(given.ignore),
        overrides=tuple(pairs),
        smoothing=smoothing,
    )


def _batches(given: SimpleNamespace, config: QuantConfig) -> list[Any] | None:
    """What calibrates, as the command was told; None: nothing has to."""
    folder, text, tokens = given.model_dir, given.text, given.tokens
    used = [config.scheme, *(scheme for _, scheme in config.overrides)]
    static = any(scheme_of(scheme).static for scheme in used)
    if not static and config.smoothing is None and config.rotation is None:
        if text is not None or tokens is not None:
            option = "--text" if text is not None else "--tokens"
            raise ValueError(
                f"{option} must come with a static scheme, --alpha, --search or --rotate: nothing "
                "else runs the model"
            )
        return None
    if (text is None) == (tokens is None):
        got = "neither" if text is None else "both"
        raise ValueError(
            "--text or --tokens must be given with a static scheme, --alpha, --search or --rotate, "
            f"got {got}"
        )
    source = Checkpoint(folder)
    if tokens is not None:
        return with_decoder(source, read_tokens(tokens, vocabulary(source), given.length))
    return with_decoder(source, tokenized(folder, read_lines(text), given.length))
