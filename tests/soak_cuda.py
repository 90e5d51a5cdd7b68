"""A long run on a GPU, `make gpu-soak`: what the tests try by the hundred, by the 100,000.

    python tests/soak_cuda.py                         every part
    python tests/soak_cuda.py products --count 1000   one part, with other counts
    python tests/soak_cuda.py --json FILE             the figures, too; other parts' stay in it
    python tests/soak_cuda.py --json FILE --record docs/reliability.md    run nothing; write them

    products   random calls (shapes, layouts, epilogues, dtypes) against the CPU backend, by hashes
    streams    calls on 64 streams at once
    graphs     every row of the tuning table captured and replayed 1,000 times
    devices    random calls on two GPUs while the other one is current
    memory     every allocation of every op fails once (needs a C++ compiler)

Exit code 1 when a result is wrong. The digest of `products` is that of all results in their order:
two runs with the same count have the same, whatever the GPU, the kernels and the processes were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as tests/conftest.py has it
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process for each core does more

import numpy as np
import torch
from cuda_support import DEVICE, ROWS, forced, named, on_device
from helpers import bits, run_python
from sanitizers import record
from soak_calls import ROWS_OF, random_call
from test_cuda_streams import Work, capture, replay
from torch import Tensor

BLOCK = 500  # calls of one seed; a process takes a block at a time
DEVICE_BLOCK = 100  # the same of calls on two GPUs
STREAMS = 64
BEGIN, END = "<!-- soak_cuda.py: begin -->", "<!-- soak_cuda.py: end -->"


@dataclass
class Tally:
    calls: int = 0
    elements: int = 0
    different: int = 0

    def add(self, elements: int, different: int) -> None:
        self.calls += 1
        self.elements += elements
        self.different += different

    def join(self, other: Tally) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


# ---- products ------------------------------------------------------------------------------------


def outputs(got: Any) -> list[Tensor]:
    if isinstance(got, list):  # of produce: some of its outputs are None
        return [x for x in got if x is not None]
    return list(named(got).values()) if isinstance(got, tuple) else [got]


def compare(got: list[Tensor], expected: list[Tensor], tally: Tally, *context: object) -> bytes:
    """A digest of the results, which are those expected."""
    digest = hashlib.sha256()
    elements = different = 0
    for x, y in zip(got, expected, strict=True):
        here = bits(x.cpu())
        assert (x.shape, x.dtype) == (y.shape, y.dtype), context
        elements += x.numel()
        different += int((here != bits(y)).sum())
        digest.update(here.numpy().tobytes())
    tally.add(elements, different)
    if different:
        print(f"wrong: {different} of {elements} elements: {context}", flush=True)
    return digest.digest()


def block(number: int) -> tuple[dict[str, Tally], bytes]:
    """BLOCK calls, one in two with a row of the tuning table forced."""
    rng, rows = np.random.default_rng([18, number]), np.random.default_rng([19, number])
    tallies: dict[str, Tally] = {}
    digest = hashlib.sha256()
    for i in range(BLOCK):
        name, operands, op = random_call(rng)
        expected = outputs(op(**operands))
        of_op = ROWS_OF.get(name, [""])
        row = of_op[rows.integers(len(of_op))] if rows.random() < 0.5 else ""
        with forced(row):
            got = outputs(op(**on_device(operands)))
        tally = tallies.setdefault(name, Tally())
        digest.update(compare(got, expected, tally, name, row, f"block {number}, call {i}"))
    return tallies, digest.digest()


def products(options: argparse.Namespace) -> dict[str, Any]:
    blocks = -(-options.count // BLOCK)
    spawn = multiprocessing.get_context("spawn")
    total: dict[str, Tally] = {}
    digest = hashlib.sha256()
    with ProcessPoolExecutor(options.processes, spawn) as pool:
        for tallies, part in pool.map(block, range(blocks)):
            digest.update(part)
            for name, tally in tallies.items():
                total.setdefault(name, Tally()).join(tally)
    return {**{name: asdict(x) for name, x in total.items()}, "digest": digest.hexdigest()[:32]}


# ---- streams and graphs --------------------------------------------------------------------------


def works(count: int) -> list[Work]:
    made = [Work(seed) for seed in range(count)]
    torch.cuda.synchronize()
    return made


def tally_of(work: Work, got: dict[str, Tensor], tally: Tally, *context: object) -> None:
    different = sum(work.differences(got))
    tally.add(sum(x.numel() for x in got.values()), different)
    if different:
        print(f"wrong: {different} elements: {context}", flush=True)


def streams(options: argparse.Namespace) -> dict[str, Any]:
    """Each stream has a row of its own; torch hands out 32 streams of each priority."""
    several, tally = works(8), Tally()
    side = [torch.cuda.Stream(priority=-(i % 2)) for i in range(STREAMS)]
    for turn in range(options.turns):
        got = []
        for i, stream in enumerate(side):
            with torch.cuda.stream(stream), forced(ROWS[(i + turn) % len(ROWS)]):
                got.append(several[i % 8].run())
        torch.cuda.synchronize()
        for i, x in enumerate(got):
            tally_of(several[i % 8], x, tally, "stream", i, turn)
    return {"streams": STREAMS, "turns": options.turns, **asdict(tally)}


def graph(row: str, replays: int) -> Tally:
    """Two sets of values take turns in the operands of one graph."""
    tally, (work, other) = Tally(), works(2)
    originals = [x.clone() for x in work.memories]
    with forced(row):
        captured, got = capture(work)
    for i in range(replays):
        if i % 10 == 0:
            right = other if i % 20 else work
            work.write(other.memories if i % 20 else originals)
        replay(captured)
        tally_of(right, got, tally, "replay", i, row)
    return tally


def graphs(options: argparse.Namespace) -> dict[str, Any]:
    """Each row in a process of the pool."""
    total = Tally()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn) as pool:
        for tally in pool.map(graph, ROWS, [options.replays] * len(ROWS)):
            total.join(tally)
    return {"graphs": len(ROWS), "replays": options.replays, **asdict(total)}


# ---- devices -------------------------------------------------------------------------------------


def device_block(number: int, calls: int) -> Tally:
    """The other device is current in every call, and stays it."""
    rng, tally = np.random.default_rng([20, number]), Tally()
    for i in range(calls):
        name, operands, op = random_call(rng)
        expected = outputs(op(**operands))
        there = on_device(operands, f"cuda:{i % 2}")
        row = ROWS[i // 2 % len(ROWS)] if name == "scaled_mm" else ""
        with torch.cuda.device(1 - i % 2), forced(row):
            got = outputs(op(**there))
            assert torch.cuda.current_device() == 1 - i % 2
        assert all(x.device.index == i % 2 for x in got)
        compare(got, expected, tally, "on the other device", name, row, f"{number}, {i}")
    return tally


def devices(options: argparse.Namespace) -> dict[str, Any]:
    if torch.cuda.device_count() < 2:
        return {"left out": "there is one GPU"}
    total = Tally()
    blocks = -(-options.device_calls // DEVICE_BLOCK)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn) as pool:
        for tally in pool.map(device_block, range(blocks), [DEVICE_BLOCK] * blocks):
            total.join(tally)
    return asdict(total)


# ---- memory --------------------------------------------------------------------------------------


FAILING = """
import failing_allocator
hooks = failing_allocator.install()
import failing_memory  # which starts CUDA
failing_memory.main(hooks)
"""


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, whose allocator fails where it is told to."""
    said = run_python(FAILING, timeout=600)
    print(said, end="")
    return dict(json.loads(said.splitlines()[-1]))


