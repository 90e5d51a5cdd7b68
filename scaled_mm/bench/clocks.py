"""The two clocks of `scaled-mm bench`: one for calls of the CPU, one for those of a GPU.

Either is given a contender's calls, one for each copy of its operands, and makes a `Stopwatch` of
them. What it reads is the time of one call, the mean over a round; rounds are the caller's.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from . import machine

Launch = Callable[[], Any]
K = TypeVar("K")


@dataclass(frozen=True)
class Stopwatch:
    """`seconds()` takes the time of one round and gives that of one call."""

    seconds: Callable[[], float]
    round_seconds: float
    calls: Sequence[Launch]
    """Kept, since a CUDA graph does not keep the memory that its kernels read."""


class Clock(Protocol):
    """What `measure` asks of a device."""

    budget_seconds: float
    """What a contender may take for all rounds of a case: slow ones take part in fewer."""
    checked_weight: int
    """At most so many elements of the weight go into the comparison with the reference."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second of a copy; None where no floor is stated."""

    @property
    def tops(self) -> float | None:
        """10^12 operations on int8 a second, at full clock; None where no floor is stated."""

    def weight_copies(self, size: int) -> int:
        """How many weights of `size` bytes to rotate so that each comes from memory."""

    def activation_copies(self, size: int) -> int:
        """The same for the activations."""

    def stopwatch(self, calls: Sequence[Launch]) -> Stopwatch:
        """Warms the calls up and settles how often a round makes them."""

    def machine(self) -> dict[str, Any]:
        """What the numbers are taken on."""

    def clear(self) -> None:
        """Gives back the memory of the case that is done."""


