"""What a product's ending costs on a GPU: a residual, an activation, an 8-bit output, beside the
plain product and beside the product with torch's kernel behind it. docs/tuning.md, "Endings", has a
table.

    python tools/endings.py 28672x4096 1 16 256 2048      # weight NxK, then tokens

Prints a line of JSON for each M, microseconds a call. CUDA graphs of several calls are replayed in
turns, so that all contenders meet the same clocks; weights and tokens rotate beyond the L2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from scaled_mm import (
    gelu_quantize_int8,
    pack_weight_int8,
    quantize_int8,
    scaled_mm,
    silu_mul_quantize_int8,
)

COPIES, CALLS, ROUNDS = 3, 6, 12
SETTLE_US = 50_000  # of replays ahead of a timed one: the clock of a busy GPU
OUT_SCALE = 0.05


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")


def contenders(m: int, n: int, k: int) -> dict[str, Callable[[int], Tensor]]:
    """Name -> the call on the i-th copy of the operands."""
    weights = [pack_weight_int8(int8(n, k).t()) for _ in range(COPIES)]
    tokens = [int8(m, k) for _ in range(COPIES)]
    scale_a, scale_b = (torch.rand(shape, device="cuda") / 500 for shape in ((m, 1), (1, n)))
    out_scale = torch.tensor([OUT_SCALE], device="cuda")
    to_int8 = {"out_dtype": torch.int8, "out_scale": out_scale}
    to_fp8 = {"out_dtype": torch.float8_e4m3fn, "out_scale": out_scale}

    def product(i: int, **ending: Any) -> Tensor:
        return scaled_mm(tokens[i], weights[i], scale_a, scale_b, **ending)

    residual = torch.randn(m, n, device="cuda").to(torch.bfloat16)
    gate = torch.compile(lambda x: torch.nn.functional.silu(x[:, ::2]) * x[:, 1::2])
    behind: dict[str, Callable[[Tensor], Tensor]] = {
        "residual": lambda x: x + residual,
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "int8": lambda x: quantize_int8(x, scale=out_scale)[0],
        "swiglu": gate,
        "swiglu to int8": lambda x: silu_mul_quantize_int8(x, scale=out_scale)[0],
        "gelu to int8": lambda x: gelu_quantize_int8(x, scale=out_scale)[0],
    }

    def behind_it(kernel: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
        return lambda i: kernel(product(i))

    endings: dict[str, dict[str, Any]] = {
        "residual": {"residual": residual},
        **{name: {"activation": name} for name in ("relu", "silu", "gelu", "gelu_tanh", "swiglu")},
        "int8": to_int8,
        "fp8": to_fp8,
        "swiglu to int8": {"activation": "swiglu", **to_int8},
        "gelu to int8": {"activation": "gelu", **to_int8},
    }
    calls: dict[str, Callable[[int], Tensor]] = {"plain": product}
    for name, ending in endings.items():
        calls[name] = partial(product, **ending)
        if name in behind:
            calls[f"{name}, two kernels"] = behind_it(behind[name])
    return calls


def recorded(call: Callable[[int], Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """A graph of CALLS calls, and what it writes."""
    for i in range(COPIES):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call(i % COPIES) for i in range(CALLS)]
    return graph, outputs


def replay_us(graph: torch.cuda.CUDAGraph, times: int) -> float:
    """Of one replay, the mean of `times`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / times


def measured(m: int, n: int, k: int) -> dict[str, float]:
    graphs = {name: recorded(call) for name, call in contenders(m, n, k).items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, (graph, _) in graphs.items():
            once = replay_us(graph, 1)
            replay_us(graph, 1 + int(SETTLE_US / ROUNDS / once))
            times[name].append(replay_us(graph, 1) / CALLS)
    return {name: round(median(each), 2) for name, each in times.items()}


def main(weight: str, *tokens: str) -> None:
    n, k = map(int, weight.split("x"))
    for m in map(int, tokens):
        print(json.dumps({"m": m, "n": n, "k": k, **measured(m, n, k)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
