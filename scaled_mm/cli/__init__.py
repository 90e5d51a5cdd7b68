"""The `scaled-mm` command: a table of the modules that answer, one to a command.

Exit codes: 0; 1 when a result is wrong (bits off the reference, or `validate` below a threshold); 2
for what the user can mend, in one line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from . import bench, demo, explain, info, precompute, quantize, validate

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.command,
    "info": info.command,
    "bench": bench.command,
    "explain": explain.command,
    "validate": validate.command,
    "quantize": quantize.command,
    "precompute": precompute.command,
}

app = typer.Typer(
    help="Quantised linear layers for PyTorch: see them work, see what is built, time them, "
    "ask which kernel a shape gets; quantise checkpoints, validate them, prepare them.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name, command in COMMANDS.items():
    app.command(name)(command)

# click's UsageError: typer may carry a click of its own and does not export the name.
_UsageError: Any = typer.BadParameter.__base__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` None: those of the process. Returns the exit code."""
    given = None if arguments is None else list(arguments)
    try:
        return app(given, prog_name="scaled-mm", standalone_mode=False) or 0
    except _UsageError as error:
        return _refuse(error.format_message())
    except (ValueError, OSError, ImportError) as error:
        return _refuse(str(error))
    except typer.Abort:
        return _refuse("interrupted")


def _refuse(reason: str) -> int:
    print("scaled-mm:", " ".join(reason.split()), file=sys.stderr)
    return 2
