"""Layers that share a product on the GPU: the bits of each alone, eager and in a CUDA graph, on two
streams; and a fused model's."""

import pytest
import torch
from cuda_support import DEVICE, GPU, ON_CPU
from helpers import Ops, assert_bits
from test_inductor import compiled
from test_together import PRODUCTS, SCHEMES, Attention
from torch import fx, nn

from scaled_mm import fuse_model, quantize_model
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.together import Together
from scaled_mm.quantization import readers

pytestmark = [*GPU, pytest.mark.usefixtures("no_gradients")]


def two(k: int, widths: tuple[int, ...], scheme: str) -> tuple[list[ScaledLinear], ...]:
    linears = [nn.Linear(k, n, device=DEVICE).bfloat16() for n in widths]
    options = {**SCHEMES[scheme]}
    if "smooth" in options:
        options["smooth"] = torch.linspace(0.5, 2, k)
    apart, joined = ([ScaledLinear.from_linear(x, **options) for x in linears] for _ in range(2))
    return apart, joined


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("widths", [(4096, 1024, 1024), (48, 16, 7)])
def test_bits(scheme: str, widths: tuple[int, ...]) -> None:
    for k in (64, 1024) if scheme == "rotate" else (64, 1000, 4096):
        apart, joined = two(k, widths, scheme)
        together = Together(joined)
        for m in (1, 16, 300):
            x = torch.randn(m, k, device=DEVICE).bfloat16()
            with Ops() as ops:
                got = [layer(x) for layer in joined]
            assert ops.names == ["scaled_linear"]
            for y, layer in zip(got, apart, strict=True):
                assert_bits(y, layer(x))
        assert joined[0].together is together


@pytest.mark.skipif(ON_CPU, reason="graphs and streams are CUDA's")
def test_graphs_and_streams() -> None:
    apart, joined = two(1024, (512, 256), "dynamic")
    together = Together(joined)
    x = torch.randn(16, 1024, device=DEVICE).bfloat16()
    for layer in joined:
        layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = [layer(x) for layer in joined]
    for _ in range(3):
        x.normal_()
        graph.replay()
        for y, layer in zip(got, apart, strict=True):
            assert_bits(y, layer(x))
    first, side = joined[0](x), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # not what another stream may still be writing
        second = joined[1](x)
    torch.cuda.synchronize()
    assert_bits(first, apart[0](x))
    assert_bits(second, apart[1](x))
    assert together.held is None


@pytest.mark.parametrize("scheme", ["dynamic", "asymmetric", "rotate"])
def test_in_a_compiled_graph(scheme: str) -> None:
    apart, joined = two(1024, (512, 256, 48), scheme)
    Together(joined)
    graphs: list[fx.Graph] = []
    program = compiled(lambda x: [layer(x) for layer in joined], graphs, dynamic=False)
    for m in (1, 16, 300):
        x = torch.randn(m, 1024, device=DEVICE).bfloat16()
        for layer in joined:
            layer(x)
        for y, layer in zip(program(x), apart, strict=True):
            assert_bits(y, layer(x))
    assert [sum(n.target in PRODUCTS for n in graph.nodes) for graph in graphs] == [1] * 3


def test_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "DEVICES", (DEVICE,))
    plain = quantize_model(nn.Sequential(*(Attention(False) for _ in range(2))).to(DEVICE))
    x = torch.randn(64, 64, device=DEVICE)
    fused = fuse_model(plain, x)
    with Ops() as ops:
        got = fused(x)
    assert ops.names == ["scaled_linear"] * 4
    assert_bits(got, plain(x))
