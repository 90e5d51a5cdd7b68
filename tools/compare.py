"""Times builds of the library beside each other on a GPU, in one run.

    python tools/compare.py [--rounds 3] [--json FILE] [--markdown FILE] NAME=FOLDER NAME=FOLDER ...
    python tools/compare.py --read FILE --markdown FILE

Each FOLDER holds a package `scaled_mm` with its compiled libraries, and the command beside it, as a
checkout does. A round times every build, each in a process of its own, odd rounds in the opposite
order. A time is in microseconds a call: the median over the rounds, by the build's own clock of
`scaled-mm bench`, which replays a CUDA graph whose weights rotate through copies that exceed the
L2. The column `spread` is what a build's times differ by between rounds, largest over smallest, of
the build where that is most: no ratio in its line says more than this.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Times = dict[str, float]
Cells = Iterator[tuple[str, float]]

INT8 = ((4096, 4096), (28672, 8192), (4096, 14336), (6144, 4096))  # N, K
LOWBIT = INT8[:3]
TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
AZP_TOKENS = (16, 512, 2048, 8192)
LOWBIT_TOKENS = (1, 16, 64, 128, 256, 1024, 4096)
MIXED = {"w4a16-g128": (4, 128), "w4a16": (4, 0), "w8a16": (8, 0)}  # bits, group (0: all)
GROUP = 128  # of AWQ
LAYER = "llama-3-8b"
# Contenders that are not timed in the layer.
OTHERS = ("ours gated", "ours compiled", "bf16", "bf16 compiled", "fp8 compiled")
DEVICE = "cuda"


def call_us(clock: Any, call: Callable[..., object], weights: Sequence[Any]) -> float:
    """Microseconds of call(*weight), each weight in its turn."""
    stopwatch = clock.stopwatch([partial(call, *weight) for weight in weights])
    return 1e6 * statistics.median(stopwatch.seconds() for _ in range(5))


def int8_times(clock: Any, n: int, k: int) -> Cells:
    import torch

    from scaled_mm import scaled_mm

    def integers(*size: int) -> torch.Tensor:
        return torch.randint(-128, 128, size, dtype=torch.int8, device=DEVICE)

    weights = [(integers(n, k).t(),) for _ in range(clock.weight_copies(n * k))]
    scale_b, bias = torch.rand(1, n, device=DEVICE), torch.randn(n, device=DEVICE)
    adj = torch.randint(-1000, 1000, (1, n), device=DEVICE, dtype=torch.int32)
    for m in TOKENS:
        a, scale_a = integers(m, k), torch.rand(m, 1, device=DEVICE)
        call = partial(scaled_mm, a, scale_a=scale_a, scale_b=scale_b)
        yield f"int8 {n}x{k} {m}", call_us(clock, call, weights)
        if m in AZP_TOKENS:
            azp = torch.randint(-128, 128, (m, 1), device=DEVICE, dtype=torch.int32)
            call = partial(call, azp=azp, azp_adj=adj, bias=bias)
            yield f"azp {n}x{k} {m}", call_us(clock, call, weights)


def awq_times(clock: Any, n: int, k: int) -> Cells:
    import torch

    from scaled_mm import awq_gemm

    def words(rows: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, (rows, n // 8), dtype=torch.int32, device=DEVICE)

    weights = [
        (words(k), torch.rand(k // GROUP, n, device=DEVICE).half() * 0.01, words(k // GROUP))
        for _ in range(clock.weight_copies(n * k // 2))
    ]
    bias = torch.randn(n, device=DEVICE).half()
    for m in LOWBIT_TOKENS:
        x = torch.randn(m, k, device=DEVICE).half()
        yield f"int4 {n}x{k} {m}", call_us(clock, partial(awq_gemm, x, bias=bias), weights)


def mixed_times(clock: Any, n: int, k: int) -> Cells:
    import torch

    from scaled_mm import mixed_mm, pack_weight

    for name, (bits, group) in MIXED.items():
        q = torch.randint(-(1 << bits - 1), 1 << bits - 1, (k, n), dtype=torch.int8, device=DEVICE)
        scales = torch.rand(k // (group or k), n, device=DEVICE).bfloat16() * 0.01
        copies = clock.weight_copies(n * k * bits // 8)
        weights = [(pack_weight(q, scales, bits=bits),) for _ in range(copies)]
        for m in LOWBIT_TOKENS:
            x = torch.randn(m, k, device=DEVICE).bfloat16()
            yield f"{name} {n}x{k} {m}", call_us(clock, partial(mixed_mm, x), weights)


def layer_times(folder: str) -> Cells:
    """By the build's own command."""
    without = [word for name in OTHERS for word in ("--without", name)]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        asked = ["bench", "--device", DEVICE, "--layer", LAYER, "--json", out.name, *without]
        command = [sys.executable, "-m", "scaled_mm", *asked]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(Path(out.name).read_text())
    for layer in result["layers"]:
        yield f"layer {LAYER} {layer['m']}", layer["rows"][0]["microseconds"]


