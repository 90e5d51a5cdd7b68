"""`scaled-mm bench`: its options, and what is done with a result."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import typer
from rich.console import Console as RichConsole
from rich.table import Table

from scaled_mm._extras import needed
from scaled_mm.bench import endings as ending_time
from scaled_mm.bench import grouped as grouped_time
from scaled_mm.bench import host as host_time
from scaled_mm.bench import layer as layer_time
from scaled_mm.bench import model as model_time
from scaled_mm.bench.cases import DTYPES, EPILOGUES
from scaled_mm.bench.clocks import clock_of, in_short
from scaled_mm.bench.contenders import CONTENDERS
from scaled_mm.bench.grouped_contenders import CONTENDERS as GROUPED_CONTENDERS
from scaled_mm.bench.lowbit import LOWBIT_CONTENDERS, SCHEMES
from scaled_mm.bench.measure import OURS, LowbitSettings, Settings, growing
from scaled_mm.bench.merge import merged
from scaled_mm.bench.model_contenders import CONTENDERS as MODEL_CONTENDERS
from scaled_mm.bench.peers import PEERS
from scaled_mm.bench.picture import plot
from scaled_mm.bench.table import (
    FLOORS,
    SUMMARY,
    machine_line,
    markdown,
    tables,
    totals,
    warnings_of,
)
from scaled_mm.epilogue import Epilogue

from ..terminal import Console, cell, lines

DEFAULT_SHAPES = {  # device -> weights (N, K), M
    "cpu": ([(4096, 4096)], [1, 16, 64, 512]),
    "cuda": ([(4096, 4096), (28672, 8192), (4096, 14336), (8192, 8192)], [2**i for i in range(14)]),
}
AWQ_SHAPES = {
    "cpu": ([(4096, 4096)], [1, 16, 64, 512]),
    "cuda": (
        [(4096, 4096), (28672, 8192), (4096, 14336)],
        [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    ),
}


ENDING_SHAPES = {
    "cpu": ([(4096, 4096)], [1, 16, 64, 512]),
    "cuda": ([(4096, 4096), (14336, 4096)], [1, 16, 64, 256, 1024, 4096]),
}


def one_of(option: str, value: str, choices: Iterable[str]) -> str:
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{option} must be one of {', '.join(choices)}, got {value}")
    return value


def parse_sizes(option: str, form: str, example: str, text: str) -> tuple[int, ...]:
    """Positive sizes joined by x, as many as `form` ("MxNxK") has."""
    if not re.fullmatch("x".join([r"[1-9]\d*"] * (1 + form.count("x"))), text):
        raise ValueError(f"{option} must be {form}, such as {example}, got {text}")
    return tuple(map(int, text.split("x")))


Shapes = list[tuple[int, int, int]]
Defaults = dict[str, tuple[list[tuple[int, int]], list[int]]]


def shapes_of(given: SimpleNamespace, defaults: Defaults) -> Shapes:
    """The (M, N, K) asked for: each --shape, or every --weight with every --m; (0, N, K) where M
    plays no part."""
    if given.awq_dequantize and (given.shape or given.m):
        raise ValueError("--awq-dequantize must be given without --shape and --m, got one of them")
    if given.shape and (given.weight or given.m):
        raise ValueError("--shape must be given without --weight and --m, got both")
    if given.shape:
        sizes = [parse_sizes("--shape", "MxNxK", "64x4096x4096", text) for text in given.shape]
        return [(m, n, k) for m, n, k in sizes]
    weights, every_m = defaults[given.device]
    if given.weight:
        pairs = [parse_sizes("--weight", "NxK", "4096x4096", text) for text in given.weight]
        weights = [(n, k) for n, k in pairs]
    every_m = [0] if given.awq_dequantize else given.m or every_m
    return [(m, n, k) for n, k in weights for m in every_m]


def op_of(given: SimpleNamespace) -> str:
    """The int4 op or the scheme to time; none: the int8 products."""
    asked = {"--awq": given.awq, "--awq-dequantize": given.awq_dequantize}
    asked["--mixed"] = given.mixed is not None
    options = [name for name, is_given in asked.items() if is_given]
    if len(options) > 1:
        raise ValueError(f"{options[0]} must be given without {options[1]}, got both")
    op = "awq_dequantize" if given.awq_dequantize else "awq_gemm" if given.awq else ""
    if given.mixed is not None:
        op = one_of("--mixed", given.mixed, SCHEMES)
    if op and given.png_file is not None:
        raise ValueError(f"--png must be given without --awq, got {op}")
    return op


def lowbit_settings(
    op: str, group: int | None, epilogue: str, dtype: str, **common: Any
) -> LowbitSettings:
    option = "--mixed" if op in SCHEMES else "--awq"
    if epilogue != "scaled":
        raise ValueError(f"--epilogue must be left out with {option}, got {epilogue}")
    if group == 0 and op not in SCHEMES:
        raise ValueError("--group must be at least 1 with --awq, got 0")
    if group is None:
        group = 0 if op == "w8a16" else 128
    return LowbitSettings(op, group, one_of("--dtype", dtype, ("bfloat16", "float16")), **common)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What says what is being measured: in one line that changes, or where stderr is no terminal
    in a line for each shape."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with console.status("") as status:
        yield lambda text: status.update(f"measuring {text}")


def write_json(result: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")


def read_result(path: Path) -> Any:
    """What a JSON file holds; ValueError: it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: must be JSON: {error}") from error


