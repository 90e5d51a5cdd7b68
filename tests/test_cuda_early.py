"""Products that read their weight early ("Early weights" in docs/tuning.md) behind late writers:
they read what was written, whatever memory, stream, graph or layer it comes through."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cuda_mixed_cases import MixedCase, arms
from cuda_support import DEVICE, GPU, ON_CPU, ROWS, count, forced, how_many_differ, streams_only
from test_cuda_streams import sleep
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

import scaled_mm
from scaled_mm import MixedWeight, PackedWeight, pack_weight_int8
from scaled_mm.nn import ScaledLinear

pytestmark = [*GPU, streams_only]

M, N, K = 8, 1024, 2048
TURNS = 12


def int8(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randint(-127, 128, shape, device=DEVICE, generator=generator, dtype=torch.int8)


class Written:
    """Weights [K, N] that are written one after the other, and the product of a with each."""

    def __init__(self) -> None:
        self.a = int8(M, K, seed=99)
        self.weights = [int8(N, K, seed=i).t() for i in range(TURNS)]
        self.products = [(self.a.double() @ b.double()).int() for b in self.weights]
        torch.cuda.synchronize()

    def assert_right(self, got: list[Tensor], row: str) -> None:
        torch.cuda.synchronize()
        different = how_many_differ(got, self.products)
        count(row or "chosen", sum(x.numel() for x in got), sum(different))
        assert not any(different), (row, different)


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


every_row = pytest.mark.parametrize("row", ROWS)


def warm_up(written: Written) -> None:
    """Loads the kernels, so that calls come back while the device is behind."""
    scaled_mm.int8_mm(written.a, pack_weight_int8(written.weights[0]))
    torch.cuda.synchronize()


@every_row
def test_right_after_the_pack(written: Written, row: str) -> None:
    """In memory that held the weight before, which the product ahead may still be reading."""
    with forced(row):
        warm_up(written)
        got, places = [], set()
        sleep(5)
        for b in written.weights:
            packed = pack_weight_int8(b)
            assert packed.settled
            places.add(packed.data.data_ptr())
            got.append(scaled_mm.int8_mm(written.a, packed))
            del packed
        written.assert_right(got, row)
    assert len(places) < TURNS


@every_row
def test_in_a_graph(written: Written, row: str) -> None:
    """Packed there and multiplied at once, from a weight that is written as the graph begins."""
    b, got = torch.empty_like(written.weights[0]), []
    with forced(row):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = scaled_mm.int8_mm(written.a, pack_weight_int8(b))
        for weight in written.weights:
            b.copy_(weight)
            graph.replay()
            got.append(out.clone())
        written.assert_right(got, row)


@every_row
def test_packed_before_a_graph(written: Written, row: str) -> None:
    """The graph begins with the product; the pack is queued right ahead of it."""
    with forced(row):
        warm_up(written)
        graphs, packed, got = [], [pack_weight_int8(b) for b in written.weights], []
        for weight in packed:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                got.append(scaled_mm.int8_mm(written.a, weight))
        right = [x.data.clone() for x in packed]
        for weight in packed:
            weight.data.zero_()
        sleep(5)
        for weight, data, graph in zip(packed, right, graphs, strict=True):
            weight.data.copy_(data)
            graph.replay()
        written.assert_right(got, row)


@every_row
def test_packed_on_another_stream(written: Written, row: str) -> None:
    """Joined by an event each way."""
    one, other, got = torch.cuda.Stream(), torch.cuda.Stream(), []
    with forced(row):
        warm_up(written)
        for b in written.weights:
            with torch.cuda.stream(one):
                sleep(1)
                packed = pack_weight_int8(b)
                done = one.record_event()
            with torch.cuda.stream(other):
                other.wait_event(done)
                got.append(scaled_mm.int8_mm(written.a, packed))
            one.wait_stream(other)
        written.assert_right(got, row)


@every_row
def test_a_plain_weight_overwritten(written: Written, row: str) -> None:
    b, got = torch.empty_like(written.weights[0]), []
    with forced(row):
        warm_up(written)
        sleep(5)
        for weight in written.weights:
            b.copy_(weight)
            got.append(scaled_mm.int8_mm(written.a, b))
        written.assert_right(got, row)


@every_row
def test_a_plain_weight_by_a_kernel_that_lets_others_start(written: Written, row: str) -> None:
    """The quantiser, which does so at its beginning; into memory that held another weight."""
    wide = [b.t().float() * 2**-7 for b in written.weights]
    scale, got = torch.tensor([2.0**-7], device=DEVICE), []
    with forced(row):
        warm_up(written)
        sleep(5)
        for w in wide:
            q = scaled_mm.quantize_int8(w, scale=scale)[0]
            got.append(scaled_mm.int8_mm(written.a, q.t()))
            del q
        written.assert_right(got, row)


COPIES: dict[str, Callable[[PackedWeight], PackedWeight]] = {
    "constructor": lambda packed: PackedWeight(packed.data.clone(), packed.k, packed.n),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("name", COPIES)
@every_row
def test_copies_are_not_read_early(written: Written, row: str, name: str) -> None:
    with forced(row):
        warm_up(written)
        packed, got = [pack_weight_int8(b) for b in written.weights], []
        sleep(5)
        for weight in packed:
            other = COPIES[name](weight)
            assert weight.settled and not other.settled
            got.append(scaled_mm.int8_mm(written.a, other))
            del other
        written.assert_right(got, row)


def quantised(weight: MixedWeight) -> MixedWeight:
    """Its bytes by a kernel that lets others start."""
    x = weight.data.view(torch.int8).float()
    one, none = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE, dtype=torch.int32)
    q = scaled_mm.quantize_int8(x, scale=one, azp=none, symmetric=False)[0]
    return weight.on(q.view(weight.dtype))


MIXED_COPIES: dict[str, Callable[[MixedWeight], MixedWeight]] = {
    "quantised": quantised,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def few_bits() -> Iterator[tuple[str, int, str]]:
    for name in MIXED_COPIES:
        yield from ((name, bits, kernel) for bits in (4, 8) for kernel in arms(bits))


@pytest.mark.parametrize(("name", "bits", "kernel"), few_bits())
def test_copies_of_few_bits_are_not_read_early(name: str, bits: int, kernel: str) -> None:
    """In memory that held another weight; small integers, whose sums are exact."""
    x = int8(M, K, seed=7).remainder(5).sub(2).bfloat16()
    weights = [MixedCase(turn, N, K, 128, bits, exact=True).weight() for turn in range(TURNS)]
    expected = [(x.double() @ w.dequantize().double()).bfloat16() for w in weights]
    with forced(kernel):
        scaled_mm.mixed_mm(x, MIXED_COPIES[name](weights[0]))
        torch.cuda.synchronize()
        got = []
        sleep(5)
        for weight in weights:
            other = MIXED_COPIES[name](weight)
            assert weight.settled and not other.settled
            got.append(scaled_mm.mixed_mm(x, other))
            del other
        torch.cuda.synchronize()
    different = how_many_differ(got, expected)
    count(kernel or "chosen", sum(y.numel() for y in got), sum(different))
    assert not any(different), (kernel, different)


@every_row
def test_everything_else_is_read_late(written: Written, row: str) -> None:
    """Activations and what the epilogue reads, written right ahead of the product."""
    packed, generator = pack_weight_int8(written.weights[0]), torch.Generator(DEVICE).manual_seed(5)

    def operands() -> dict[str, Tensor]:
        normal = {"device": DEVICE, "generator": generator}
        return {
            "a": int8(M, K, seed=int(torch.randint(2**30, (), **normal))),
            "scale_a": torch.randn(M, 1, **normal),
            "scale_b": torch.randn(1, N, **normal),
            "bias": torch.randn(1, N, **normal),
            "azp": torch.randint(-128, 128, (M, 1), **normal, dtype=torch.int32),
            "azp_adj": torch.randint(-(2**20), 2**20, (1, N), **normal, dtype=torch.int32),
            "residual": torch.randn(M, N, **normal),
        }

    turns = [operands() for _ in range(TURNS)]
    here = {name: torch.zeros_like(x) for name, x in turns[0].items()}
    with forced(row):
        want = [scaled_mm.scaled_mm(b=written.weights[0], **turn) for turn in turns]
        torch.cuda.synchronize()
        got = []
        sleep(5)
        for turn in turns:
            for name, x in turn.items():
                here[name].copy_(x)
            got.append(scaled_mm.scaled_mm(b=packed, **here))
        torch.cuda.synchronize()
    different = how_many_differ(got, want)
    assert not any(different), (row, different)


def layer(k: int = 64, n: int = 32) -> ScaledLinear:
    torch.manual_seed(0)
    return ScaledLinear.from_linear(nn.Linear(k, n, bias=False)).to(DEVICE)


def fresh(module: ScaledLinear, weight: Tensor, x: Tensor) -> Tensor:
    """What a layer with this weight makes of x; the weight was never another."""
    other = ScaledLinear(module.in_features, module.out_features, bias=False).to(DEVICE)
    other.load_state_dict({"weight": weight, "weight_scale": module.weight_scale})
    torch.cuda.synchronize()
    return other(x)


def is_early(module: ScaledLinear) -> bool:
    return module.packed is not None and module.packed.settled


def test_no_stale_weight_in_a_layer() -> None:
    x, module = torch.randn(3, 64, device=DEVICE), layer()
    old = module.weight_int8
    for turn in range(4):
        sign = (-1) ** turn
        module.set_weight(sign * old)
        assert is_early(module)
        assert torch.equal(module(x), fresh(module, sign * old, x)), turn


class Calls(TorchDispatchMode):
    """What products are called with by name; of a layer's one op, what it has in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[dict[str, Any]] = []

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op is torch.ops.scaled_mm.scaled_mm.default:
            self.named.append(dict(kwargs or {}))
        if op is torch.ops.scaled_mm.scaled_linear.default:
            self.named.append({"b_settled": args[5]})
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("k", [64, 60])
def test_a_layer_tells_the_product(k: int) -> None:
    """A copy packs its own, and tells too."""
    module, x = layer(k), torch.randn(3, k, device=DEVICE)
    with Calls() as calls:
        module(x)
        copy.deepcopy(module)(x)
    assert [named.get("b_settled", False) for named in calls.named] == [True, True]


