"""Streams, graphs, threads and repetition on the GPU: every op runs on the current stream, none
waits for the device, none keeps state from one call to the next."""

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from cuda_support import (
    DEVICE,
    GPU,
    ROWS,
    count,
    forced,
    how_many_differ,
    memory,
    named,
    on_device,
    streams_only,
)
from helpers import run_python
from operands import AZP_FORMS, COLUMN, ROW, Case, Layout, Matrix, Operands, Vector
from quantize_cases import QuantizeCase
from torch import Tensor

import scaled_mm

pytestmark = [*GPU, streams_only]

# Products that take each way through the host code: as it lies, laid out anew, few rows, long K.
PRODUCTS = (
    Case("plain", 130, 264, 320, bias=Vector("signed")),
    Case("token", 257, 120, 1040, **AZP_FORMS["token"], out_dtype=torch.float32),
    Case("few-rows", 5, 1000, 2048, bias=Vector("signed", dtype=torch.float32)),
    Case("long-k", 16, 48, 30_000, **AZP_FORMS["with_adj"], out_dtype=torch.float16),
    Case("laid-out-anew", 70, 97, 333, a_layout=COLUMN, b_layout=ROW, bias=Vector("signed")),
    Case("misaligned", 65, 96, 128, a_layout=Layout(offset=1), b_layout=Layout("column", offset=3)),
    Case("residual", 130, 264, 320, bias=Vector("signed"), residual=Matrix()),
    Case("residual-laid-out-anew", 65, 97, 128, residual=Matrix(layout=COLUMN)),
    Case("pairs", 33, 130, 320, **AZP_FORMS["token"], activation="reglu"),
)
QUANTISED = (
    QuantizeCase("token", "normal", (300, 1000), torch.bfloat16),
    QuantizeCase("tensor", "scaled", (300, 1000), symmetric=False, per_token=False),
    QuantizeCase("static", "wide", (70, 333), symmetric=False, scale=Vector(), azp=Vector("int8")),
    QuantizeCase("strided", "normal", (70, 333), torch.float16, COLUMN, symmetric=False),
)


def run(products: list[Operands], quantised: list[Operands]) -> Iterator[tuple[str, Tensor]]:
    """Every op on every case, but for the packed bytes, which each backend has its own way with."""
    for i, operands in enumerate(products):
        a, b = operands["a"], operands["b"]
        weight = scaled_mm.pack_weight_int8(b)
        yield f"scaled_mm {i}", scaled_mm.scaled_mm(**operands)
        yield f"scaled_mm packed {i}", scaled_mm.scaled_mm(**{**operands, "b": weight})
        yield f"int8_mm {i}", scaled_mm.int8_mm(a, b)
        yield f"int8_mm packed {i}", scaled_mm.int8_mm(a, weight)
        yield f"azp_adj {i}", scaled_mm.azp_adj(b)
        if "azp" in operands:
            zero = operands["azp"].flatten()[:1]
            yield f"azp_with_adj {i}", scaled_mm.azp_with_adj(weight, zero)
    for i, operands in enumerate(quantised):
        for name, x in named(scaled_mm.quantize_int8(**operands)).items():
            if x is not operands.get(name):  # a given scale comes back as it is
                yield f"quantize_int8 {i} {name}", x
        for name, x in named(scaled_mm.quantize_weight_int8(operands["x"])).items():
            yield f"quantize_weight_int8 {i} {name}", x


class Work:
    """Operands of every op on the device, and what the CPU makes of the same values."""

    def __init__(self, seed: int = 0, device: str = DEVICE) -> None:
        rng = np.random.default_rng(seed)
        here = [[case.build(rng=rng) for case in cases] for cases in (PRODUCTS, QUANTISED)]
        self.expected = {name: x.to(device) for name, x in run(*here)}
        self.operands = [[on_device(x, device) for x in operands] for operands in here]
        tensors = [x for group in self.operands for y in group for x in y.values()]
        self.memories = [memory(x) for x in tensors if isinstance(x, Tensor)]

    def run(self) -> dict[str, Tensor]:
        return dict(run(*self.operands))

    def differences(self, got: dict[str, Tensor]) -> list[int]:
        return how_many_differ(got.values(), (self.expected[name] for name in got))

    def assert_right(self, got: dict[str, Tensor], row: str = "", *context: object) -> None:
        different = self.differences(got)
        count(row or "chosen", sum(x.numel() for x in got.values()), sum(different))
        wrong = {name: n for name, n in zip(got, different, strict=True) if n}
        assert not wrong, (row, wrong, *context)

    def write(self, memories: list[Tensor]) -> None:
        """On the current stream, other values into the same operands."""
        for x, y in zip(self.memories, memories, strict=True):
            x.copy_(y)


def sleep(milliseconds: int) -> None:
    """Work for the current stream that takes long."""
    torch.cuda._sleep(milliseconds * 2_000_000)


@pytest.fixture(scope="module")
def works() -> list[Work]:
    return [Work(seed) for seed in range(8)]


@pytest.fixture
def work(works: list[Work]) -> Work:
    return works[0]


def late(work: Work) -> dict[str, Tensor]:
    """The ops, queued behind a slow kernel and the arrival of their operands; then waited for."""
    values = [x.clone() for x in work.memories]
    for x in work.memories:
        x.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sleep(30)
        work.write(values)
        got = work.run()
    stream.synchronize()
    return got


@pytest.mark.parametrize("row", ROWS)
def test_the_current_stream(work: Work, row: str) -> None:
    """On any other stream the operands would still be zeros."""
    with forced(row):
        work.assert_right(late(work), row)


