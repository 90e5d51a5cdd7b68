"""`scaled-mm quantize MODEL --search`: the schemes side by side, and nothing written."""

from __future__ import annotations

import copy
import shlex
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console as RichConsole
from rich.table import Table
from torch import nn

from scaled_mm._progress import progress
from scaled_mm.checkpoint.float_model import has_language_head, load_model
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.quantization.calibrate import CalibrationWarning
from scaled_mm.quantization.compressed_tensors import NO_PLACE, Saved, homeless
from scaled_mm.quantization.model import QuantConfig, quantize_model
from scaled_mm.quantization.observe import Call, as_calls, evaluating
from scaled_mm.quantization.report import QuantizationWarning
from scaled_mm.quantization.rotation import Rotation
from scaled_mm.quantization.smoothquant import Smoothing
from scaled_mm.validate.compare import first_tensor
from scaled_mm.validate.text import Window, perplexity

from ..terminal import cell, lines
from . import progress_display

_INT8 = ("dynamic", "dynamic-asymmetric", "static", "static-asymmetric")
_WEIGHTS = ("w8a16", "w4a16-g128", "w4a16-g64", "w4a16-g32", "w4a16-g32-asymmetric")
_ALPHA = 0.5
_RUNS = 3


@dataclass(frozen=True)
class Trial:
    """One scheme, tried.

    Attributes:
        command: that makes it.
        error: of a language model the mean KL divergence (float || quantised), in nats a token;
            of another |y_quantised - y| / |y| of all outputs.
        ms: for the evaluating sequences, on this machine: the fastest of three runs.
        front: no other is as good in error, bytes and time, and better in one of them.
    """

    options: str
    command: str
    error: float
    perplexity: float | None
    bytes: int
    ms: float
    front: bool = False


@dataclass(frozen=True)
class Found:
    """All trials, the smallest error first; why others were not tried, by their options."""

    trials: tuple[Trial, ...]
    refused: dict[str, str]
    float_perplexity: float | None
    sequences: int
    """That evaluated: those at odd places; those at even places calibrated."""


def candidates(base: QuantConfig) -> Iterator[tuple[list[str], QuantConfig]]:
    """The options of each, and what they mean; `base` has the layers."""
    for scheme in (*_INT8, *_WEIGHTS):
        for alpha in (None, _ALPHA) if scheme in _INT8 else (None,):
            for rotation in (None, Rotation()):
                options = ["--scheme", scheme]
                options += [] if alpha is None else ["--alpha", f"{alpha:g}"]
                options += [] if rotation is None else ["--rotate"]
                smoothing = None if alpha is None else Smoothing(alpha)
                yield (
                    options,
                    replace(base, scheme=scheme, smoothing=smoothing, rotation=rotation),
                )


def search(folder: Path, base: QuantConfig, batches: Sequence[Any], given: Sequence[str]) -> Found:
    """Quantises the model in every way, in memory, and compares each with the float one.

    Args:
        batches: one sequence each; those at even places calibrate.
        given: options that each command needs besides its own.
    """
    if len(batches) < 2:
        raise ValueError(f"--search must have 2 sequences or more, got {len(batches)}")
    source = Checkpoint(folder)
    model, language = load_model(source), has_language_head(source)
    calibration, calls = batches[0::2], as_calls(batches[1::2])
    found, refused, of_float = [], {}, None
    tried = list(candidates(base))
    with progress_display(), progress("searching", len(tried)) as tick:
        for options, config in tried:
            try:
                quantised = _quantised(model, config, calibration)
            except ValueError as reason:
                refused[shlex.join(options)] = str(reason)
                tick()
                continue
            read, error = None, 0.0
            if language:
                report = perplexity(model, quantised, _windows(calls))
                of_float, read = report.float_perplexity, report.models[0].perplexity
                error = report.models[0].kl
            else:
                error = _output_error(model, quantised, calls)
            words = ["scaled-mm", "quantize", str(folder), "-o", "OUT", *options]
            words += given if config.rotation or config.smoothing or "static" in options[1] else ()
            ms = _milliseconds(quantised, calls)
            sizes = error, read, _bytes(quantised), ms
            found.append(Trial(shlex.join(options), shlex.join(words), *sizes))
            tick()
    return Found(_sorted(found), refused, of_float, len(calls))


def _quantised(model: nn.Module, config: QuantConfig, calibration: Sequence[Any]) -> nn.Module:
    with warnings.catch_warnings():
        for kind in (CalibrationWarning, QuantizationWarning):
            warnings.simplefilter("ignore", kind)
        made = quantize_model(copy.deepcopy(model), config, calibration, inplace=True)
    for layer in made.modules():
        if isinstance(layer, Saved) and (what := homeless(layer)) is not None:
            raise ValueError(f"{what} {NO_PLACE}")
    return made


def _windows(calls: Sequence[Call]) -> list[Window]:
    ids = [call.kwargs["input_ids"] for call in calls]
    found = [Window(x) for x in ids if x.shape[1] > 1]
    if not found:
        raise ValueError("--search must have a sequence of 2 tokens or more, got none")
    return found


@torch.no_grad()
def _output_error(model: nn.Module, quantised: nn.Module, calls: Sequence[Call]) -> float:
    off = all_of_it = 0.0
    with evaluating(model), evaluating(quantised):
        for call in calls:
            wanted, got = (call.tokens(first_tensor(call(x))).double() for x in (model, quantised))
            off += float((got - wanted).square().sum())
            all_of_it += float(wanted.square().sum())
    return (off / all_of_it) ** 0.5 if all_of_it else 0.0


@torch.no_grad()
def _milliseconds(model: nn.Module, calls: Sequence[Call]) -> float:
    times = []
    with evaluating(model):
        for _ in range(_RUNS):
            begin = time.perf_counter()
            for call in calls:
                call(model)
            times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def _bytes(model: nn.Module) -> int:
    """Of the state dict, what is tied once."""
    tensors = {(x.data_ptr(), x.shape): x.nbytes for x in model.state_dict().values()}
    return sum(tensors.values())


def _sorted(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """By error, the Pareto front marked."""

    def beaten(one: Trial) -> bool:
        mine = (one.error, one.bytes, one.ms)
        others = [(x.error, x.bytes, x.ms) for x in trials]
        return any(x != mine and all(a <= b for a, b in zip(x, mine, strict=True)) for x in others)

    marked = (replace(x, front=not beaten(x)) for x in trials)
    return tuple(sorted(marked, key=lambda x: (x.error, x.bytes, x.ms)))


def show(found: Found, console: RichConsole) -> None:
    """The table; a star marks the front."""
    language = found.float_perplexity is not None
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    headings = ["KL " if language else "error ", *(["perplexity "] * language), "MB ", "ms "]
    for heading in ("", *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("options", overflow="fold")
    for x in found.trials:
        read = [f"{x.perplexity:.3f} "] if x.perplexity is not None else []
        figures = [f"{x.error:.5f} ", *read, f"{x.bytes / 1e6:.1f} ", f"{x.ms:.1f} "]
        table.add_row("* " if x.front else "", *figures, cell(x.options))
    console.print(table)
    told = ["* no other is as good in error, size and time, and better in one of them"]
    if found.trials:
        told.append(f"so the first is made: {found.trials[0].command}")
    if language:
        told.append(f"float: perplexity {found.float_perplexity:.3f}; KL in nats a token")
    told.append(f"{found.sequences} sequences evaluated, the others calibrated; ms for all of them")
    told += [f"not tried: {options}: {why}" for options, why in found.refused.items()]
    lines(console, *told)
