"""`scaled-mm tune`: measures the kernels on this GPU, and keeps the numbers that choose them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich import box
from rich.console import Console as RichConsole
from rich.table import Table

from scaled_mm import _library
from scaled_mm._version import VERSION
from scaled_mm.bench.clocks import CudaGraphClock
from scaled_mm.checkpoint.fields import Fields, read_json
from scaled_mm.gpus import Device, local_device
from scaled_mm.tuning import cache
from scaled_mm.tuning.fit import Loss, Measured, Result, fit
from scaled_mm.tuning.measure import SHAPES, ask, measure

from ..terminal import Console, cell, lines
from .bench import telling

FORMAT = 1  # of the file of times
COPY = 0.987  # what kernels reach of the bandwidth of a copy, on an H200

Times = dict[str, Any]
"""{format, device, memory_share, times: {family: [{m, n, k, us: {kernel: us}}]}}; a shape of
scales along K may have in_blocks: true."""


def served_gpu() -> Device:
    """The current GPU.

    Raises:
        ValueError: there is none, or none that kernels were built for.
    """
    device = local_device()
    if device is None or not _library.serves_gpu():
        got = (
            "none"
            if device is None
            else f"{device.name} (compute capability {device.capability / 10})"
        )
        raise ValueError(f"tune must be run where torch sees a GPU that has kernels, got {got}")
    return device


def measured(
    families: list[str], say: Callable[[str], None], save: Callable[[Times], None]
) -> Times:
    """Measures, keeping what there is after each shape."""
    device, clock = served_gpu(), CudaGraphClock()
    share = memory_share(device, clock.bandwidth)
    result: Times = {"format": FORMAT, "device": asdict(device), "memory_share": share, "times": {}}
    for family in families:
        shapes: list[dict[str, Any]] = result["times"].setdefault(family, [])
        all_ = SHAPES[family].count
        for each in measure(family, device, clock):
            shapes.append(each)
            best = min(each["us"], key=lambda name: each["us"][name])
            sizes = f"M={each['m']} N={each['n']} K={each['k']}"
            say(f"{family} {len(shapes)}/{all_}: {sizes}: {best} {each['us'][best]:.2f} us")
            save(result)
    return result


def memory_share(device: Device, copy: float) -> float:
    """Of the peak of device memory, what kernels reach, by the bandwidth of a copy."""
    least, most = cache.MEMORY_SHARE
    share = COPY * copy / (1e6 * rates(device)["bytes_per_us"])
    return round(min(max(share, least), most), 4)


def rates(device: Device) -> dict[str, Any]:
    """What the library takes the GPU for."""
    return ask("int8", 1, 64, 64, device)["gpu"]


def device_of(times: Times) -> Device:
    told = times["device"]
    names = ("name", "capability", "sms", "bandwidth", "mhz")
    return Device(*(told[name] for name in names))


def read_times(path: Path) -> Times:
    """The file that --json wrote.

    Raises:
        ValueError: it is none.
    """
    made, fields = read_json(path), Fields(str(path))
    fields.integer("format", made.get("format"), FORMAT, FORMAT)
    fields.number("memory_share", made.get("memory_share"), *cache.MEMORY_SHARE)
    device = fields.object("device", made.get("device"))
    fields.text("device.name", device.get("name"))
    for name in ("capability", "sms"):
        fields.integer(f"device.{name}", device.get(name), 1, 1_000_000)
    for name in ("bandwidth", "mhz"):
        fields.number(f"device.{name}", device.get(name), 0, 1e6)
    for family, shapes in fields.object("times", made.get("times")).items():
        at = f"times.{family[:80]}"
        if family not in SHAPES or not isinstance(shapes, list) or not shapes:
            fields.refuse(f"times must be lists of shapes for {', '.join(SHAPES)}, got {at}")
        for i, shape in enumerate(shapes):
            each = fields.object(f"{at}[{i}]", shape)
            for size in "mnk":
                fields.integer(f"{at}[{i}].{size}", each.get(size), 1, 2**31 - 1)
            if not isinstance(each.get("in_blocks", False), bool):
                fields.refuse(f"{at}[{i}].in_blocks must be true or false")
            us = fields.object(f"{at}[{i}].us", each.get("us"))
            for name, time in us.items():
                fields.number(f"{at}[{i}].us, {name[:80]!r}", time, 1e-3, 1e9)
    return made


def fits(times: Times) -> dict[str, Result]:
    """Of each family.

    Raises:
        ValueError: a shape has no time of a kernel that this library has.
    """
    device, share = device_of(times), times["memory_share"]
    found = {}
    for family, shapes in times["times"].items():
        of_family = Measured.of(family, shapes, device, share)
        for shape, us in zip(shapes, of_family.us, strict=True):
            if not (us == us).any():
                sizes = f"M={shape['m']} N={shape['n']} K={shape['k']}"
                raise ValueError(
                    f"times must have one of a kernel that there is for every shape, got {sizes}"
                )
        found[family] = fit(of_family)
    return found


def entry_of(times: Times, results: dict[str, Result]) -> cache.Entry:
    """What is kept: the numbers of the families whose fit is better than the tables' numbers."""
    device = device_of(times)
    arch = str(ask("int8", 1, 64, 64, device)["arch"])
    rows = {
        f"{arch}/{family}/{name}": (round(float(us), 3), round(float(rate), 4))
        for family, result in results.items()
        if result.better
        for name, (us, rate) in zip(result.names, result.columns, strict=True)
    }
    return cache.Entry(
        device=device.name,
        capability=device.capability,
        sms=device.sms,
        library=VERSION,
        arch=arch,
        tables=_library.fingerprint(arch),
        driver=cache.driver(),
        memory_share=times["memory_share"] if rows else rates(device)["memory_share"],
        rows=rows,
    )