def read_results(paths: list[Path]) -> Any:
    """The result in a JSON file, or those of several runs as one."""
    results = [read_result(path) for path in paths]
    if len(results) == 1:
        return results[0]
    try:
        return merged(results)
    except (LookupError, TypeError, AttributeError) as error:
        raise no_result(paths, error) from error


def no_result(paths: list[Path], error: Exception) -> ValueError:
    names = ", ".join(map(str, paths))
    rule = "must be a result of `scaled-mm bench --json`"
    return ValueError(f"{names}: {rule}: {type(error).__name__}: {error}")


def show(result: dict[str, Any], console: RichConsole) -> None:
    lines(console, machine_line(result))
    for title, (header, *rows) in tables(result):
        table = Table(title=cell(title), title_justify="left")
        for i, name in enumerate(header):
            table.add_column(cell(name), justify="right" if 0 < i < len(header) - 1 else "left")
        for row in rows:
            bold = row[0] in SUMMARY or row[0].startswith(FLOORS)
            table.add_row(*map(cell, row), style="bold" if bold else None)
        console.print(table)
    lines(console, *totals(result), *warnings_of(result))


def tell(result: dict[str, Any], markdown_file: Path | None, png_file: Path | None) -> bool:
    """Show a result, write its tables and picture; whether all outputs of ours are right."""
    show(result, Console(width=None if sys.stdout.isatty() else 240))
    if markdown_file is not None:
        markdown_file.write_text(markdown(result))
    if png_file is not None:
        plot(result, png_file)
    return all(
        route["name"] not in OURS or route["verdict"] in ("exact", "bound")
        for case in result["results"]
        for route in case["routes"]
    )


def measured(
    results: Callable[[Callable[[str], None]], Iterator[dict[str, Any]]], json_file: Path | None
) -> dict[str, Any]:
    """The last result, keeping the JSON file up to date: a run that is cut off leaves what it has.
    `results` is given what tells the user of progress."""
    result: dict[str, Any] = {}
    try:
        with telling() as say:
            for result in results(say):
                if json_file is not None:
                    write_json(result, json_file)
    except RuntimeError as reason:  # a GPU that a kernel has brought down: show what there is
        if not result:
            raise
        print("scaled-mm: stopped:", in_short(reason), file=sys.stderr)
    return result


def load_epilogue(place: str) -> Epilogue:
    """The epilogue NAME of FILE.py, which is run.

    Raises:
        ValueError: place is not FILE.py:NAME, or there is no such epilogue.
    """
    file, _, name = place.rpartition(":")
    if not Path(file).is_file():
        raise ValueError(f"--epilogue must be FILE.py:NAME with --endings, got {place}")
    found = runpy.run_path(file).get(name)
    if not isinstance(found, Epilogue):
        raise ValueError(f"--epilogue must name an epilogue of {file}, got {name}")
    return found


def without_of(given: SimpleNamespace, contenders: Iterable[Any]) -> tuple[str, ...]:
    """Who is left out, by --without."""
    names = dict.fromkeys(contender.name for contender in contenders)
    return tuple(one_of("--without", name, names) for name in given.without or ())


