"""The pass over inductor's graphs: what it finds, that bits are those of the producers, and that
what it needs of torch is where it was."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import activated, assert_bits
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional

import scaled_mm
from scaled_mm import QuantConfig, quantize_model
from scaled_mm.integrations import inductor
from scaled_mm.integrations.patterns import FUNCTIONS, patterns
from scaled_mm.nn import ScaledLinear

pytestmark = pytest.mark.usefixtures("no_gradients")

PRODUCE = torch.ops.scaled_mm.produce_int8.default
QUANTIZERS = (
    torch.ops.scaled_mm.quantize_int8.default,
    torch.ops.scaled_mm.quantize_int8_static.default,
    torch.ops.scaled_mm.scaled_linear.default,
)


def compiled(
    model: Callable[..., Any], found: list[fx.Graph], fullgraph: bool = True, **options: Any
) -> Any:
    """torch.compile of the model as far as inductor's pass, and the graph run as it is then."""

    def finish(module: fx.GraphModule, _: Any) -> Any:
        inductor.InductorPass()(module.graph)
        module.graph.lint()
        module.recompile()
        found.append(module.graph)
        return module

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=finish, inference_compiler=finish, decompositions=select_decomp_table()
    )
    return torch.compile(model, backend=backend, fullgraph=fullgraph, **options)


def producers(graph: fx.Graph) -> dict[str, int]:
    names = (
        str(n.args[0]) + (" of a sum" if "residual" in n.kwargs else "")
        for n in graph.nodes
        if n.target is PRODUCE
    )
    return dict(Counter(names))


def quantizers(graph: fx.Graph) -> int:
    return sum(n.target in QUANTIZERS for n in graph.nodes)


class RMSNorm(nn.Module):
    """As transformers writes Llama's."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns))
        self.variance_epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class MLP(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def options_of(layer: Any) -> dict[str, Any]:
    """How a layer quantises its input, as a producer takes it."""
    given = {"scale": layer.input_scale, "azp": layer.input_zero_point}
    return {"symmetric": layer.symmetric, "rotate": layer.rotate, **given}


def normed(norm: Any, x: Tensor, *layers: Any) -> list[Tensor]:
    """Each layer's product with what the producer makes of the norm; then the norm as floats."""
    wide = torch.finfo(x.dtype if x.dtype != torch.bfloat16 else torch.float32).eps
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None)) or wide
    given: dict[str, Any] = {"x": x, "weight": norm.weight, "eps": eps, "normed": True}
    produce = scaled_mm.rms_norm_quantize_int8
    if isinstance(norm, nn.LayerNorm):
        given["bias"] = norm.bias
        produce = scaled_mm.layer_norm_quantize_int8
    outs = []
    for layer in layers:
        q, scale, azp, _, y = produce(**given, **options_of(layer))
        outs.append(layer.multiply(q, scale, azp, x.dtype))
    return [*outs, y]


