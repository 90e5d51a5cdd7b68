"""The short way that `scaled_mm` takes for its commonest operands (`ops.eager.plain_product`) is
taken where it should be, and nothing but time tells it from the general way; a layer is one op."""

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Ops, activated, assert_bits, refuses
from torch import Tensor, nn
from torch.fx import GraphModule

import scaled_mm
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.fused import ACTIVATIONS
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
        {"out": torch.empty(4, 10, dtype=torch.bfloat16)},
    ):
        scaled_mm.scaled_mm(**OPERANDS, **options)
    assert ways == []


def test_settled_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(eager, "_scaled_mm_plain", lambda *given: told.append(given[4:8]) or A)
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
        eager._scaled_mm_plain(A, PACKED.data, S_A, S_B, None, *shape, False, None)


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


SMOOTH = torch.linspace(0.3, 3, 48)
HALF, ZERO = torch.tensor([0.5]), torch.zeros(1, dtype=torch.int32)
STATIC = {"dynamic": False, "input_scale": HALF}
SCHEMES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "asymmetric": {"symmetric": False},
    "tensor": {"per_token": False},
    "tensor-asymmetric": {"per_token": False, "symmetric": False},
    "static": STATIC,
    "static-asymmetric": {**STATIC, "symmetric": False, "input_azp": ZERO},
    "smooth": {"smooth": SMOOTH},
    "smooth-asymmetric": {"smooth": SMOOTH, "per_token": False, "symmetric": False},
    "smooth-static": {**STATIC, "smooth": SMOOTH},
    "smooth-rotate": {"smooth": SMOOTH, "rotate": 16},
    "rotate": {"rotate": 16},
}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_is_one_op(scheme: str, dtype: torch.dtype, packed: bool) -> None:
    """Of every scheme, shape and stride; its bits are those of the two ops."""
    for bias in (True, False):
        linear = nn.Linear(48, 10, bias).requires_grad_(False)
        layer = ScaledLinear.from_linear(linear, **SCHEMES[scheme])
        operands = [layer.weight_scale, layer.bias, 48, False, layer.input_smooth]
        operands += [layer.symmetric, layer.per_token, layer.input_scale, layer.input_zero_point]
        operands += [layer.azp_adj if layer.dynamic else layer.azp_with_adj, layer.rotate]
        for shape in ((48,), (2, 48), (0, 48), (2, 3, 48)):
            x = torch.linspace(-1, 1, 6 * 48)[: int(np.prod(shape))].reshape(shape).to(dtype)
            for given in (x, x.flip(-1).t().contiguous().t() if x.dim() == 2 else x):
                with Ops() as ops:
                    plain = layer.weight_int8  # as a checkpoint has it
                    got = layer(given) if packed else LINEAR(given, plain, *operands)
                assert ops.names == ["scaled_linear"]
                expected = layer.multiply(*layer.quantize_input(given), dtype)
                assert got.shape == (*shape[:-1], 10)
                assert_bits(got, expected)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "per_token" not in SCHEMES[name]])
@pytest.mark.parametrize("producer", ACTIVATIONS)
def test_a_function_and_a_layer_are_one_op(producer: str, scheme: str) -> None:
    layer = ScaledLinear.from_linear(nn.Linear(48, 10).requires_grad_(False), **SCHEMES[scheme])
    for dtype, m in itertools.product((torch.bfloat16, torch.float32), (0, 3)):
        wide = torch.linspace(-4, 4, m * 96).reshape(m, 96).to(dtype)
        for x in (wide[:, :48], wide[:, ::2]):
            for times in (None, x.flip(0), wide[:, 1::2]):
                with Ops() as ops:
                    got = layer.activated(x, producer, times)
                assert ops.names == ["scaled_linear"]
                assert_bits(got, activated(layer, x, producer, times))


def test_activations_that_one_op_leaves_to_the_others() -> None:
    layer = a_layer()
    x = torch.linspace(-1, 1, 48).reshape(2, 24)
    with pytest.raises(ValueError, match=r"^x must be a dense tensor, got layout torch.sparse_coo"):
        layer(x.to_sparse())
    with pytest.raises(ValueError, match=r"^x must be float32, .*, got int32"):
        layer(x.int())
    with pytest.raises(ValueError, match=r"^x must have K=24 columns, got shape"):
        layer(x[:, :23])
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            followed = layer(x.clone().requires_grad_())
            assert (followed.shape, followed.requires_grad) == ((2, 10), enabled)


LINEAR = torch.ops.scaled_mm.scaled_linear
W, ONES = B.t().contiguous(), torch.ones(10, 1)
GIVEN = {"x": A.float(), "weight": W, "weight_scale": ONES, "bias": None, "k": 24}
ADJ = torch.ones(1, 10, dtype=torch.int32)
REFUSED = {
    r"weight_scale must have shape \[N, 1\], got": {"weight_scale": ONES[:, 0]},
    r"weight must be packed or have shape \[N, K\]": {"weight_scale": ONES[:9]},
    "weight_scale must be float32, got": {"weight_scale": ONES.double()},
    r"weight must be packed or have .*=\(10, 24\), got shape": {"weight": B},
    "weight must be int8, got uint8": {"weight": W.byte()},
    "weight must be a contiguous packed buffer of": {"weight": PACKED.data[1:]},
    "settled must be False for a weight that is not packed, got": {"settled": True},
    r"x must have K=23 columns, got shape \(4, 24\)": {"k": 23},
    r"k must be in 0..131071, got -1": {"k": -1},
    "x must be float32, bfloat16 or float16, got int8": {"x": A},
    "bias must have N=10 elements": {"bias": ONES},
    "azp_term must be given with symmetric=False, got None": {"symmetric": False},
    r"azp_term must be None with symmetric=True, got shape": {"azp_term": ADJ},
    "azp_term must have N=10": {"symmetric": False, "azp_term": ADJ[:, 1:]},
    "input_azp must be given with input_scale and": {"input_azp": ZERO},
    "input_azp must be given with input_scale and symmetric=False, got None": {
        "symmetric": False,
        "azp_term": ADJ,
        "input_scale": HALF,
    },
    r"input_smooth must have K=24 elements, in shape": {"input_smooth": SMOOTH},
    "input_smooth must be float32, got": {"input_smooth": SMOOTH[:24].half()},
    "rotate must be 16, 32, .* and divide K=24, got 16": {"rotate": 16},
    "producer must be one of rms_norm, .*, got swish": {"producer": "swish"},
    "producer must be a function, got rms_norm": {"producer": "rms_norm"},
    "per_token must be True with a producer and": {"producer": "silu", "per_token": False},
    "times must be given with a producer, got": {"times": A.float()},
    "times must have x's shape": {"producer": "silu", "times": A[:3].float()},
    "times must be float32, got float16": {"producer": "silu", "times": A.half()},
}
test_what_the_op_of_a_layer_refuses = refuses(REFUSED, LINEAR, **GIVEN)


def test_scales_that_do_not_begin_their_memory() -> None:
    strided = torch.linspace(0.1, 1, 20)[1::2, None]
    got, expected = (
        LINEAR(**{**GIVEN, "weight_scale": each}) for each in (strided, strided.contiguous())
    )
    assert_bits(got, expected)


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