def whole_measured(given: SimpleNamespace, common: dict[str, Any]) -> dict[str, Any]:
    """What `--layer`, `--grouped` or `--model` measures."""
    whole = {"--layer": given.layer, "--grouped": given.grouped, "--model": given.model}
    option, *more = [name for name, value in whole.items() if value is not None]
    others = given.shape or given.weight or given.awq or given.awq_dequantize or given.mixed
    others = others or given.host or given.endings
    if others or more or (given.png_file and option != "--model"):
        raise ValueError(f"{option} must be given with --m alone, got another choice of cases")
    growing: Callable[..., Iterator[dict[str, Any]]]
    settings: Any
    if option == "--layer":
        common["without"] = without_of(given, layer_time.CONTENDERS)
        layer = one_of(option, given.layer, layer_time.LAYERS)
        settings, growing = layer_time.LayerSettings(layer, **common), layer_time.growing
    elif option == "--grouped":
        common["without"] = without_of(given, GROUPED_CONTENDERS)
        block = one_of(option, given.grouped, (*grouped_time.BLOCKS, "all"))
        blocks = tuple(grouped_time.BLOCKS) if block == "all" else (block,)
        settings, growing = grouped_time.GroupedSettings(blocks, **common), grouped_time.growing
    else:
        common["without"] = without_of(given, MODEL_CONTENDERS)
        settings = model_time.ModelSettings(given.model, layers=given.layers, **common)
        growing = model_time.growing
    return measured(partial(growing, settings, given.m or []), given.json_file)


def endings_measured(given: SimpleNamespace, common: dict[str, Any]) -> dict[str, Any]:
    """What `--endings` measures."""
    others = given.awq or given.awq_dequantize or given.mixed or given.host
    if others or given.peers or given.without:
        raise ValueError("--endings must be given with shapes alone, got another option")
    shapes = shapes_of(given, ENDING_SHAPES)
    place = "" if given.epilogue == "scaled" else given.epilogue
    own = load_epilogue(place) if place else None
    settings = ending_time.EndingSettings(**common, epilogue=place)
    return measured(partial(ending_time.growing, settings, shapes, own=own), given.json_file)


def products_measured(given: SimpleNamespace, common: dict[str, Any]) -> dict[str, Any]:
    """What is measured of products with int8 weights or those of few bits, and with `--host`."""
    op = op_of(given)
    if given.peers and op:
        raise ValueError(f"--peers must be given with int8 products, got {op}")
    if given.png_file is not None and (given.host or common["device"] != "cuda"):
        raise ValueError("--png must be given with shapes measured by --device cuda, got none")
    contenders = LOWBIT_CONTENDERS.get(op, (*CONTENDERS, *PEERS.values()))
    common["without"] = without_of(given, (each for each in contenders if not each.ours))
    common["cold"] = given.cold
    if op:
        if given.host:
            raise ValueError(f"--host must be given without --awq, got {op}")
        lowbit = lowbit_settings(op, given.group, given.epilogue, given.dtype, **common)
        return measured(partial(growing, shapes_of(given, AWQ_SHAPES), lowbit), given.json_file)
    epilogue = one_of("--epilogue", given.epilogue, EPILOGUES)
    settings = Settings(
        epilogue, one_of("--dtype", given.dtype, DTYPES), peers=given.peers, **common
    )
    if given.host:
        return host_time.run(settings, clock_of(settings.device))
    return measured(partial(growing, shapes_of(given, DEFAULT_SHAPES), settings), given.json_file)


def command(given: SimpleNamespace) -> None:
    if given.png_file is not None:  # better now than after the work
        if not given.png_file.absolute().parent.is_dir():
            raise ValueError(f"--png must be in a folder that exists, got {given.png_file}")
        needed("--png", "matplotlib")
    if given.layers is not None and given.model is None:
        raise ValueError(f"--layers must be given with --model, got {given.layers} alone")
    if given.read:
        result = read_results(given.read)
    else:
        common = {"device": one_of("--device", given.device, DEFAULT_SHAPES)}
        common["rounds"] = given.rounds
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        if given.layer is not None or given.grouped is not None or given.model is not None:
            result = whole_measured(given, common)
        else:
            result = (endings_measured if given.endings else products_measured)(given, common)
    if given.json_file is not None:
        write_json(result, given.json_file)
    try:
        right = tell(result, given.markdown_file, given.png_file)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if not given.read:
            raise
        raise no_result(given.read, error) from error
    if not right:
        raise typer.Exit(1)
