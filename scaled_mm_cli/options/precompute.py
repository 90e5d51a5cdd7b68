"""Options of `scaled-mm precompute`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import AsJson


def options(
    checkpoint: Annotated[
        Path, typer.Argument(help="A folder, a .safetensors file, or an index of shards.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A folder: new, empty, or of an earlier run.")
    ],
    as_json: AsJson = False,
) -> None:
    """See `scaled_mm_cli.commands.precompute.command`."""
