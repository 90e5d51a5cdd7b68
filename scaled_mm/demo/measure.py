"""The demo's measurements: embeddings, per-layer noise, bits against the reference, time."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inspector import Inspector, differing_bits
from ..observe import Call, Visit
from ..observe import observe as _observe
from .bert import Encoder
from .data import Batch

__all__ = [
    "Inspector",
    "calls",
    "cosines",
    "differing_bits",
    "embed",
    "keep_freed_memory",
    "linear_share",
    "observe",
    "race",
    "rank_correlation",
    "repeatable",
    "speedup",
]


@torch.inference_mode()
def embed(encoder: Encoder, batches: Sequence[Batch]) -> Tensor:
    """Embeddings, float32 [sentences, hidden], in the order of the sentences."""
    return _in_order([encoder(batch.ids, batch.mask).float() for batch in batches], batches)


def observe(encoder: Encoder, batches: Sequence[Batch], visit: Visit) -> Tensor:
    """`embed`, showing every Linear's input and output to `visit` on the way."""
    with torch.inference_mode():
        return _in_order(_observe(encoder, encoder.linears(), calls(batches), visit), batches)


def calls(batches: Sequence[Batch]) -> list[Call]:
    """The batches as any model's observers and `scaled_mm.quantize_model` take them."""
    return [Call((batch.ids, batch.mask), mask=batch.mask) for batch in batches]


def _in_order(embeddings: list[Tensor], batches: Sequence[Batch]) -> Tensor:
    return torch.cat(embeddings)[torch.cat([batch.rows for batch in batches]).argsort()]


def cosines(embeddings: Tensor, others: Tensor) -> Tensor:
    """Cosine similarity of each sentence's two embeddings, [sentences]."""
    return F.cosine_similarity(embeddings.double(), others.double(), dim=-1)


def rank_correlation(embeddings: Tensor, others: Tensor) -> float:
    """Spearman's rho between all pairwise similarities: are the near still the near?"""
    upper = torch.triu_indices(len(embeddings), len(embeddings), offset=1)
    ranks = [_ranks((e @ e.t())[upper[0], upper[1]]) for e in (embeddings, others)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def _ranks(values: Tensor) -> Tensor:
    """Rank of each value, float64; equal values share the mean of their ranks."""
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[place]


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for everyone's sake: on the CPU a layer's output is
    megabytes, and fetching its pages from the kernel anew can take as long as the layer. Where the
    C library is not glibc nothing happens."""
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # mallopt(3)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 2**28)


def repeatable(work: Callable[[], object], on_gpu: bool) -> Callable[[], object]:
    """`work` as a call that returns when it is done: on a GPU a CUDA graph of it, replayed, as a
    server would, since launching so small a model's kernels takes longer than running them. What
    `work` reads must outlive the call: a graph does not keep it."""
    if not on_gpu:
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    replay()
    return replay


def race(
    contenders: Mapping[str, Encoder],
    batches: Sequence[Batch],
    rounds: int | None,
    tick: Callable[[float], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of each contender's forward pass over all batches, once per round.

    Interleaved: every round runs every contender, beginning one further on than the last, so that
    a slow spell of the machine falls on all of them. Compare contenders within a round only. Warm
    them up before. `rounds` None: as many as take 6 s, but 3 to 15. `tick(done)` with done in 0..1.
    """
    on_gpu = batches[0].ids.is_cuda
    passes = {
        name: repeatable(partial(embed, encoder, batches), on_gpu)
        for name, encoder in contenders.items()
    }
    order = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    turn, begun = 0, time.perf_counter()
    while rounds is None or turn < rounds:
        for name in order:
            start = time.perf_counter()
            passes[name]()
            seconds[name].append(time.perf_counter() - start)
        order = order[1:] + order[:1]
        turn += 1
        if rounds is None:
            rounds = min(max(round(6 / (time.perf_counter() - begun)), 3), 15)
        tick(turn / rounds)
    return seconds


def speedup(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over the rounds of baseline / contender: how many times as fast."""
    return statistics.median(base / own for base, own in zip(baseline, seconds, strict=True))


@torch.inference_mode()
def linear_share(encoder: Encoder, batches: Sequence[Batch]) -> float:
    """The part of the forward pass spent in the Linears, 0 to 1: the median of three passes.

    1 / (1 - share) bounds what can be won by making them faster.
    """
    if batches[0].ids.is_cuda:
        return _linear_share_of_graphs(encoder, batches)
    inside = started = 0.0
    shares = []

    def enter(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal started
        started = time.perf_counter()

    def leave(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal inside
        inside += time.perf_counter() - started

    hooks = []
    for layer in encoder.linears().values():
        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    for _ in range(3):
        inside, start = 0.0, time.perf_counter()
        embed(encoder, batches)
        shares.append(inside / (time.perf_counter() - start))
    for hook in hooks:
        hook.remove()
    return statistics.median(shares)


def _linear_share_of_graphs(encoder: Encoder, batches: Sequence[Batch]) -> float:
    """The same on a GPU: the Linears alone, on the inputs that they get, against the whole pass."""
    calls: list[Callable[[], Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append(partial(layer, inputs[0]))

    hooks = [layer.register_forward_hook(keep) for layer in encoder.linears().values()]
    embed(encoder, batches)
    for hook in hooks:
        hook.remove()

    def linears() -> None:
        for call in calls:
            call()

    alone = repeatable(linears, on_gpu=True)
    whole = repeatable(partial(embed, encoder, batches), on_gpu=True)

    def seconds(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(seconds(alone) / seconds(whole) for _ in range(3))
