"""Options of `scaled-mm info`."""

from __future__ import annotations

from . import AsJson


def options(
    as_json: AsJson = False,
) -> None:
    """See `scaled_mm_cli.commands.info.command`."""
