"""The `scaled-mm` command: its table of commands, its exit codes, and what becomes of an error.

A command is two functions, each in the module of its name: the parameters of `options` in
`scaled_mm_cli.options` are the command's, with what they mean, and `command` in
`scaled_mm_cli.commands`, which is given their values, does the work. The latter, and torch with it,
is imported when the command is called.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .terminal import guarded, printable

COMMANDS = {  # name -> what its help says
    "demo": "Run MiniLM-L6-v2 in int8 and compare embeddings, layers, bits and time with float32.",
    "info": "Show what is built, what runs on this machine, and whether it computes right.",
    "bench": "Time the kernels against what torch offers instead, and check everyone's numbers.",
    "explain": "Show which kernel a shape gets on a GPU, why not the others, and the floor of its "
    "time.",
    "tune": "Measure the kernels on this GPU, and have them chosen by what was measured.",
    "validate": "Compare a quantised model with the float one: noise, grid, bits against the "
    "reference.",
    "quantize": "Quantise a float checkpoint to W8A8, W8A16 or W4A16, in the format of "
    "compressed-tensors.",
    "precompute": "Add the precomputed zero-point terms to a W8A8 checkpoint.",
}

EXAMPLES = {  # name -> the line under its options
    "demo": "scaled-mm demo --threads 2",
    "info": "scaled-mm info --json",
    "bench": "scaled-mm bench --weight 4096x4096 --m 1 --m 64 --rounds 5",
    "explain": "scaled-mm explain 16 4096 4096 --device H100",
    "tune": "scaled-mm tune --dry-run --json times.json",
    "validate": "scaled-mm validate llama-w8a8 --float llama --text mine.txt",
    "quantize": "scaled-mm quantize llama --out llama-w8a8 --scheme dynamic-asymmetric",
    "precompute": "scaled-mm precompute llama-w8a8 --out llama-w8a8-azp",
}

# Exit codes beside 0. The last two are what a shell reports of a process that died of the signal.
WRONG, REFUSED, FAULT, INTERRUPTED, NO_READER = 1, 2, 70, 130, 141
EXIT_CODES = (
    "Exit code: 0; 1 when a result is wrong (bits off the reference, or `validate` below a "
    "threshold); 2 for what the user can mend, in one line on stderr; 130 when interrupted; 141 "
    "when nobody reads the output any more; 70 and a traceback for a fault of scaled-mm itself."
)


class Commands(TyperGroup):
    """The commands by name and help; options are imported when their command is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and command else command, rest


def load(name: str) -> Any:
    """The command of that name, with its options."""
    options = importlib.import_module(f"scaled_mm_cli.options.{name}").options

    @functools.wraps(options)
    def command(**given: Any) -> None:
        module = importlib.import_module(f"scaled_mm_cli.commands.{name}")
        module.command(SimpleNamespace(**given))

    alone = typer.Typer(add_completion=False)
    alone.command(name, help=COMMANDS[name], epilog=f"Example: {EXAMPLES[name]}")(command)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    help="Quantised linear layers for PyTorch: see them work, see what is built, time them, "
    "ask which kernel a shape gets; quantise checkpoints, validate them, prepare them.",
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for name, help_text in COMMANDS.items():
    app.command(name, help=help_text)(lambda: None)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            print("scaled-mm", version("scaled-mm"))
        except PackageNotFoundError:  # a source tree that was built in place and never installed
            print("scaled-mm 0+unknown")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What comes before a command."""


# click's UsageError: typer may carry a click of its own and does not export the name.
_UsageError: Any = typer.BadParameter.__base__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` None: those of the process. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with guarded(), warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            code = _run(given or ["--help"])
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return _no_reader()
        except SystemExit as end:  # so rich ends a process, here while it prints a help text
            if not isinstance(end.__context__, BrokenPipeError):
                raise
            return _no_reader()
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                traceback.print_exc()
                return FAULT
            return _refuse(reason)
        except KeyboardInterrupt:
            return _refuse("interrupted", INTERRUPTED)


def _run(given: list[str]) -> int:
    command = typer.main.get_command(app)
    if "_SCALED_MM_COMPLETE" in os.environ:
        command.main(given, prog_name="scaled-mm")  # answers the shell and exits
    try:
        with command.make_context("scaled-mm", given) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    return 0


def _reason(error: Exception) -> str | None:
    """What is said of an error that the user can mend; None: it is a fault of the program."""
    text = str(error)
    if isinstance(error, _UsageError):
        return error.format_message()
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return f"there is not enough memory: {text}" if text else "there is not enough memory"
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text:  # torch has no class
        return f"there is not enough memory: {text.partition('DefaultCPUAllocator: ')[2]}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, TypeError) and re.search(" must .*, got ", text):
        return text  # a refusal of the library's, as of a batch that has no form of a batch
    return text if isinstance(error, (ValueError, OSError, ImportError)) else None


def _refuse(reason: str, code: int = REFUSED) -> int:
    _complain(reason)
    return code


def _complain(text: str) -> None:
    """One line on stderr: what stood in several is joined."""
    print("scaled-mm:", printable(" ".join(text.split())), file=sys.stderr)


def _warn(message: Warning | str, *where: Any, **more: Any) -> None:
    _complain(f"warning: {message}")


def _no_reader() -> int:
    """Nobody reads stdout any more; what is still in its buffer goes nowhere, in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NO_READER
