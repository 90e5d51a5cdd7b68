"""`scaled-mm explain M N K`: which kernel a shape gets, why not the others, and its floor."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from rich import box
from rich.console import Console as RichConsole
from rich.table import Table

from scaled_mm.explain import Explanation, explain, explain_mixed
from scaled_mm.gpus import DEVICES, Device, local_device
from scaled_mm.ops.mixed_weight import ZEROS

from ..terminal import Console, cell, lines, print_json


def command(given: SimpleNamespace) -> None:
    sizes, gpu = (given.m, given.n, given.k), chosen_device(given)
    bits, zeros, group = given.bits, given.zeros, given.group
    lowbit = "--awq" if given.awq else "--bits"
    if given.awq and bits is not None:
        raise ValueError(f"--bits must be left out with --awq, got {bits}")
    for option, value in (("--activation", given.activation), ("--experts", given.experts)):
        if (given.awq or bits) and value is not None:
            raise ValueError(f"{option} must be left out with {lowbit}, got {value}")
    if bits is None and zeros != ZEROS[0]:
        raise ValueError(f"--zeros must stand beside --bits, got {zeros} without it")
    if group is not None and not (given.awq or bits):
        raise ValueError(f"--group must stand beside --awq or --bits, got {group} alone")
    if given.packed and not (given.awq or bits):
        raise ValueError("--packed must stand beside --awq or --bits, got it alone")
    if given.int8_input and bits is None:
        raise ValueError("--int8-input must stand beside --bits, got it without")
    if given.blocks and (given.awq or bits):
        raise ValueError(f"--blocks must be left out with {lowbit}, got both")
    if given.awq:
        if given.n % 8:
            raise ValueError(f"n must be a multiple of 8, got {given.n}")
        bits, zeros, group = 4, "integer", 128 if group is None else group
    if bits is not None:
        kind: dict[str, Any] = {"bits": bits, "zeros": zeros, "group": group}
        kind |= {"int8_input": given.int8_input, "packed": given.packed or given.int8_input}
        found = explain_mixed(*sizes, **kind, out_dtype=given.dtype, device=gpu)
    else:
        kind = {"activation": given.activation, "experts": given.experts, "blocks": given.blocks}
        found = explain(*sizes, **kind, out_dtype=given.dtype, device=gpu)
    if given.as_json:
        more = {"operations": found.operations, "predicted_tops": found.predicted_tops}
        print_json({**asdict(found), **more})
    else:
        show(found, Console())


def rates_text(found: Explanation) -> str:
    """Whence the rates are by which times are predicted."""
    if found.gpu_class is None:
        return f"rates derived from what the driver of {found.device.name} tells: not measured"
    if found.rates == "measured":
        return f"rates measured on an {found.gpu_class}"
    return f"published rates of the {found.gpu_class}: not measured"


def show(found: Explanation, console: RichConsole) -> None:
    """Print the kernels, then what the times are to be measured by."""
    gpu, kernel = found.device, found.chosen
    weight = "" if found.group is None else f"int{found.bits} in groups of {found.group}, "
    weight = f"int8 in blocks of {found.group}, " if found.blocks else weight
    weight += "int8 activations, " if found.int8_input else ""
    weight += "" if found.experts is None else f"{found.experts} experts, "
    lines(
        console,
        f"M={found.m} N={found.n} K={found.k}, {weight}{found.out_dtype}, on "
        f"{gpu.name}: compute capability {gpu.capability / 10}, {gpu.sms} SMs, "
        f"{gpu.bandwidth:g} TB/s",
    )
    if not found.kernels and not found.empty:
        built = ", ".join(found.archs) or "none"
        lines(
            console, f"No kernels for compute capability {gpu.capability / 10}; there are: {built}."
        )
    elif found.kernels:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(f"{found.arch} kernel", no_wrap=True)
        table.add_column("predicted us", justify="right")
        table.add_column("")
        for each in found.kernels:
            time = "-" if each.predicted_us is None else f"{each.predicted_us:.1f}"
            text = f"chosen: {each.what}".rstrip(": ") if each.chosen else each.reason
            style = "bold" if each.chosen else None
            table.add_row(cell(each.name), time, cell(text), style=style)
        console.print(table)
    below = [f"floor: {found.floor_us:.1f} us, {found.bytes:,} bytes at {gpu.bandwidth:g} TB/s"]
    work = f"operations: {found.operations:,}"
    if kernel is not None and found.predicted_tops is not None:
        work += f", {found.predicted_tops:.0f} TOPS at the predicted time"
        if kernel.predicted_us and found.floor_us:
            below[0] += f"; predicted time {kernel.predicted_us / found.floor_us:.2f} times that"
    if found.weight_floor_us is not None:
        weight_floor = f"{found.weight_floor_us:.1f} us, {found.weight_bytes:,} bytes"
        below.append(f"floor of the weight alone: {weight_floor}")
    below += [work, f"predicted by {rates_text(found)}"]
    below += [found.tuning] * bool(found.tuning)
    below += [*(f"note: {note}" for note in found.notes)]
    below.append(f"on the CPU here: {found.cpu_isa}")
    lines(console, *below)


def chosen_device(given: SimpleNamespace) -> Device | None:
    """What the options say; None: nothing."""
    name, sms, bandwidth = given.device, given.sms, given.bandwidth
    if name is not None and name not in DEVICES:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {name}")
    if bandwidth is not None and not 0 < bandwidth < math.inf:
        raise ValueError(f"--bandwidth must be above 0 and finite, got {bandwidth}")
    if (name, sms, bandwidth) == (None, None, None):
        return None
    base = DEVICES[name] if name is not None else local_device() or DEVICES["H200"]
    return replace(base, sms=sms or base.sms, bandwidth=bandwidth or base.bandwidth)
