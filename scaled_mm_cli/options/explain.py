"""Options of `scaled-mm explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..words import ACTIVATIONS, GPUS, MOST, OUT_DTYPES
from . import AsJson


def options(
    m: Annotated[int, typer.Argument(metavar="M", help="Tokens.")],
    n: Annotated[int, typer.Argument(metavar="N", help="Output features.")],
    k: Annotated[int, typer.Argument(metavar="K", help="Input features.")],
    dtype: Annotated[
        str, typer.Option(help=f"Of the output: {', '.join(OUT_DTYPES)}.")
    ] = "bfloat16",
    activation: Annotated[str | None, typer.Option(help=f"{', '.join(ACTIVATIONS)}.")] = None,
    experts: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Of grouped_mm, of M rows in all.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help=f"{', '.join(GPUS)}. Default: the GPU here, else H200.")
    ] = None,
    sms: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Multiprocessors, if others.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="TB/s of memory, if another.")] = None,
    awq: Annotated[bool, typer.Option("--awq", help="Of an int4 product, awq_gemm.")] = False,
    bits: Annotated[
        int | None, typer.Option(help="Of a weight-only product, mixed_mm: 4 or 8.")
    ] = None,
    zeros: Annotated[str, typer.Option(help="Its zero points: none, integer, float.")] = "none",
    group: Annotated[
        int | None, typer.Option(min=1, help="Rows to a scale. Default: 128; with --bits all.")
    ] = None,
    packed: Annotated[
        bool, typer.Option("--packed", help="The weight of --awq or --bits is packed.")
    ] = False,
    int8_input: Annotated[
        bool, typer.Option("--int8-input", help="Of int8 activations by --bits 4, w4a8_mm.")
    ] = False,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Of an int8 product with scales of blocks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See `scaled_mm_cli.commands.explain.command`."""