class CpuClock:
    budget_seconds = 2.0
    checked_weight = 2**24
    bandwidth = None
    tops = None
    slice_seconds = 0.02  # a round is at least this long
    copies_bytes = 2**30  # at most this much memory goes into the copies of a weight

    def weight_copies(self, size: int) -> int:
        copies = max(2, math.ceil(2 * machine.last_level_cache() / size))
        return min(copies, 1000, max(1, self.copies_bytes // size))

    def activation_copies(self, size: int) -> int:
        return 1

    def stopwatch(self, calls: Sequence[Launch]) -> Stopwatch:
        def seconds(times: int) -> float:
            start = time.perf_counter()
            for call in itertools.islice(itertools.cycle(calls), times):
                call()
            return (time.perf_counter() - start) / times

        once = seconds(1)
        times = max(1, math.ceil(self.slice_seconds / once))
        return Stopwatch(lambda: seconds(times), once * times, calls)

    def machine(self) -> dict[str, Any]:
        return machine.cpu()

    def clear(self) -> None:
        pass


class CudaGraphClock:
    """A round is one replay of a CUDA graph that holds the calls one after the other.

    So no time of the host is in it, as in a server that replays its graphs. Outputs are allocated
    in the graph's own pool, one after the other in the same place.
    """

    budget_seconds = 0.2
    checked_weight = 2**22
    shortest, longest = 1e-3, 2e-2  # seconds of a replay
    cold_bytes = 160e6  # together the copies are at least this large, and three times the L2
    activations_from_memory = 2**22  # bytes; smaller ones the layer before has left in the L2
    head_start = 4_000_000  # cycles, about 2 ms, for which the GPU waits while the host launches
    # After a contender that needs less power a GPU at its power limit runs faster, for tens of
    # milliseconds. So where a call is heavy, each runs a while before it is timed. Seconds.
    heavy, settle = 5e-5, 60e-3

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cold_bytes = max(self.cold_bytes, 3 * getattr(properties, "L2_cache_size", 0))
        self.bandwidth = self._copy_bandwidth()
        self.tops = machine.gpu_tops()

    def weight_copies(self, size: int) -> int:
        return min(1000, max(3, math.ceil(self.cold_bytes / size)))

    def activation_copies(self, size: int) -> int:
        return self.weight_copies(size) if size > self.activations_from_memory else 1

    def stopwatch(self, calls: Sequence[Launch]) -> Stopwatch:
        torch.cuda.synchronize()  # the operands are made on another stream
        endless = itertools.cycle(calls)
        with torch.cuda.stream(self.stream):
            for call in itertools.islice(endless, 3):
                call()
        once = self._seconds([next(endless) for _ in range(5)]) / 5
        longest = max(1, int(self.longest / once))
        times = min(longest, max(len(calls), math.ceil(self.shortest / once)))
        if times > len(calls):  # whole turns: every copy is equally long ago
            times -= times % len(calls)
        graph = self._capture([calls[i % len(calls)] for i in range(times)])
        self._seconds([graph.replay])  # the first replay uploads the graph
        round_seconds = self._seconds([graph.replay])
        settling = math.ceil(self.settle / round_seconds) if once > self.heavy else 0

        def seconds() -> float:
            with torch.cuda.stream(self.stream):
                for _ in range(settling):
                    graph.replay()
            return self._seconds([graph.replay], wait=not settling) / times

        return Stopwatch(seconds, round_seconds, calls)

    def machine(self) -> dict[str, Any]:
        return machine.gpu(self.bandwidth, self.tops)

    def clear(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _seconds(self, calls: Sequence[Launch], *, wait: bool = True) -> float:
        """GPU time of everything that `calls` launch, without gaps between the launches: the GPU
        waits first, unless it has work already."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self.stream):
            if wait:
                torch.cuda._sleep(self.head_start if len(calls) > 1 else self.head_start // 20)
            start.record()
            for call in calls:
                call()
            end.record()
        end.synchronize()
        return 1e-3 * start.elapsed_time(end)

    def _capture(self, calls: Sequence[Launch]) -> torch.cuda.CUDAGraph:
        # Not `torch.cuda.graph`, which empties the allocator's cache: hundreds are made in a run.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            except BaseException as reason:
                try:
                    graph.capture_end()
                except RuntimeError:
                    raise reason from None  # the second error only says that there was a first
                raise
            graph.capture_end()
        return graph

    def _copy_bandwidth(self) -> float:
        """Bytes read and written a second by a copy of 1 GiB, median of 20."""
        source = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
        target = torch.zeros_like(source)
        torch.cuda.synchronize()
        times = [self._seconds([lambda: target.copy_(source)]) for _ in range(20)]
        return 2 * source.numel() / statistics.median(times)


def in_short(reason: Exception) -> str:
    """What a table says of a contender that failed."""
    return (str(reason).strip() or type(reason).__name__).splitlines()[0][:60]


def rounds_in_turns(
    contenders: Mapping[K, Callable[[], Stopwatch]],
    rounds: int,
    budget_seconds: float = math.inf,
    failed: dict[K, str] | None = None,
) -> dict[K, list[float]]:
    """Seconds of a call of each contender, for each round: all take turns, every other round in
    reverse. Whose rounds would take more than the budget takes part in fewer, the first ones.

    Args:
        contenders: what makes each ready; all are, before the first round.
        failed: who raises is told of here, and the others go on. None: it ends all.
    """
    ready = dict[K, Stopwatch]()
    times = dict[K, list[float]]()

    @contextmanager
    def others_go_on(key: K) -> Iterator[None]:
        try:
            yield
        except Exception as reason:  # one may fail in any way it likes
            if failed is None:
                raise
            failed[key] = in_short(reason)
            times.pop(key, None)

    for key, make in contenders.items():
        with others_go_on(key):
            ready[key], times[key] = make(), []
    for i in range(rounds):
        for key in [*times][:: -1 if i % 2 else 1]:
            if i < max(1, round(min(rounds, budget_seconds / ready[key].round_seconds))):
                with others_go_on(key):
                    times[key].append(ready[key].seconds())
    return times


def clock_of(device: str) -> Clock:
    """The clock of a --device.

    Raises:
        ValueError: it is cuda, and there is none.
    """
    if device == "cpu":
        return CpuClock()
    if not torch.cuda.is_available():
        raise ValueError(f"--device must be cpu where torch sees no GPU, got {device}")
    return CudaGraphClock()
