"""Times of tensor and expert parallelism: one GPU beside several ranks, each with one of its own.

    NCCL_NVLS_ENABLE=0 python tools/parallel_times.py [--only layer] [--json FILE]

`layer`: a Llama-3-8B layer without attention's core, q in the place of its output, at M tokens.
Its Linears are cut in columns (q, k, v, gate, up) and rows (o, down). `experts`: a block of
Qwen3-30B-A3B, 8 of 128 experts to a token; of T tokens each rank brings its share. Every rank
compares its output with that of the module that is not shared out: int8 must have the same bits.

A time is the median of rounds, of the slowest rank. Where the calls can be captured, a CUDA graph
is replayed too. `--device cpu` runs small sizes over gloo, to try the script.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional

from scaled_mm import QuantConfig, quantize_model
from scaled_mm.parallel import ColwiseQuantizedParallel, ExpertParallel, RowwiseQuantizedParallel

SIZES = {"cuda": (4096, 1024, 14336), "cpu": (64, 32, 96)}  # hidden, k and v, inner
EXPERTS = {"cuda": (128, 8, 2048, 768), "cpu": (6, 2, 32, 16)}  # experts, of a token, hidden, inner
TOKENS = {"layer": (1, 64, 2048), "experts": (16, 256, 4096)}
SCHEMES = {"layer": ("bf16", "dynamic", "static", "W4A16-g128"), "experts": ("dynamic",)}
ROUNDS, CALLS = {"cuda": 9, "cpu": 1}, {"cuda": 20, "cpu": 2}


class Layer(nn.Module):
    """Of a Llama; q's output stands for attention's."""

    def __init__(self, hidden: int, kv: int, inner: int) -> None:
        super().__init__()
        self.norm, self.norm_behind = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        rows = {"k": kv, "v": kv, "gate": inner, "up": inner}
        for name in ("q", "k", "v", "o", "gate", "up", "down"):
            k = inner if name == "down" else hidden
            self.add_module(name, nn.Linear(k, rows.get(name, hidden), bias=False))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, _, _ = self.q(h), self.k(h), self.v(h)
        x = x + self.o(q)
        h = self.norm_behind(x)
        y: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return y


class Experts(nn.Module):
    """As transformers stacks them; only quantised ones run."""

    has_gate, has_bias, has_post_expert_norm = True, False, False
    is_transposed, is_concatenated = False, True

    def __init__(self, experts: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.num_experts, self.act_fn = experts, nn.SiLU()
        for name, n, k in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            weight = torch.randn(experts, n, k) * k**-0.5
            self.register_parameter(name, nn.Parameter(weight))

    def _apply_gate(self, h: Tensor) -> Tensor:
        gate, up = h.chunk(2, -1)
        return functional.silu(gate) * up

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError


class Rank:
    """One process, and how it times."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.device, self.rank = mesh, mesh.device_type, mesh.get_local_rank()
        self.on_gpu = self.device == "cuda"

    def all_agree(self, well: bool) -> bool:
        word = torch.tensor(int(well), device=self.device)
        dist.all_reduce(word, dist.ReduceOp.MIN)
        return bool(word)

    def times(self, call: Callable[[], Any], alone: bool = False) -> dict[str, float | None]:
        """Microseconds a call, called and replayed; `alone`: of rank 0, the others wait."""
        if alone and self.rank:
            us: dict[str, float | None] = {}
        else:
            us = {"eager": self.median(call, alone)}
            us |= {"graph": self.replayed(call, alone)} if self.on_gpu else {}
        dist.barrier()
        return us

    def median(self, call: Callable[[], Any], alone: bool) -> float:
        for _ in range(3):
            call()
        own = [self.once(call, alone) for _ in range(ROUNDS[self.device])]
        slowest = torch.tensor(own, device=self.device, dtype=torch.float64)
        if not alone:
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return statistics.median(slowest.tolist())

    def once(self, call: Callable[[], Any], alone: bool) -> float:
        if not alone:
            dist.barrier()
        if not self.on_gpu:
            start = time.perf_counter()
            for _ in range(CALLS[self.device]):
                call()
            return (time.perf_counter() - start) * 1e6 / CALLS[self.device]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS[self.device]):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / CALLS[self.device]

    def replayed(self, call: Callable[[], Any], alone: bool) -> float | None:
        """None: what the call does cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                call()
            well = True
        except RuntimeError:
            torch.cuda.synchronize()
            well = False
        if not (well if alone else self.all_agree(well)):
            return None
        return self.median(graph.replay, alone)


def plan() -> dict[str, Any]:
    columns = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseQuantizedParallel())
    return {**columns, **dict.fromkeys(("o", "down"), RowwiseQuantizedParallel())}


def layer(me: Rank, scheme: str) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    with torch.device(me.device):
        whole: nn.Module = Layer(*SIZES[me.device]).bfloat16().requires_grad_(False)
        xs = [torch.randn(m, SIZES[me.device][0]).bfloat16() for m in TOKENS["layer"]]
    if scheme != "bf16":
        name = scheme if me.on_gpu else scheme.replace("g128", "g16")
        whole = quantize_model(whole, QuantConfig(name), [xs[-1]] if name == "static" else None)
    cut = parallelize_module(copy.deepcopy(whole), me.mesh, plan())
    rows = []
    for x in xs:
        same = me.all_agree(torch.equal(cut(x), whole(x)))
        one, many = me.times(partial(whole, x), alone=True), me.times(partial(cut, x))
        rows.append({"scheme": scheme, "tokens": len(x), "same": same, "one": one, "ranks": many})
    return rows


def experts(me: Rank, scheme: str) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    count, each, hidden, inner = EXPERTS[me.device]
    with torch.device(me.device):
        whole: nn.Module = Experts(count, hidden, inner).bfloat16().requires_grad_(False)
    whole = quantize_model(whole, QuantConfig(scheme))
    spread = parallelize_module(copy.deepcopy(whole), me.mesh, ExpertParallel())
    rows = []
    for tokens in TOKENS["experts"]:
        with torch.device(me.device):
            x = torch.randn(tokens, hidden).bfloat16()
            index = torch.rand(tokens, count).argsort(1)[:, :each]
            given = x, index, torch.rand(tokens, each)
        mine = [t.chunk(me.mesh.size())[me.rank] for t in given]
        same = me.all_agree(torch.equal(spread(*mine), whole(*mine)))
        one = me.times(partial(whole, *given), alone=True)
        many = me.times(partial(spread, *mine))
        rows.append({"scheme": scheme, "tokens": tokens, "same": same, "one": one, "ranks": many})
    return rows


def run(rank: int, ranks: int, device: str, what: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", ranks)
    backend = {"cuda": "nccl", "cpu": "gloo"}[device]
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    me = Rank(init_device_mesh(device, (ranks,)))
    result: dict[str, Any] = {"ranks": ranks, "device": device}
    if device == "cuda":
        result["device"] = torch.cuda.get_device_name()
    for each in what:
        result[each] = []
        for scheme in SCHEMES[each]:
            with torch.inference_mode():
                made = {"layer": layer, "experts": experts}[each](me, scheme)
            result[each] += made
            for row in made if rank == 0 else []:
                print(each, line(row), flush=True)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def line(row: dict[str, Any]) -> str:
    def text(us: dict[str, float | None]) -> str:
        return " ".join(f"{name} {t:.1f}" if t else f"{name} -" for name, t in us.items())

    one, many, bits = text(row["one"]), text(row["ranks"]), "same" if row["same"] else "other"
    return f"{row['scheme']:10} {row['tokens']:5} us: one {one}; ranks {many}; {bits} bits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=[*TOKENS])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=[*SIZES], default="cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (given.ranks, given.device, [given.only] if given.only else [*TOKENS], folder)
        mp.start_processes(run, arguments, nprocs=given.ranks, start_method="spawn")
        if given.json:
            given.json.write_text(Path(folder, "result.json").read_text())


if __name__ == "__main__":
    main()