@pytest.mark.parametrize("k", [64, 60])
def test_a_layer_in_a_compiled_graph_tells_it_too(k: int) -> None:
    graphs: list[fx.Graph] = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return module

    module, x = layer(k), torch.randn(3, k, device=DEVICE)
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(module, backend=keep)(x), module(x))
    (graph,) = graphs
    linear = torch.ops.scaled_mm.scaled_linear.default
    assert [node.args[5] for node in graph.nodes if node.target is linear] == [True]


@every_row
def test_a_layer_written_on_one_stream_and_run_on_two(row: str) -> None:
    """On each of them right behind what was queued there, a late writer on the first."""
    module, x = layer(K, N), torch.randn(M, K, device=DEVICE)
    turns = [int8(N, K, seed=i) for i in range(TURNS)]
    side, got = torch.cuda.Stream(), []
    with forced(row):
        want = [fresh(module, weight, x) for weight in turns]
        torch.cuda.synchronize()
        for weight in turns:
            main = torch.cuda.current_stream()
            sleep(1)
            module.set_weight(weight)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                got.append(module(x))
            got.append(module(x))
            main.wait_stream(side)
        torch.cuda.synchronize()
    assert is_early(module)
    different = how_many_differ(got, [x for x in want for _ in range(2)])
    assert not any(different), (row, different)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(ON_CPU, reason="graphs of a GPU")
def test_a_compiled_layer_follows_its_weight() -> None:
    torch._dynamo.reset()
    module, x = layer(), torch.randn(3, 64, device=DEVICE)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    module(x)
    for _ in range(3):
        want = fresh(module, module.weight_int8, x)
        assert torch.equal(compiled(x), want)
        assert torch.equal(module(x), want)
        module.set_weight(-module.weight_int8)
    torch._dynamo.reset()