class Block(nn.Module):
    """Two residuals, as a Llama's; a GELU or the like for `act`."""

    def __init__(self, norm: Callable[[], nn.Module], act: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(), norm()
        self.q, self.k, self.o = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.mlp = MLP(act)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.o(torch.sin(self.q(y)) + self.k(y))
        return x + self.mlp(self.norm2(x))

    def defined(self, x: Tensor, act: str) -> Tensor:
        """What a compiled model computes, by the producers themselves."""
        q, k, _ = normed(self.norm1, x, self.q, self.k)
        x = x + self.o(torch.sin(q) + k)
        gate, up, _ = normed(self.norm2, x, self.mlp.gate, self.mlp.up)
        return x + activated(self.mlp.down, gate, act, up)


NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "rms": (partial(nn.RMSNorm, 64, eps=1e-5), "rms_norm"),
    "rms of default eps": (partial(nn.RMSNorm, 64), "rms_norm"),
    "rms of transformers": (partial(RMSNorm, 64), "rms_norm"),
    "layer": (partial(nn.LayerNorm, 64), "layer_norm"),
    "layer without bias": (partial(nn.LayerNorm, 64, bias=False), "layer_norm"),
}
ACTS = {"silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "relu": nn.ReLU()}
SCHEMES = ("dynamic", "dynamic-asymmetric", "static", "static-asymmetric", "dynamic-rotate32")


def traced(model: Callable[..., Any], *given: Tensor) -> tuple[Any, fx.Graph]:
    """The output of `model` when it is compiled, and its one graph."""
    graphs: list[fx.Graph] = []
    out = compiled(model, graphs)(*given)
    (graph,) = graphs
    return out, graph


def in_turn(values: Iterable[str]) -> list[Any]:
    """Each value with each dtype; in `make test` with one of them, in turn."""
    pairs = []
    for i, value in enumerate(values):
        for j, dtype in enumerate((torch.float32, torch.bfloat16)):
            marks = [] if i % 2 == j else [pytest.mark.slow]
            pairs.append(pytest.param(value, dtype, id=f"{value}-{str(dtype)[6:]}", marks=marks))
    return pairs


@pytest.mark.parametrize(("norm", "dtype"), in_turn(NORMS))
def test_bits_are_those_of_the_producers(norm: str, dtype: torch.dtype) -> None:
    place = list(NORMS).index(norm)
    act, scheme = list(ACTS)[place % 4], SCHEMES[place % 5]
    torch.manual_seed(place)
    make, producer = NORMS[norm]
    model, x = Block(make, ACTS[act]).to(dtype), torch.randn(2, 5, 64).to(dtype)
    quantized: Any = quantize_model(model, QuantConfig(scheme), [x])
    got, graph = traced(quantized, x)
    assert_bits(got, quantized.defined(x, act))
    apart = 2 * ("static" in scheme)  # each reader's scale is its own
    assert producers(graph) == {producer: 1 + apart, f"{producer} of a sum": 1, act: 1}
    assert quantizers(graph) == 1  # the input of o


class PostNorm(nn.Module):
    """Two residuals that are normed, as BERT's: the next sums read the norms too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.q, self.k, self.o = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.up, self.act, self.down = nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y = self.norm2(y + self.o(torch.sin(self.q(y)) + self.k(y)))
        return y + self.down(self.act(self.up(y)))

    def defined(self, x: Tensor) -> Tensor:
        q, k, y = normed(self.norm1, x, self.q, self.k)
        up, y = normed(self.norm2, y + self.o(torch.sin(q) + k), self.up)
        return y + activated(self.down, up, "gelu")


@pytest.mark.parametrize(("scheme", "dtype"), in_turn(SCHEMES))
def test_norms_that_residuals_read_too(scheme: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = PostNorm().to(dtype), torch.randn(2, 5, 64).to(dtype)
    quantized: Any = quantize_model(model, QuantConfig(scheme), [x])
    got, graph = traced(quantized, x)
    assert_bits(got, quantized.defined(x))
    apart = 1 * ("static" in scheme)
    assert producers(graph) == {"layer_norm": 1 + apart, "layer_norm of a sum": 1, "gelu": 1}
    assert quantizers(graph) == 1  # the input of o
    assert not any("norm" in str(n.target) or "mean" in str(n.target) for n in graph.nodes)


def test_smaller_shapes_are_the_same_program() -> None:
    torch.manual_seed(0)
    model, x = Block(NORMS["layer"][0], ACTS["gelu"]), torch.randn(2, 6, 64)
    quantized: Any = quantize_model(model)
    graphs: list[fx.Graph] = []
    program = compiled(quantized, graphs, dynamic=True)
    for rows in (6, 3, 5, 4):
        fewer = x[:, :rows].contiguous()
        assert_bits(program(fewer), quantized.defined(fewer, "gelu"))
    assert len(graphs) <= 2  # the first may be of its own size


def quantized(y: Tensor, **options: Any) -> Tensor:
    q, scale, _ = scaled_mm.quantize_int8(y, **options)
    return q.float() * scale


def root(x: Tensor) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


WEIGHT = torch.linspace(0.5, 1.5, 64)
STAY: dict[str, Callable[[Tensor], Any]] = {
    "an activation that others read": lambda x: (y := x.relu(), quantized(y)),
    "between": lambda x: (r := root(x), quantized(WEIGHT * (x * r)))[1] + r,
    "one scale for all": lambda x: quantized(x.relu(), per_token=False),
    "another function": lambda x: quantized(x.tanh()),
    "a factor that is broadcast": lambda x: quantized(x.relu() * x[:, :1]),
    "columns that are no dimension of a norm": lambda x: quantized(
        functional.layer_norm(x, tuple(x.shape), None, None)
    ),
    "a root of something else": lambda x: quantized(
        WEIGHT * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6))
    ),
    "squares of another": lambda x: quantized(
        WEIGHT * (x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6))
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    x = torch.randn(64, 64)
    got, graph = traced(STAY[name], x)
    assert not producers(graph)
    for one, two in zip(got, STAY[name](x), strict=True):
        torch.testing.assert_close(one, two)


NORMED: dict[str, Callable[[Tensor], Tensor]] = {
    "weight first": lambda x: WEIGHT * (x * root(x)),
    "weight last": lambda x: (x * root(x)) * WEIGHT,
    "root first": lambda x: WEIGHT * (root(x) * x),
}


@pytest.mark.parametrize("order", NORMED)
def test_factors_in_any_order(order: str) -> None:
    _, graph = traced(lambda x: quantized(NORMED[order](x)), torch.randn(4, 64))
    assert producers(graph) == {"rms_norm": 1}


def test_quantisers_that_do_the_same_are_one() -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        return quantized(x), quantized(x), quantized(x, symmetric=False), quantized(x + 1)

    x = torch.randn(4, 64)
    got, graph = traced(several, x)
    assert quantizers(graph) == 3
    for one, two in zip(got, several(x), strict=True):
        assert_bits(one, two)


def test_a_layer_with_a_function_of_its_own() -> None:
    """It does not share the quantiser of those that read the same tensor."""
    one, two, three = (ScaledLinear.from_linear(nn.Linear(64, n)) for n in (32, 48, 16))
    x = torch.randn(3, 64)

    def program(x: Tensor) -> list[Tensor]:
        return [one(x), two.activated(x, "silu"), three(x), three.activated(x, "silu", x)]

    got, graph = traced(program, x)
    for y, expected in zip(got, program(x), strict=True):
        assert_bits(y, expected)
    assert quantizers(graph) == 3


@pytest.mark.parametrize("form", ["other dtype", "broadcast", "factor", "weight from the sum"])
def test_sums_that_stay(form: str) -> None:
    def sums(x: Tensor, y: Tensor) -> Tensor:
        h = torch.add(x, y, alpha=2) if form == "factor" else x + y
        w = h[0].float().abs() if form == "weight from the sum" else None
        q, scale, *_ = scaled_mm.rms_norm_quantize_int8(h, w, 1e-5)
        return q.float() * scale + h

    x = torch.randn(4, 64).bfloat16()
    y = {"other dtype": x.float(), "broadcast": x[:1]}.get(form, x.flip(0))
    got, graph = traced(sums, x, y)
    assert_bits(got, sums(x, y))
    assert producers(graph) == {"rms_norm": 1}


@pytest.mark.parametrize("normed", [False, True])
def test_a_static_layer_that_reads_the_same_twice(normed: bool) -> None:
    """Its quantiser gives one tensor, and no parts."""
    torch.manual_seed(6)
    norm = nn.LayerNorm(64) if normed else nn.Identity()
    first = ScaledLinear.from_linear(nn.Linear(64, 8), dynamic=False, input_scale=torch.tensor(0.1))
    second = ScaledLinear.from_linear(nn.Linear(64, 8), dynamic=False, input_scale=torch.ones(()))
    second.input_scale = first.input_scale

    def program(x: Tensor) -> tuple[Tensor, ...]:
        y = norm(x)
        return first(y), first(y), second(y)

    x = torch.randn(5, 64)
    got, graph = traced(program, x)
    assert quantizers(graph) == int(not normed)
    assert producers(graph) == ({"layer_norm": 1} if normed else {})
    for one, two in zip(got, program(x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_what_it_needs_of_torch_is_there() -> None:
    """Where this fails a new torch has moved something; `inductor.py` and `patterns.py` alone know
    of it."""
    assert inductor._SLOT in torch._inductor.list_options()
    assert {p.producer for p in patterns()} == {name for name, _, _ in FUNCTIONS}
    assert isinstance(inductor.InductorPass().uuid(), str)
    given = inductor.options(max_autotune=False)
    assert set(given) == {inductor._SLOT, "max_autotune"}
    copied = copy.deepcopy(given)  # as transformers' generate does
    assert copied[inductor._SLOT].uuid() == given[inductor._SLOT].uuid()


def test_a_torch_without_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor, "list_options", list)
    with pytest.raises(RuntimeError, match=r"^torch .* must have inductor's joint_custom_pre_pass"):
        inductor.options()


def test_inductor_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `torch.compile` itself, on a program small enough that inductor takes little time."""
    torch._dynamo.reset()
    calls: list[dict[str, int]] = []
    whole = inductor.InductorPass.__call__

    def counted(self: inductor.InductorPass, graph: fx.Graph) -> None:
        whole(self, graph)
        calls.append(producers(graph))

    monkeypatch.setattr(inductor.InductorPass, "__call__", counted)
    x, w = torch.randn(4, 64).bfloat16(), torch.randn(64).bfloat16()

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_mm.quantize_int8(functional.layer_norm(x, (64,), w))[:2]

    options = inductor.options(fx_graph_cache=False)
    got = torch.compile(program, options=options)(x)
    want = scaled_mm.layer_norm_quantize_int8(x, w, None, 1e-5)
    for one, two in zip(got, want, strict=False):
        assert_bits(one, two)
    assert calls == [{"layer_norm": 1}]
