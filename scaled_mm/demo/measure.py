"""The demo's measurements: embeddings, per-layer noise, bits against the reference, time."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, log10
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import reference
from .bert import Encoder
from .data import Batch

if TYPE_CHECKING:
    from .schemes import Scheme

Visit = Callable[[str, nn.Module, Tensor, Tensor], None]
"""visit(name, layer, x [tokens, K], y [tokens, N]): a Linear's input and output, no padding."""


@torch.inference_mode()
def embed(encoder: Encoder, batches: Sequence[Batch]) -> Tensor:
    """Embeddings, float32 [sentences, hidden], in the order of the sentences."""
    return _in_order([encoder(batch.ids, batch.mask).float() for batch in batches], batches)


@torch.inference_mode()
def observe(encoder: Encoder, batches: Sequence[Batch], visit: Visit) -> Tensor:
    """`embed`, showing every Linear's input and output to `visit` on the way."""
    mask = batches[0].mask

    def show(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        visit(name, layer, inputs[0][mask], output[mask])

    hooks = [
        layer.register_forward_hook(partial(show, name))
        for name, layer in encoder.linears().items()
    ]
    embeddings = []
    try:
        for batch in batches:
            mask = batch.mask
            embeddings.append(encoder(batch.ids, batch.mask))
    finally:
        for hook in hooks:
            hook.remove()
    return _in_order(embeddings, batches)


def _in_order(embeddings: list[Tensor], batches: Sequence[Batch]) -> Tensor:
    return torch.cat(embeddings)[torch.cat([batch.rows for batch in batches]).argsort()]


class Inspector:
    """A visit that accumulates, per layer, the noise of quantisation and the elements off R1.

    SQNR of a layer: 10 log10(sum y^2 / sum (y - y_int8)^2) over all its outputs, where y is what
    the float32 layer makes of the very input that the int8 layer got: the layer's own noise,
    without that of the layers before it.

    Bits are compared for every `stride`-th token, since the reference is slow: a prime, so that
    the rows met lie at every place of a kernel's tile. They are kept until `off_r1` asks: rows do
    not depend on each other, and few large calls of the reference are faster than many small ones.
    """

    def __init__(self, scheme: Scheme, original: Encoder, stride: int) -> None:
        self.scheme = scheme
        self.originals = original.linears()
        self.stride = stride
        self.signal = dict.fromkeys(self.originals, 0.0)
        self.noise = dict.fromkeys(self.originals, 0.0)
        self.samples: dict[str, list[tuple[nn.Module, Tensor, Tensor]]] = defaultdict(list)

    def __call__(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        exact = self.originals[name](x)
        self.signal[name] += float(exact.square().sum())
        self.noise[name] += float((exact - y).square().sum())
        self.samples[name].append((layer, x[:: self.stride], y[:: self.stride]))

    def elements(self) -> int:
        """How many outputs are kept."""
        return sum(y.numel() for kept in self.samples.values() for _, _, y in kept)

    def off_r1(self) -> int:
        """How many of them differ in any bit from the reference's."""
        different = 0
        for kept in self.samples.values():
            layers, xs, ys = zip(*kept, strict=True)
            want = by_reference(layers[0], self.scheme, torch.cat(xs))
            different += differing_bits(torch.cat(ys).cpu(), want)
        return different

    def sqnr_db(self) -> dict[str, float]:
        """Layer name -> SQNR in dB, in running order."""
        return {
            name: 10 * log10(self.signal[name] / noise) if noise else inf
            for name, noise in self.noise.items()
        }


def by_reference(layer: nn.Module, scheme: Scheme, x: Tensor) -> Tensor:
    """What `layer` must return for x [tokens, K], by `scaled_mm.reference` alone."""
    state = layer.state_dict()
    b = state["weight"].t()
    q, scale, azp = reference.quantize_int8(
        x,
        scale=state.get("input_scale"),
        azp=state.get("input_zero_point"),
        symmetric=scheme.symmetric,
        per_token=scheme.dynamic,
    )
    zero_point: dict[str, Tensor] = {}
    if azp is not None and scheme.dynamic:
        zero_point = {"azp": azp, "azp_adj": reference.azp_adj(b)}
    elif azp is not None:
        zero_point = {"azp_with_adj": reference.azp_with_adj(b, azp)}
    scale_b, bias = state["weight_scale"].t(), state["bias"]
    return reference.scaled_mm(q, b, scale, scale_b, bias=bias, out_dtype=x.dtype, **zero_point)


def differing_bits(got: Tensor, want: Tensor) -> int:
    """How many float32 elements differ in any bit; NaN equals NaN."""
    differs = got.view(torch.int32) != want.view(torch.int32)
    return int((differs & ~(got.isnan() & want.isnan())).sum())


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
