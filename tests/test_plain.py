"""The short way that `scaled_mm` takes for its commonest operands (`ops.eager.plain_product`): it
is taken where it should be, and nothing but time tells it from the general way."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import scaled_mm
from scaled_mm.nn import ScaledLinear, scaled_linear
from scaled_mm.ops import eager, int8


def int8_values(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(-128, 128, shape, np.int8))


A, B = int8_values(4, 24), int8_values(10, 24).t()
PACKED = scaled_mm.pack_weight_int8(B)
S_A, S_B = torch.linspace(0.1, 1, 4)[:, None], torch.linspace(-1, 1, 10)
BIAS = torch.linspace(-5, 5, 10)
OPERANDS = {"a": A, "b": B, "scale_a": S_A, "scale_b": S_B}


def watch(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[bool]:
    """Whether the module's function gave a product, for each call that came to it."""
    gone: list[bool] = []
    short = getattr(module, name)

    def watched(*operands: Any) -> Tensor | None:
        product = short(*operands)
        gone.append(product is not None)
        return product

    monkeypatch.setattr(module, name, watched)
    return gone


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the short way was gone, for each call that came to it."""
    return watch(monkeypatch, int8, "plain_product")


@pytest.mark.parametrize("b", [B, B.contiguous(), PACKED], ids=["plain", "row-major", "packed"])
@pytest.mark.parametrize("bias", [None, BIAS, BIAS.bfloat16()], ids=["", "float32", "bfloat16"])
def test_same_bits(ways: list[bool], b: Any, bias: Tensor | None) -> None:
    short = scaled_mm.scaled_mm(A, b, S_A, S_B, bias=bias)
    assert ways == [True]
    weight, packed = (b.data, {"b_shape": [24, 10]}) if b is PACKED else (b, {})
    general = torch.ops.scaled_mm.scaled_mm(A, weight, S_A, S_B, bias=bias, **packed)
    assert short.dtype == torch.bfloat16
    assert torch.equal(short.view(torch.int16), general.view(torch.int16))


def test_general_way_of_everything_else(ways: list[bool]) -> None:
    adj = scaled_mm.azp_adj(B)
    for options in (
        {"azp": torch.ones(4, 1, dtype=torch.int32), "azp_adj": adj},
        {"azp_with_adj": adj},
        {"residual": torch.ones(4, 10)},
        {"activation": "reglu"},
        {"out_dtype": torch.float32},
        {"out": torch.empty(4, 10, dtype=torch.bfloat16)},
    ):
        scaled_mm.scaled_mm(**OPERANDS, **options)
    assert ways == []


def test_settled_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(eager, "_scaled_mm_plain", lambda *given: told.append(given[4:]) or A)
    packed = scaled_mm.pack_weight_int8(B)
    scaled_mm.scaled_mm(A, packed, S_A, S_B)
    int8.settle(packed)
    scaled_mm.scaled_mm(A, packed, S_A, S_B, bias=BIAS)
    scaled_mm.scaled_mm(A, B, S_A, S_B)
    assert told == [(None, 24, 10, False), (BIAS, 24, 10, True), (None, -1, -1, False)]


@pytest.mark.parametrize("shape", [(24, -1), (-1, 10), (-2, -2)])
def test_half_a_shape_is_none(shape: tuple[int, int]) -> None:
    """Of the op: -1 and -1 together stand for a plain weight, and nothing else does."""
    said = (
        rf"^b_shape must be \(K, N\) with 0 <= K and 0 <= N <= .*, got \({shape[0]}, {shape[1]}\)"
    )
    with pytest.raises(ValueError, match=said):
        eager._scaled_mm_plain(A, PACKED.data, S_A, S_B, None, *shape, False)


@pytest.mark.parametrize("name", ["a", "b", "scale_a", "scale_b", "bias"])
def test_no_tensor(ways: list[bool], name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a Tensor, got list"):
        scaled_mm.scaled_mm(**{**OPERANDS, "bias": BIAS, name: [1.0]})
    assert ways == [False]


@pytest.mark.parametrize("name", ["scale_a", "scale_b", "bias"])
def test_gradients(ways: list[bool], name: str) -> None:
    operands = {**OPERANDS, "bias": BIAS}
    operands[name] = operands[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=f"{name} must not require grad"):
        scaled_mm.scaled_mm(**operands)
    assert ways == [False]
    with torch.no_grad():
        assert scaled_mm.scaled_mm(**operands).shape == (4, 10)


def test_operand_that_the_dispatcher_refuses(ways: list[bool]) -> None:
    with pytest.raises(ValueError, match=r"scale_a must be a dense tensor, got layout"):
        scaled_mm.scaled_mm(A, B, S_A.to_sparse(), S_B)
    assert ways == [False]


def a_layer(**options: Any) -> ScaledLinear:
    return ScaledLinear.from_linear(nn.Linear(24, 10).bfloat16().requires_grad_(False), **options)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether one op did all, for each call of a layer that asked it."""
    return watch(monkeypatch, scaled_linear, "quantized_product")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", ""])