PARTS = {f.__name__: f for f in (products, streams, graphs, devices, memory)}


def wrong(figures: Any) -> int:
    """The sum of all that is called so."""
    if not isinstance(figures, dict):
        return 0
    own = sum(int(figures.get(name, 0)) for name in ("different", "wrong"))
    return own + sum(wrong(x) for x in figures.values())


def of_before(path: Path | None, head: dict[str, Any]) -> dict[str, Any]:
    """The figures of a file, if they are of the same machine and kernels."""
    if path is None or not path.is_file():
        return {}
    kept: dict[str, Any] = json.loads(path.read_text())
    return kept if head.items() <= kept.items() else {}


def table(total: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        f"On an {total['device']}, torch {total['torch']}, {total['kernels']} int8 kernels:",
        "",
    ]
    lines += ["| Part | what ran | wrong |", "|---|---|---:|"]
    for name in PARTS:
        figures = total.get(name)
        ran = "not run"
        if figures is not None and "left out" not in figures:
            pairs = (
                f"{key} {x:,}" for key, x in flat(figures) if key not in ("different", "wrong")
            )
            ran = ", ".join(pairs)
        lines.append(f"| `{name}` | {ran} | {'' if ran == 'not run' else wrong(figures)} |")
    return "\n".join(lines)


def flat(figures: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Counts by name, those of parts summed up."""
    counts = Counter({name: x for name, x in figures.items() if isinstance(x, int)})
    for x in figures.values():
        if isinstance(x, dict):
            counts.update({name: n for name, n in x.items() if isinstance(n, int)})
    yield from counts.items()


def run(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in options.parts or PARTS:
        start = time.monotonic()
        figures = PARTS[name](options)
        figures["seconds"] = round(time.monotonic() - start)
        print(f"{name}: {json.dumps(figures)}", flush=True)
        yield name, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: every one")
    parser.add_argument("--count", type=int, default=100_000, help="of products")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--turns", type=int, default=20, help="on the 64 streams")
    parser.add_argument("--replays", type=int, default=1000, help="of each graph")
    parser.add_argument("--device-calls", type=int, default=4000, help="on two GPUs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after each part")
    parser.add_argument("--record", type=Path, metavar="FILE.md", help="run nothing; write figures")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {unknown[0]}")
    if options.record is not None:
        figures = table(json.loads(options.json.read_text()))
        options.record.write_text(record(options.record.read_text(), figures, (BEGIN, END)))
        return 0
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    total: dict[str, Any] = {"device": name, "torch": torch.__version__, "kernels": len(ROWS) - 1}
    print(json.dumps(total), flush=True)
    total |= of_before(options.json, total)
    for part, figures in run(options):
        total[part] = figures
        if options.json:
            options.json.write_text(json.dumps(total, indent=1) + "\n")
    print(f"{wrong(total)} wrong")
    return 1 if wrong(total) else 0


if __name__ == "__main__":
    sys.exit(main())
