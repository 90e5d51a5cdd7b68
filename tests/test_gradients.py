"""Gradients through quantised layers: of x and the bias, by the dequantised weight."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_support import GPU
from helpers import assert_bits
from llamas import llama
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import scaled_mm
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear
from scaled_mm.ops import gradients

K, N = 64, 24
STATIC = {"dynamic": False, "input_scale": 0.02}
SMOOTH = torch.linspace(0.5, 2, K)
INT8: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "dynamic-asymmetric": {"symmetric": False},
    "dynamic-tensor": {"per_token": False},
    "static": STATIC,
    "static-asymmetric": {**STATIC, "symmetric": False, "input_azp": 3},
    "smoothed": {"smooth": SMOOTH},
    "rotated": {**STATIC, "smooth": SMOOTH, "rotate": 32},
}
MIXED: dict[str, dict[str, Any]] = {
    "w8": {},
    "w4": {"bits": 4, "group_size": 32},
    "w4-asymmetric": {"bits": 4, "group_size": 32, "symmetric": False},
    "w4-pre-scale": {"bits": 4, "group_size": 32, "smooth": SMOOTH},
    **{f"w8-{name}": {"activation": name} for name in ("relu", "silu", "gelu", "gelu_tanh")},
}
LAYERS = [*INT8, *MIXED, "act-order"]
layers = pytest.mark.parametrize("name", LAYERS)


def layer(name: str) -> Any:
    torch.manual_seed(0)
    linear = nn.Linear(K, N)
    if name in INT8:
        return ScaledLinear.from_linear(linear, **INT8[name])
    if name in MIXED:
        return WeightOnlyLinear.from_linear(linear.bfloat16(), **MIXED[name])
    made = scaled_mm.quantize_weight_grouped(
        linear.weight.detach().half(), bits=4, group_size=32, symmetric=False
    )
    g_idx = torch.arange(K) % 2
    return WeightOnlyLinear.from_grouped(made, bits=4, g_idx=g_idx, bias=linear.bias)


def x_of(made: nn.Module, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    dtype = torch.float32 if isinstance(made, ScaledLinear) else made._dtype
    return torch.randn(*shape, K, generator=generator).to(dtype).requires_grad_()


def gradients_of(call: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    y = call(x)
    y.backward(dy)
    assert x.grad is not None
    return y.detach(), x.grad


def differences(made: Any, x: Tensor, dy: Tensor) -> Tensor:
    """Of sum(dy * layer(x)), central, one element of x after the other; the layer's formula in
    float64, with the weight dequantised and the activation not quantised."""
    weight, bias = made.weight.double(), made.bias.double()
    f = {
        None: lambda y: y,
        "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    }.get(kind := getattr(made, "activation", None)) or getattr(functional, kind)
    step = 1e-5 * torch.eye(x.numel(), dtype=torch.float64, device=x.device)
    step = step.view(-1, *x.shape)
    ends = [(f((x.detach() + h) @ weight.t() + bias) * dy).flatten(1).sum(1) for h in (step, -step)]
    return ((ends[0] - ends[1]) / 2e-5).view(x.shape)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@layers
def test_gradient_of_x(name: str, device: str) -> None:
    made = layer(name).to(device)
    for shape in ((3,), (2, 2), ()):
        x = x_of(made, *shape).detach().to(device).requires_grad_()
        with torch.no_grad():
            plain = made(x)
        dy = torch.randn(plain.shape, generator=torch.Generator().manual_seed(2)).to(x)
        y, dx = gradients_of(made, x, dy)
        assert_bits(y, plain)
        assert (dx.dtype, dx.shape) == (x.dtype, x.shape)
        expected = differences(made, x, dy)
        tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[x.dtype]
        assert (dx - expected).abs().max() <= tolerance * expected.abs().max()


@layers
def test_compiled_checkpointed_and_under_autocast(name: str) -> None:
    torch._dynamo.reset()
    made = layer(name)
    x, dy = x_of(made, 5), torch.ones(5, N)
    dy = dy.to(x.dtype)
    expected = gradients_of(made, x, dy)
    graph = torch.compile(made, fullgraph=True, backend="aot_eager")

    def automatic(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return made(x)

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "compiled": graph,
        "checkpointed": lambda x: checkpoint(made, x, use_reentrant=False),
        "autocast": automatic,
        "autocast, compiled": torch.compile(automatic, fullgraph=True, backend="aot_eager"),
    }
    for way, call in ways.items():
        for got, want in zip(gradients_of(call, x, dy), expected, strict=True):
            assert torch.equal(got, want), way


def test_opcheck() -> None:
    x = torch.randn(3, K, requires_grad=True)
    bias = torch.randn(N, requires_grad=True)
    for name in ("dynamic-asymmetric", "rotated"):
        made = layer(name)
        terms = made.packed.data, made.weight_scale, bias, K, False, made.input_smooth
        terms += made.symmetric, True, None, None, made.azp_adj, made.rotate
        torch.library.opcheck(gradients._int8_linear, (x, *terms))
    made = layer("w8-gelu")
    half = x.detach().bfloat16().requires_grad_()
    terms = made.packed.data, made.packed.sizes, None, None, bias, "gelu"
    torch.library.opcheck(gradients._mixed_linear, (half, *terms))


@pytest.mark.parametrize("name", [*INT8, *MIXED])
def test_bias_trains(name: str) -> None:
    """As a buffer that asks for a gradient, and as a parameter in the buffer's place."""
    for as_parameter in (False, True):
        made = layer(name)
        if as_parameter:
            made.bias = nn.Parameter(made.bias)
        else:
            made.bias.requires_grad_()
        x = x_of(made, 4).detach()
        dy = torch.ones(4, N, dtype=x.dtype)
        plain = layer(name)
        y = made(x)
        assert_bits(y.detach(), plain(x))
        y.backward(dy)
        assert made.bias.grad is not None and made.bias.grad.dtype == made.bias.dtype
        if getattr(made, "activation", None) is None:
            assert made.bias.grad.tolist() == [4.0] * N
        else:
            assert 0 < made.bias.grad.abs().max() <= 5
        state = {key: value.clone() for key, value in made.state_dict().items()}
        assert list(state) and state.keys() == plain.state_dict().keys()
        made.load_state_dict(state)
        assert_bits(made(x).detach(), plain(x))


