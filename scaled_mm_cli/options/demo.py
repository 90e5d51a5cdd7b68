"""Options of `scaled-mm demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import STRIDE
from . import AsJson, Threads


def options(
    out: Annotated[
        Path, typer.Option(help="The picture: SQNR of every layer under every scheme.")
    ] = Path("scaled-mm-demo.png"),
    as_json: AsJson = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of timing. Default: some 6 s, at least 3.")
    ] = None,
    check_all: Annotated[
        bool, typer.Option(help=f"Compare the bits of every token, not of every {STRIDE}th.")
    ] = False,
    threads: Threads = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: a GPU when there is one that is served.")
    ] = "auto",
) -> None:
    """See `scaled_mm_cli.commands.demo.command`."""