@pytest.mark.parametrize("row", ROWS)
def test_nothing_waits_for_the_device(work: Work, row: str) -> None:
    with forced(row):
        work.run()  # loads the kernels and fills torch's cache of memory
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            sleep(500)
            got = work.run()
            queued = not torch.cuda.current_stream().query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        work.assert_right(got, row)
    assert queued, "the calls came back while the device still slept"


@pytest.mark.parametrize("row", ROWS)
def test_64_streams(works: list[Work], row: str) -> None:
    """Calls that overlap share no scratch memory. (torch has 32 streams of each priority.)"""
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(64)]
    torch.cuda.synchronize()
    for turn in range(2):
        got = []
        with forced(row):
            for i, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    got.append(works[i % 8].run())
        torch.cuda.synchronize()
        for i, outputs in enumerate(got):
            works[i % 8].assert_right(outputs, row, turn, i)


def assert_repeats(runs: int, *calls: Callable[[], Tensor]) -> None:
    """The same bytes every time; the device counts those that are not."""
    first = [call().view(torch.uint8) for call in calls]
    different = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(runs):
        for call, x in zip(calls, first, strict=True):
            different += (call().view(torch.uint8) != x).sum()
    assert different.item() == 0


@pytest.mark.parametrize("row", ROWS)
def test_a_thousand_products(work: Work, row: str) -> None:
    cases = dict(zip((case.name for case in PRODUCTS), work.operands[0], strict=True))
    calls = [lambda x=x: scaled_mm.scaled_mm(**x) for x in cases.values()]
    long = {**cases["long-k"], "b": scaled_mm.pack_weight_int8(cases["long-k"]["b"])}
    with forced(row):
        assert_repeats(1000, *calls, lambda: scaled_mm.scaled_mm(**long))


def test_a_thousand_quantisations(work: Work) -> None:
    for operands in work.operands[1]:
        assert_repeats(1000, lambda x=operands: scaled_mm.quantize_int8(**x)[0])
        x = operands["x"]
        assert_repeats(1000, lambda x=x: scaled_mm.quantize_int8(x, per_token=False)[1])


@pytest.mark.parametrize("row", ROWS)
def test_calls_from_many_threads(works: list[Work], row: str) -> None:
    torch.cuda.synchronize()

    def calls(work: Work) -> int:
        wrong = 0
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                wrong += sum(work.differences(work.run()))
        return wrong

    with forced(row), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(calls, works)) == [0] * 8


def capture(work: Work, **options: Any) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        got = work.run()
    return graph, got


def replay(graph: torch.cuda.CUDAGraph) -> None:
    graph.replay()
    torch.cuda.synchronize()


def capture_without_warm_up() -> None:
    """In a process that has not called any op: the first call of each row is a captured one."""
    work, other = Work(0), Work(1)
    originals = [x.clone() for x in work.memories]
    captured = []
    for row in ROWS:
        with forced(row):
            captured.append((row, *capture(work)))
    for _ in range(3):
        for values, right in ((other.memories, other), (originals, work)):
            work.write(values)
            for row, graph, got in captured:
                replay(graph)
                right.assert_right(got, row)
    print("right")


IN_A_FRESH_PROCESS = "import sys, test_cuda_streams; getattr(test_cuda_streams, sys.argv[1])()"


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_capture_without_warm_up(loading: str) -> None:
    options = {"CUDA_MODULE_LOADING": loading}
    assert run_python(IN_A_FRESH_PROCESS, "capture_without_warm_up", **options).strip() == "right"


@pytest.mark.parametrize("row", ROWS)
def test_graphs_and_calls_in_turn(work: Work, row: str) -> None:
    """Several graphs, one captured on a stream of its own, with ordinary calls between replays."""
    other = Work(1)
    with forced(row):
        graphs = [
            (work, *capture(work)),
            (other, *capture(other, stream=torch.cuda.Stream())),
            (work, *capture(work, capture_error_mode="thread_local")),
        ]
        for _ in range(3):
            for of, graph, got in graphs:
                for x in got.values():
                    x.zero_()
                replay(graph)
                of.assert_right(got, row)
                other.assert_right(other.run(), row)
            for of, _, got in graphs:
                of.assert_right(got, row, "after the calls")


def test_graphs_on_two_streams_at_once(work: Work) -> None:
    other = Work(1)
    both = [(work, *capture(work)), (other, *capture(other))]
    streams = [torch.cuda.Stream() for _ in both]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (_, graph, _) in zip(streams, both, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for of, _, got in both:
        of.assert_right(got)


def test_graph_of_a_forked_and_joined_stream(work: Work) -> None:
    """A capture that goes over two streams, as a model's side branch does."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            beside = work.run()
        got = work.run()
        main.wait_stream(side)
    for _ in range(5):
        replay(graph)
        work.assert_right(got)
        work.assert_right(beside)


@pytest.mark.parametrize(("m", "n"), [(0, 32), (16, 0), (0, 0)])
@pytest.mark.parametrize("k", [64, 63, 0])
def test_nothing_to_do_launches_nothing(m: int, n: int, k: int) -> None:
    """torch says so when a graph has captured nothing."""
    a, b = (torch.ones(size, k, dtype=torch.int8, device=DEVICE) for size in (m, n))
    scale, x = torch.ones(1, device=DEVICE), torch.ones(0, 64, device=DEVICE)
    weights = b.t(), b.t().contiguous(), scaled_mm.pack_weight_int8(b.t())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            for w in weights:
                assert scaled_mm.scaled_mm(a, w, scale, scale).shape == (m, n)
                assert scaled_mm.int8_mm(a, w).shape == (m, n)
            scaled_mm.quantize_int8(x, symmetric=False)
            if n == 0:
                scaled_mm.azp_adj(weights[2])
                scaled_mm.pack_weight_int8(b.t())
    assert any("CUDA Graph is empty" in str(w.message) for w in caught), "something was captured"