@layers
def test_nothing_float_of_the_weights_size_is_kept(name: str) -> None:
    made = layer(name)
    x, kept = x_of(made, 2), []
    own = {t.data_ptr() for t in made.buffers()} | {x.data_ptr()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        made(x)
    assert all(t.data_ptr() in own or t.numel() < K * N / 4 for t in kept)


def test_raw_products_name_the_layers() -> None:
    x = torch.ones(2, K, requires_grad=True)
    for call in (
        lambda: scaled_mm.quantize_int8(x),
        lambda: scaled_mm.mixed_mm(x.bfloat16(), layer("w4").packed),
        lambda: scaled_mm.scaled_mm(torch.ones(2, 2).char(), torch.ones(2, 2).char(), x, x),
    ):
        with pytest.raises(ValueError, match=r"must not require grad .*nn\.ScaledLinear or nn\.W"):
            call()


def test_fused_modules_are_followed_part_by_part() -> None:
    made = [layer("dynamic"), nn.GELU(), ScaledLinear.from_linear(nn.Linear(N, 8))]
    x = x_of(made[0], 3)
    dy = torch.ones(3, 8)
    _, expected = gradients_of(nn.Sequential(*made), x, dy)
    _, got = gradients_of(scaled_mm.nn.fused.FusedSequential(*made), x, dy)
    assert_bits(got, expected)


@pytest.mark.parametrize("scheme", ["dynamic", "w8a16"])
def test_a_model_outside_no_grad(scheme: str) -> None:
    """Whose embedding trains; in eval mode, and with the layers of a block run again."""
    made = scaled_mm.quantize_model(llama(), scaled_mm.QuantConfig(scheme))
    table, ids = made.model.embed_tokens.weight.requires_grad_(), torch.arange(24).view(2, 12)
    with torch.no_grad():
        plain = made(ids).logits
    found = []
    for again in (False, True):
        if again:
            made.activation_checkpointing_enable()
            made.train()
        table.grad = None
        logits = made(ids).logits
        assert_bits(logits.detach(), plain)
        logits.float().square().mean().backward()
        found.append(table.grad.clone())
    assert found[0][:24].abs().sum(-1).min() > 0
    assert_bits(found[1], found[0])
