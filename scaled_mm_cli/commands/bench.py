"""`scaled-mm bench`: its options, and what is done with a result."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
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
from scaled_mm.bench.measure import OURS, AnySettings, LowbitSettings, Settings, growing
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


def parse_shape(text: str) -> tuple[int, int, int]:
    m, n, k = parse_sizes("--shape", "MxNxK", "64x4096x4096", text)
    return m, n, k


def shapes_of(
    device: str,
    shape: list[str],
    weight: list[str],
    m: list[int],
    defaults: dict[str, tuple[list[tuple[int, int]], list[int]]] = DEFAULT_SHAPES,
) -> list[tuple[int, int, int]]:
    """The (M, N, K) asked for: each --shape, or every --weight with every --m."""
    if shape:
        if weight or m:
            raise ValueError("--shape must be given without --weight and --m, got both")
        return [parse_shape(text) for text in shape]
    weights, every_m = defaults[device]
    if weight:
        pairs = [parse_sizes("--weight", "NxK", "4096x4096", text) for text in weight]
        weights = [(n, k) for n, k in pairs]
    return [(tokens, n, k) for n, k in weights for tokens in (m or every_m)]


def weights_of(
    device: str, shape: list[str], weight: list[str], m: list[int]
) -> list[tuple[int, int, int]]:
    """The (0, N, K) asked for where M plays no part."""
    if shape or m:
        raise ValueError("--awq-dequantize must be given without --shape and --m, got one of them")
    shapes = shapes_of(device, [], weight, [1], AWQ_SHAPES)
    return [(0, n, k) for _, n, k in shapes]


def op_of(awq: bool, awq_dequantize: bool, mixed: str | None, png_file: Path | None) -> str:
    """The int4 op or the scheme to time; none: the int8 products."""
    asked = {"--awq": awq, "--awq-dequantize": awq_dequantize, "--mixed": mixed is not None}
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise ValueError(f"{given[0]} must be given without {given[1]}, got both")
    op = "awq_dequantize" if awq_dequantize else "awq_gemm" if awq else ""
    if mixed is not None:
        op = one_of("--mixed", mixed, SCHEMES)
    if op and png_file is not None:
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


def progress() -> tuple[Callable[[str], None], Callable[[], None]]:
    """Say what is being measured, and stop: one line that changes, or where stderr is no terminal
    a line for each shape."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return lambda text: print(text, file=sys.stderr, flush=True), lambda: None
    status = console.status("")
    status.start()
    return lambda text: status.update(f"measuring {text}"), status.stop


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
    say, done = progress()
    result: dict[str, Any] = {}
    try:
        for result in results(say):
            if json_file is not None:
                write_json(result, json_file)
    except RuntimeError as reason:  # a GPU that a kernel has brought down: show what there is
        if not result:
            raise
        print("scaled-mm: stopped:", in_short(reason), file=sys.stderr)
    finally:
        done()
    return result


def host_measured(settings: AnySettings) -> dict[str, Any]:
    if not isinstance(settings, Settings):
        raise ValueError(f"--host must be given without --awq, got {settings.op}")
    return host_time.run(settings, clock_of(settings.device).machine())


def layer_measured(
    name: str, m: list[int], common: dict[str, Any], json_file: Path | None
) -> dict[str, Any]:
    """What `--layer` measures."""
    names = [contender.name for contender in layer_time.CONTENDERS]
    without = tuple(one_of("--without", name, names) for name in common["without"])
    settings = layer_time.LayerSettings(
        one_of("--layer", name, layer_time.LAYERS), common["device"], common["rounds"], without
    )
    return measured(partial(layer_time.growing, settings, m), json_file)


def grouped_measured(
    block: str, m: list[int], common: dict[str, Any], json_file: Path | None
) -> dict[str, Any]:
    """What `--grouped` measures."""
    names = [contender.name for contender in GROUPED_CONTENDERS]
    without = tuple(one_of("--without", name, names) for name in common["without"])
    one_of("--grouped", block, (*grouped_time.BLOCKS, "all"))
    blocks = tuple(grouped_time.BLOCKS) if block == "all" else (block,)
    settings = grouped_time.GroupedSettings(blocks, common["device"], common["rounds"], without)
    return measured(partial(grouped_time.growing, settings, m), json_file)


