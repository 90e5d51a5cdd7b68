"""Options of `scaled-mm precompute`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def options(
    checkpoint: Annotated[
        Path, typer.Argument(help="A folder, a .safetensors file, or an index of shards.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A folder: new, empty, or of an earlier run.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of a table.")
    ] = False,
) -> None:
    """See `scaled_mm_cli.commands.precompute.command`."""
