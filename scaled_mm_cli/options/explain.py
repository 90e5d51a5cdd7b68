"""Options of `scaled-mm explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..words import DTYPES, GPUS, MOST


def options(
    m: Annotated[int, typer.Argument(metavar="M", help="Tokens.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Output features.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Input features.")],
    dtype: Annotated[str, typer.Option(help=f"Of the output: {', '.join(DTYPES)}.")] = "bfloat16",
    activation: Annotated[str | None, typer.Option(help="reglu.")] = None,
    device: Annotated[
        str | None, typer.Option(help=f"{', '.join(GPUS)}. Default: the GPU here, else H200.")
    ] = None,
    sms: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Multiprocessors, if others.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="TB/s of memory, if another.")] = None,
    awq: Annotated[bool, typer.Option("--awq", help="Of an int4 product, awq_gemm.")] = False,
    group: Annotated[int, typer.Option(min=1, help="Rows of an int4 weight to a scale.")] = 128,
    packed: Annotated[bool, typer.Option("--packed", help="The int4 weight is packed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """See `scaled_mm.cli.explain.command`."""