def time_build(folder: str) -> Times:
    sys.path.insert(0, folder)
    import torch

    import scaled_mm
    from scaled_mm.bench.clocks import clock_of

    if Path(folder) not in Path(scaled_mm.__file__).parents:
        raise SystemExit(f"{folder} holds no package scaled_mm: {scaled_mm.__file__} was imported")
    torch.manual_seed(0)
    clock = clock_of(DEVICE)
    cells = [cell for shape in INT8 for cell in int8_times(clock, *shape)]
    for times in (awq_times, mixed_times):
        cells += [cell for shape in LOWBIT for cell in times(clock, *shape)]
    clock.clear()
    return dict([*cells, *layer_times(folder)])


def rounds_of(builds: dict[str, str], rounds: int) -> dict[str, list[Times]]:
    times: dict[str, list[Times]] = {name: [] for name in builds}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "times.json"
        for r in range(rounds):
            for name in list(builds)[:: -1 if r % 2 else 1]:
                folder = str(Path(builds[name]).resolve())
                command = [sys.executable, __file__, "--time", folder, "--json", str(out)]
                subprocess.run(command, check=True)
                times[name].append(json.loads(out.read_text()))
    return times


def table(times: dict[str, list[Times]]) -> str:
    first, *others = times
    cells = list(times[first][0])
    median = {v: {c: statistics.median(t[c] for t in times[v]) for c in cells} for v in times}
    ratios = [f"{v}/{first}" for v in others]
    head = ["cell: N x K or layer, M", *times, *ratios, "spread"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for c in cells:
        of_rounds = [[t[c] for t in times[v]] for v in times]
        figures = [f"{median[v][c]:.2f}" for v in times]
        figures += [f"{median[v][c] / median[first][c]:.3f}" for v in others]
        figures.append(f"{max(max(t) / min(t) for t in of_rounds):.3f}")
        lines.append(f"| {c} | {' | '.join(figures)} |")
    for kind in dict.fromkeys(c.split()[0] for c in cells):
        of_kind = [c for c in cells if c.split()[0] == kind]
        means = [
            f"{statistics.geometric_mean(median[v][c] / median[first][c] for c in of_kind):.3f}"
            for v in others
        ]
        blanks = ["" for _ in times]
        lines.append(f"| {kind}, geometric mean | {' | '.join([*blanks, *means, ''])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--read", type=Path, help="tables again, without measuring")
    parser.add_argument("--time", help=argparse.SUPPRESS)  # one build, in a process of its own
    args = parser.parse_args()
    if args.time:
        args.json.write_text(json.dumps(time_build(args.time)))
        return
    if args.read:
        times = json.loads(args.read.read_text())
    elif len(args.builds) < 2:
        parser.error("two builds at least, each as NAME=FOLDER")
    else:
        times = rounds_of(dict(b.split("=", 1) for b in args.builds), args.rounds)
    if args.json:
        args.json.write_text(json.dumps(times, indent=1) + "\n")
    text = table(times)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