def model_measured(
    model: str, layers: int | None, m: list[int], common: dict[str, Any], json_file: Path | None
) -> dict[str, Any]:
    """What `--model` measures."""
    names = [contender.name for contender in MODEL_CONTENDERS]
    without = tuple(one_of("--without", name, names) for name in common["without"])
    settings = model_time.ModelSettings(model, common["device"], layers, common["rounds"], without)
    return measured(partial(model_time.growing, settings, m), json_file)


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


def command(
    shape: list[str] | None,
    weight: list[str] | None,
    m: list[int] | None,
    epilogue: str,
    dtype: str,
    device: str,
    threads: int | None,
    cold: bool,
    rounds: int,
    without: list[str] | None,
    awq: bool,
    awq_dequantize: bool,
    mixed: str | None,
    group: int | None,
    peers: bool,
    host: bool,
    layer: str | None,
    grouped: str | None,
    model: str | None,
    layers: int | None,
    endings: bool,
    json_file: Path | None,
    markdown_file: Path | None,
    png_file: Path | None,
    read: list[Path] | None,
) -> None:
    if png_file is not None:  # better now than after the work
        if not png_file.absolute().parent.is_dir():
            raise ValueError(f"--png must be in a folder that exists, got {png_file}")
        needed("--png", "matplotlib")
    if layers is not None and model is None:
        raise ValueError(f"--layers must be given with --model, got {layers} alone")
    if read:
        result = read_results(read)
    elif layer is not None or grouped is not None or model is not None:
        whole = {"--layer": layer, "--grouped": grouped, "--model": model}
        option, *more = [name for name, given in whole.items() if given is not None]
        others = shape or weight or awq or awq_dequantize or mixed or host or endings
        if others or more or (png_file and option != "--model"):
            raise ValueError(f"{option} must be given with --m alone, got another choice of cases")
        if threads is not None:
            torch.set_num_threads(threads)
        chosen: dict[str, Any] = {"device": one_of("--device", device, DEFAULT_SHAPES)}
        chosen |= {"rounds": rounds, "without": without or ()}
        if model is not None:
            result = model_measured(model, layers, m or [], chosen, json_file)
        elif grouped is not None:
            result = grouped_measured(grouped, m or [], chosen, json_file)
        else:
            result = layer_measured(layer or "", m or [], chosen, json_file)
    elif endings:
        if awq or awq_dequantize or mixed or host or peers or without:
            raise ValueError("--endings must be given with shapes alone, got another option")
        if threads is not None:
            torch.set_num_threads(threads)
        device = one_of("--device", device, DEFAULT_SHAPES)
        shapes = shapes_of(device, shape or [], weight or [], m or [], ENDING_SHAPES)
        place = "" if epilogue == "scaled" else epilogue
        own = load_epilogue(place) if place else None
        asked_for = ending_time.EndingSettings(device, rounds, place)
        result = measured(partial(ending_time.growing, asked_for, shapes, own=own), json_file)
    else:
        op = op_of(awq, awq_dequantize, mixed, png_file)
        if peers and op:
            raise ValueError(f"--peers must be given with int8 products, got {op}")
        if png_file is not None and (host or device != "cuda"):
            raise ValueError("--png must be given with shapes measured by --device cuda, got none")
        contenders = LOWBIT_CONTENDERS.get(op, (*CONTENDERS, *PEERS.values()))
        names = dict.fromkeys(contender.name for contender in contenders if not contender.ours)
        common: dict[str, Any] = {
            "device": one_of("--device", device, DEFAULT_SHAPES),
            "cold": cold,
            "rounds": rounds,
            "without": tuple(one_of("--without", name, names) for name in without or ()),
        }
        asked = (device, shape or [], weight or [], m or [])
        settings: AnySettings
        if op:
            settings = lowbit_settings(op, group, epilogue, dtype, **common)
            shapes = weights_of(*asked) if awq_dequantize else shapes_of(*asked, AWQ_SHAPES)
        else:
            epilogue = one_of("--epilogue", epilogue, EPILOGUES)
            dtype = one_of("--dtype", dtype, DTYPES)
            settings = Settings(epilogue, dtype, **common, peers=peers)
            shapes = shapes_of(*asked)
        if threads is not None:
            torch.set_num_threads(threads)
        result = (
            host_measured(settings)
            if host
            else measured(partial(growing, shapes, settings), json_file)
        )
    if json_file is not None:
        write_json(result, json_file)
    try:
        right = tell(result, markdown_file, png_file)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        if not read:
            raise
        raise no_result(read, error) from error
    if not right:
        raise typer.Exit(1)
