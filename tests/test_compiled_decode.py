"""A language model's decode under torch.compile: a quantised layer adds no node to the graph, and
no token compiles anew."""

from typing import Any

import pytest
import torch
from helpers import assert_bits, extra
from llamas import llama
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from scaled_mm import QuantConfig, quantize_model

pytestmark = pytest.mark.usefixtures("dynamo")

IDS = torch.arange(5).view(1, 5)


def model(scheme: str | None) -> nn.Module:
    made: nn.Module = llama(hidden_size=64, intermediate_size=96)
    return made if scheme is None else quantize_model(made, QuantConfig(scheme))


def decoded(called: Any, made: Any, count: int) -> list[torch.Tensor]:
    """Logits of tokens one by one, behind a prompt, with a cache of fixed size."""
    transformers = extra("transformers")
    cache = transformers.StaticCache(config=made.config, max_cache_len=16)
    made(input_ids=IDS, past_key_values=cache, use_cache=True)
    return [
        called(input_ids=IDS[:, :1] + i, past_key_values=cache, use_cache=True).logits
        for i in range(count)
    ]


def nodes(scheme: str | None) -> int:
    """Of the graph that inductor gets of a token; its logits are those of eager mode, but for the
    roundings that torch's decompositions change."""
    found: list[int] = []

    def count(module: fx.GraphModule, _: Any) -> Any:
        found.append(sum(node.op == "call_function" for node in module.graph.nodes))
        return module

    backend = aot_autograd(
        fw_compiler=count, inference_compiler=count, decompositions=select_decomp_table()
    )
    made = model(scheme)
    compiled = torch.compile(made, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        got = decoded(compiled, made, 4)
        for one, two in zip(got, decoded(made, made, 4), strict=True):
            assert (one - two).abs().max() < 0.1 * two.abs().max()
    (once,) = found
    return once


def test_a_layer_adds_no_nodes_and_no_compilations() -> None:
    most = nodes(None)
    for scheme in ("dynamic", "dynamic-asymmetric", "W8A16", "W4A16-g32"):
        torch._dynamo.reset()
        assert nodes(scheme) <= most, scheme


def test_a_layers_graph_is_one_op() -> None:
    made = quantize_model(nn.Sequential(nn.Linear(32, 32)).bfloat16())
    targets: list[Any] = []

    def keep(module: fx.GraphModule, _: Any) -> Any:
        targets.extend(node.target for node in module.graph.nodes if node.op == "call_function")
        return module

    backend = aot_autograd(fw_compiler=keep, inference_compiler=keep)
    x = torch.randn(3, 32).bfloat16()
    with torch.no_grad():
        assert_bits(torch.compile(made, backend=backend, fullgraph=True)(x), made(x))
    assert targets == [torch.ops.scaled_mm.scaled_linear.default]
