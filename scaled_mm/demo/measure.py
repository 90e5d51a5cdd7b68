"""The demo's measurements: embeddings, per-layer noise, bits against the reference, time."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..bench.clocks import Launch, clock_of
from ..quantization.observe import Call, Visit, hooked
from ..quantization.observe import observe as _observe
from .bert import Encoder
from .data import Batch


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


@torch.inference_mode()
def race(
    contenders: Mapping[str, Encoder],
    batches: Sequence[Batch],
    rounds: int | None,
    tick: Callable[[float], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of each contender's forward pass over all batches, once per round.

    Interleaved: every round runs every contender, beginning one further on than the last, so that
    a slow spell of the machine falls on all of them. Compare contenders within a round only. The
    clocks are those of `scaled-mm bench`: on a GPU a pass is replayed as a CUDA graph, as a server
    would, since launching so small a model's kernels takes longer than running them. `rounds`
    None: as many as take 6 s, but 3 to 15. `tick(done)` with done in 0..1.
    """
    clock = clock_of(batches[0].ids.device.type)
    watches = {
        name: clock.stopwatch([partial(embed, encoder, batches)])
        for name, encoder in contenders.items()
    }
    if rounds is None:
        of_one = sum(watch.round_seconds for watch in watches.values())
        rounds = min(max(round(6 / of_one), 3), 15)
    order = list(watches)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(rounds):
        for name in order:
            seconds[name].append(watches[name].seconds())
        order = order[1:] + order[:1]
        tick((turn + 1) / rounds)
    return seconds


def speedup(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over the rounds of baseline / contender: how many times as fast."""
    return statistics.median(base / own for base, own in zip(baseline, seconds, strict=True))


@torch.inference_mode()
def linear_share(encoder: Encoder, batches: Sequence[Batch]) -> float:
    """The part of the forward pass that its Linears take, 0 to 1: alone, on the inputs that they
    get, against the whole pass, the median of three.

    1 / (1 - share) bounds what can be won by making them faster.
    """
    launches: list[Launch] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        launches.append(partial(layer, inputs[0]))

    hooks = [layer.register_forward_hook(keep) for layer in encoder.linears().values()]
    with hooked(hooks):
        embed(encoder, batches)

    def linears() -> None:
        for launch in launches:
            launch()

    clock = clock_of(batches[0].ids.device.type)
    alone = clock.stopwatch([linears])
    whole = clock.stopwatch([partial(embed, encoder, batches)])
    return statistics.median(alone.seconds() / whole.seconds() for _ in range(3))
