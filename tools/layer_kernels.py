"""Where the time of `scaled-mm bench --layer` goes: its kernels, one by one, as the GPU runs them.

    python tools/layer_kernels.py bert-base 256 2048                  # a layer of LAYERS, tokens
    python tools/layer_kernels.py bert-base 256 'bf16 compiled'       # of other contenders

For each contender and M prints the kernels of one layer in the order in which they end, each with
the microseconds from the end of the one before it to its own: what it adds to the layer. So they
add up to the layer, also where kernels overlap. Medians over a CUDA graph's calls.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from scaled_mm.bench.clocks import CudaGraphClock
from scaled_mm.bench.layer import CONTENDERS, LAYERS, Contender, tokens, values

WARM, SEEN = 3, 3  # replays


def recorded(
    contender: Contender, layer: str, m: int
) -> tuple[torch.cuda.CUDAGraph, list[partial[tuple[torch.Tensor, torch.Tensor]]]]:
    """A graph of the layer over copies of its weights, and its calls, which hold what it reads."""
    shape = LAYERS[layer]
    made, norms = values(shape, "cuda")
    copies = max(3, min(20, int(2e8 / sum(w.numel() for w in made.values()))))
    x, other = tokens(shape, m, "cuda")
    run = contender.layer(shape)
    calls = []
    for _ in range(copies):
        weights = {name: contender.weight(w) for name, w in made.items()} | norms
        calls.append(partial(run, weights, x, other))
    clock = CudaGraphClock.__new__(CudaGraphClock)
    clock.stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(clock.stream):
        for _ in range(3):
            calls[0]()
    torch.cuda.synchronize()
    return clock._capture(calls), calls


def kernels(graph: torch.cuda.CUDAGraph, copies: int) -> list[tuple[str, float, float]]:
    """Name, microseconds from the end before, and of the kernel itself."""
    for _ in range(WARM):
        graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(SEEN):
            graph.replay()
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == DeviceType.CUDA]
    events = sorted((e.time_range.end, e.time_range.start, e.name) for e in events)
    events = [e for e in events if "_sleep" not in e[2] and "Memcpy" not in e[2]]
    count, rest = divmod(len(events), copies * SEEN)
    if rest:
        print("  kernels of other kinds:", len(events), copies, file=sys.stderr)
    found = []
    for i in range(count):
        own = range(count + i, len(events), count)
        steps = [events[j][0] - events[j - 1][0] for j in own]
        alone = [events[j][0] - events[j][1] for j in own]
        found.append((events[own[0]][2], statistics.median(steps), statistics.median(alone)))
    return found


@torch.inference_mode()
def main(layer: str, *asked: str) -> None:
    names = [name for name in asked if not name.isdigit()] or ["ours"]
    for m in (int(each) for each in asked if each.isdigit()):
        for contender in CONTENDERS:
            if contender.name not in names:
                continue
            graph, calls = recorded(contender, layer, m)
            found = kernels(graph, len(calls))
            total = sum(us for _, us, _ in found)
            print(f"{layer} M={m} {contender.name}: {total:.1f} us", flush=True)
            for name, us, alone in found:
                print(f"  {us:8.2f} {alone:8.2f}  {name[:110]}", flush=True)
            del graph, calls
            torch.cuda.empty_cache()
        torch.compiler.reset()


if __name__ == "__main__":
    main(*sys.argv[1:])
