"""`scaled-mm bench`: the kernels, and what torch offers in their place, in one interleaved run.

A round times every contender once, forwards and backwards in turn, so that what slows the machine
slows them all; a ratio is the median of the ratios within the rounds. Between calls the weights
rotate through copies that together exceed the last-level cache, because in a model every layer has
weights of its own (`--warm`: one copy). Outputs are judged too: a fast route with wrong numbers
(int8 through oneDNN on a CPU without VNNI) is shown, but does not count as best right route.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from .contenders import CONTENDERS, DTYPES, EPILOGUES
from .measure import Settings, run
from .table import markdown, show

__all__ = ["command", "markdown", "run", "show"]

DEFAULT_SHAPES = ["1x4096x4096", "16x4096x4096", "64x4096x4096", "512x4096x4096"]


def one_of(option: str, value: str, choices: Any) -> str:
    if value not in choices:
        raise ValueError(f"{option} must be one of {', '.join(choices)}, got {value}")
    return value


def parse_shape(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise ValueError(f"--shape must be MxKxN, such as 64x4096x4096, got {text}")
    m, k, n = map(int, text.split("x"))
    return m, k, n


def command(
    shape: Annotated[list[str], typer.Option(help="MxKxN; may be repeated.")] = DEFAULT_SHAPES,
    epilogue: Annotated[str, typer.Option(help=", ".join(EPILOGUES))] = "scaled",
    dtype: Annotated[str, typer.Option(help=f"Of the output: {', '.join(DTYPES)}.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cpu; nothing else has kernels yet.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="Default: torch's own.")] = None,
    cold: Annotated[bool, typer.Option("--cold/--warm", help="Weights from memory.")] = True,
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    without: Annotated[list[str] | None, typer.Option(help="A contender to leave out.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write tables.")] = None,
    read: Annotated[
        Path | None, typer.Option(help="Show the result in this JSON; measure nothing.")
    ] = None,
) -> None:
    """Time the kernels against what torch offers instead, and check everyone's numbers."""
    devices = {name: None for contender in CONTENDERS for name in contender.devices}
    names = [contender.name for contender in CONTENDERS if not contender.ours]
    if read is not None:
        result = json.loads(read.read_text())
    else:
        settings = Settings(
            epilogue=one_of("--epilogue", epilogue, EPILOGUES),
            out_dtype=one_of("--dtype", dtype, DTYPES),
            device=one_of("--device", device, devices),
            cold=cold,
            rounds=rounds,
            without=tuple(one_of("--without", name, names) for name in without or ()),
        )
        shapes = [parse_shape(text) for text in shape]
        if threads is not None:
            torch.set_num_threads(threads)
        with Console(stderr=True).status("") as status:
            result = run(shapes, settings, lambda text: status.update(f"measuring {text}"))
    show(result, Console())
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(markdown(result))