def show(results: dict[str, Result], columns: bool, console: RichConsole) -> None:
    """What choices lose, and with `columns` every kernel's numbers as the tables have them."""
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("choices against the best kernels", "mean", "worst", "predictions off"):
        table.add_column(title, justify="left" if title.startswith("choices") else "right")

    def add(what: str, loss: Loss) -> None:
        table.add_row(cell(what), f"{loss.mean:.3f}", f"{loss.worst:.2f}", f"{loss.off:.0%}")

    for family, result in results.items():
        add(f"{family}, as the tables have it", result.own)
        add(f"{family}, fitted", result.now)
        add(f"{family}, fitted to half, at the others", result.unseen)
    console.print(table)
    for family, result in results.items():
        if columns:
            numbers = zip(result.names, result.columns, strict=True)
            lines(
                console,
                f"{family}:",
                *(f"{name:<20} {us:5.2f}, {rate:.3f}" for name, (us, rate) in numbers),
            )
        elif not result.better:
            lines(console, f"{family}: the tables' own numbers are as good; they stay")


def remove(path: Path) -> str:
    device = local_device()
    if device is None:
        raise ValueError("--remove must be given where torch sees a GPU, got none")
    there = cache.drop((device.name, device.capability, device.sms), path)
    return f"{path}: {device.name} {'removed' if there else 'was not there'}"


def cache_path() -> Path:
    """Where numbers are kept.

    Raises:
        ValueError: nowhere.
    """
    path = cache.state().path
    if path is None:
        raise ValueError(
            f"{cache.VARIABLE} must name a file, or be unset where there is a home folder, got "
            f"{cache.state().ignored}"
        )
    return path


def command(given: SimpleNamespace) -> None:
    for each in given.family or ():
        if each not in SHAPES:
            raise ValueError(f"--family must be one of {', '.join(SHAPES)}, got {each}")
    console = Console()
    if given.read is not None:
        times = read_times(given.read)
        if given.family:
            there = times["times"]
            times["times"] = {name: there[name] for name in given.family if name in there}
        show(fits(times), True, console)
        return
    path = cache_path() if given.removing or not given.dry_run else None
    if given.removing:
        assert path is not None
        lines(console, remove(path))
        return

    def save(times: Times) -> None:
        if given.json_file is not None:
            given.json_file.write_text(json.dumps(times) + "\n")

    _library.untune()  # kernels are measured that the tables' own numbers take for good
    with telling() as say:
        times = measured(given.family or list(SHAPES), say, save)
    results = fits(times)
    show(results, given.dry_run, console)
    if path is None:
        return
    entry = entry_of(times, results)
    cache.keep(entry, path)
    lines(console, f"{len(entry.rows)} kernels' numbers for {entry.device} kept in {path}")
    lines(console, *(f"note: {line}" for line in cache.load().lines()))
