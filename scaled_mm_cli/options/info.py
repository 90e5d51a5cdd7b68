"""Options of `scaled-mm info`."""

from __future__ import annotations

from typing import Annotated

import typer


def options(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """See `scaled_mm_cli.commands.info.command`."""