@pytest.mark.parametrize("shape", [(24,), (2, 24), (0, 24), (2, 3, 24)])
def test_layer_in_one_op(
    ways: list[bool], at_once: list[bool], shape: tuple[int, ...], bias: bool, dtype: torch.dtype
) -> None:
    layer = ScaledLinear.from_linear(nn.Linear(24, 10, bias).requires_grad_(False))
    x = torch.linspace(-1, 1, 144)[: int(np.prod(shape))].reshape(shape).to(dtype)
    for given in (x, x.flip(-1).t().contiguous().t() if x.dim() == 2 else x):
        short = layer(given)
        assert (at_once, ways) == ([True], [])
        q, scale, _ = scaled_mm.quantize_int8(given)
        weight, scale_b = layer.weight_int8.t(), layer.weight_scale.view(1, -1)
        operands = {"bias": layer.bias, "out_dtype": dtype}
        expected = scaled_mm.scaled_mm(q, weight, scale, scale_b, **operands)
        assert (short.dtype, short.shape) == (dtype, (*shape[:-1], 10))
        assert torch.equal(short.view(torch.uint8), expected.view(torch.uint8))
        at_once.clear(), ways.clear()


def test_layers_that_are_no_single_op(at_once: list[bool]) -> None:
    x = torch.linspace(-1, 1, 48).reshape(2, 24).bfloat16()
    half, zero = torch.tensor([0.5]), torch.zeros(1, dtype=torch.int32)
    for options in (
        {"symmetric": False},
        {"per_token": False},
        {"dynamic": False, "input_scale": half},
        {"dynamic": False, "symmetric": False, "input_scale": half, "input_azp": zero},
        {"smooth": torch.full((24,), 2.0)},
    ):
        assert a_layer(**options)(x).shape == (2, 10), options
    assert at_once == []


def test_activations_that_one_op_leaves_to_the_others() -> None:
    layer = a_layer()
    x = torch.linspace(-1, 1, 48).reshape(2, 24)
    with pytest.raises(ValueError, match=r"^x must be a dense tensor, got layout torch.sparse_coo"):
        layer(x.to_sparse())
    with pytest.raises(ValueError, match=r"^x must be float32, .*, got int32"):
        layer(x.int())
    with pytest.raises(ValueError, match=r"^a must have K=24 columns, the rows of b, got"):
        layer(x[:, :23])
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            followed = layer(x.clone().requires_grad_())
            assert (followed.shape, followed.requires_grad) == ((2, 10), enabled)


def test_scales_of_a_layer_are_a_column() -> None:
    for scales in (torch.ones(10), torch.ones(1, 10), torch.ones(10, 1, 1)):
        with pytest.raises(ValueError, match=r"^scale_b must have shape \[N, 1\], got"):
            torch.ops.scaled_mm._scaled_linear(A.float(), B, scales, None, -1, -1, False)
    with pytest.raises(ValueError, match=r"^scale_b must have 1 or N=10 elements, in shape"):
        torch.ops.scaled_mm._scaled_linear(A.float(), B, torch.ones(9, 1), None, -1, -1, False)
    strided = torch.linspace(0.1, 1, 20)[1::2, None]  # which does not begin its memory
    got, expected = (
        torch.ops.scaled_mm._scaled_linear(A.float(), B, each, None, -1, -1, False)
        for each in (strided, strided.contiguous())
    )
    assert torch.equal(got, expected)


def test_layer_with_zero_points(ways: list[bool]) -> None:
    linear = nn.Linear(24, 10).bfloat16().requires_grad_(False)
    layer = ScaledLinear.from_linear(linear, symmetric=False)
    x = torch.linspace(-1, 3, 48).reshape(2, 24).bfloat16()
    general = layer(x)
    assert ways == []
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    weight, scale_b = layer.weight_int8.t(), layer.weight_scale.view(1, -1)
    terms = {"azp": azp, "azp_adj": scaled_mm.azp_adj(weight), "bias": layer.bias}
    assert torch.equal(general, scaled_mm.scaled_mm(q, weight, scale, scale_b, **terms))


@pytest.mark.parametrize("give", [dict, lambda **more: {"bias": BIAS, **more}], ids=["", "bias"])
def test_graphs_hold_the_general_op(give: Callable[..., dict[str, Any]]) -> None:
    """Whoever reads or matches a graph finds one op for every form."""
    found = []

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(scaled_mm.scaled_mm, fullgraph=True, backend=backend)
    assert torch.equal(
        compiled(A, B, S_A, S_B, **give()), scaled_mm.scaled_mm(A, B, S_A, S_B, **give())
    )
    assert torch.ops.scaled_mm.scaled_mm.default in found
    assert not any("_scaled_mm_plain" in str(target) for target in found)
