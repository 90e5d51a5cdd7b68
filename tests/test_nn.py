"""ScaledLinear: what it computes is `reference` composed from its buffers, bit for bit."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_bits, assert_compiles, assert_exports, refuses
from torch import Tensor, nn

from scaled_mm import reference
from scaled_mm.nn import ScaledLinear

K, N = 44, 21
SCALE, AZP = 0.037, -31
SCHEMES: dict[str, dict[str, Any]] = {
    "dynamic-token": {},
    "dynamic-token-asymmetric": {"symmetric": False},
    "dynamic-tensor": {"per_token": False},
    "dynamic-tensor-asymmetric": {"per_token": False, "symmetric": False},
    "static": {"dynamic": False, "input_scale": torch.tensor(SCALE)},
    "static-asymmetric": {
        "dynamic": False,
        "symmetric": False,
        "input_scale": SCALE,
        "input_azp": torch.tensor([[AZP]], dtype=torch.int32),
    },
}
ALL = {"weight", "weight_scale", "bias"}
BUFFERS = {
    "dynamic-token": ALL,
    "dynamic-token-asymmetric": ALL | {"azp_adj"},
    "dynamic-tensor": ALL,
    "dynamic-tensor-asymmetric": ALL | {"azp_adj"},
    "static": ALL | {"input_scale"},
    "static-asymmetric": ALL | {"input_scale", "input_zero_point", "azp_with_adj"},
}
schemes = pytest.mark.parametrize("scheme", SCHEMES)


def linear(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(K, N, bias, dtype=dtype)


def layer(scheme: str, bias: bool = True, dtype: torch.dtype = torch.float32) -> ScaledLinear:
    return ScaledLinear.from_linear(linear(bias, dtype), **SCHEMES[scheme])


def x_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, K, generator=generator) + 0.7).to(dtype)


def by_reference(
    scheme: str, state: dict[str, Tensor], x: Tensor, rotate: int | None = None
) -> Tensor:
    """The scheme in the words of the reference, from a state dict."""
    options = SCHEMES[scheme]
    symmetric, dynamic = options.get("symmetric", True), options.get("dynamic", True)
    q, scale, azp = reference.quantize_int8(
        x,
        scale=state.get("input_scale"),
        azp=state.get("input_zero_point"),
        symmetric=symmetric,
        per_token=options.get("per_token", dynamic),
        rotate=rotate,
    )
    b = state["weight"].t()
    adjust: dict[str, Tensor] = {}
    if not symmetric and dynamic:
        adjust = {"azp": azp, "azp_adj": reference.azp_adj(b)}
    elif not symmetric:
        adjust = {"azp_with_adj": reference.azp_with_adj(b, state["input_zero_point"])}
    return reference.scaled_mm(
        q, b, scale, state["weight_scale"], bias=state.get("bias"), out_dtype=x.dtype, **adjust
    )


def test_the_weight_is_written_by_its_methods_alone() -> None:
    ours = layer("dynamic-token")
    before = ours.weight_int8
    with pytest.raises(AttributeError, match="by set_weight or load_state_dict"):
        ours.weight = torch.zeros(N, K)
    assert_bits(ours.weight_int8, before)


@schemes
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_reference(isa: str, scheme: str, bias: bool) -> None:
    module = layer(scheme, bias)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((), (1,), (5,), (2, 3), (0,), (33,)):
            x = x_of(*shape, dtype=dtype)
            out = module(x)
            assert_bits(out, by_reference(scheme, module.state_dict(), x), scheme, dtype, shape)


@schemes
def test_buffers(scheme: str) -> None:
    source = linear()
    before = copy.deepcopy(source.state_dict())
    state = ScaledLinear.from_linear(source, **SCHEMES[scheme]).state_dict()
    assert state.keys() == BUFFERS[scheme]
    q, scale = reference.quantize_weight_int8(source.weight.detach())
    assert_bits(state["weight"], q)
    assert_bits(state["weight_scale"], scale.view(-1, 1))
    assert_bits(state["bias"], source.bias.detach())
    if "azp_adj" in state:
        assert_bits(state["azp_adj"], reference.azp_adj(q.t()))
    if "azp_with_adj" in state:
        zero = state["input_zero_point"]
        assert_bits(zero, torch.tensor([AZP], dtype=torch.int32))
        assert_bits(state["azp_with_adj"], reference.azp_with_adj(q.t(), zero))
    if "input_scale" in state:
        assert_bits(state["input_scale"], torch.tensor([SCALE]))
    for name, x in source.state_dict().items():
        assert_bits(x, before[name])
    assert not list(layer(scheme).parameters())


@schemes
def test_state_dict_round_trip(scheme: str) -> None:
    module, x = layer(scheme), x_of(9)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    options = {k: v for k, v in SCHEMES[scheme].items() if not k.startswith("input_")}
    again = ScaledLinear(K, N, **options)
    assert again(x).shape == (9, N)  # packs the weight that it has, zeros
    again.load_state_dict(state)
    assert_bits(again(x), module(x))
    assert again.state_dict().keys() == module.state_dict().keys()
    on_meta = ScaledLinear(K, N, device="meta", **options)
    on_meta.load_state_dict(state, assign=True)
    assert_bits(on_meta(x), module(x))


COPIES: dict[str, Callable[[ScaledLinear], Any]] = {
    "deepcopy": copy.deepcopy,
    "to-cpu": lambda module: copy.deepcopy(module).to("cpu"),
    "bfloat16": lambda module: copy.deepcopy(module).to(torch.bfloat16),
    "half": lambda module: copy.deepcopy(module).half(),
    "double-float": lambda module: copy.deepcopy(module).double().float(),
    "eval": lambda module: copy.deepcopy(module).eval(),
    "in-a-model": lambda module: nn.Sequential(copy.deepcopy(module)).bfloat16(),
}


@schemes
@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_every_buffer(scheme: str, name: str) -> None:
    module, x = layer(scheme), x_of(6, dtype=torch.bfloat16)
    again = COPIES[name](module)
    states = zip(again.state_dict().values(), module.state_dict().values(), strict=True)
    assert all((y.dtype, torch.equal(y, z)) == (z.dtype, True) for y, z in states)
    assert_bits(again(x), module(x))


@schemes
def test_compile(scheme: str) -> None:
    assert_compiles(layer(scheme), x_of)


@schemes
def test_export(scheme: str) -> None:
    module = layer(scheme)
    program = assert_exports(module, x_of)
    assert set(program.state_dict) == BUFFERS[scheme] - {"weight"}
    plain = torch.export.export(module.unpack(), (x_of(5),))  # for a program that runs elsewhere
    assert set(plain.state_dict) == BUFFERS[scheme]
    assert_bits(plain.module()(x_of(5)), module(x_of(5)), scheme)


def test_meta_device() -> None:
    for options in ({}, {"symmetric": False}, {"dynamic": False}):
        module = ScaledLinear(K, N, device="meta", **options)
        out = module(torch.empty(3, K, device="meta"))
        assert (out.shape, out.dtype, out.is_meta) == ((3, N), torch.float32, True)


REFUSALS = {
    r"input_scale must be given": {"dynamic": False},
    r"input_azp must be given": {"dynamic": False, "symmetric": False, "input_scale": 1.0},
    r"input_scale must not be given": {"input_scale": 1.0},
    r"input_azp must not be given": {"dynamic": False, "input_scale": 1.0, "input_azp": 3},
    r"per_token must be False": {"dynamic": False, "input_scale": 1.0, "per_token": True},
}
test_refused = refuses(REFUSALS, ScaledLinear.from_linear, end=" .*, got .+$", linear=linear())


def test_a_layer_is_made_of_a_linear_that_an_int32_sum_takes() -> None:
    with pytest.raises(TypeError, match=r"^linear must be a torch.nn.Linear, got Conv2d$"):
        ScaledLinear.from_linear(nn.Conv2d(3, 3, 1))
    assert ScaledLinear(131071, 1).in_features == 131071
    for make in (
        lambda: ScaledLinear(200000, 4),
        lambda: ScaledLinear.from_linear(nn.Linear(200000, 4, device="meta")),
    ):
        with pytest.raises(ValueError, match=r"^in_features must be at most 131071, got 200000$"):
            make()


S = torch.linspace(0.25, 7, K)


@schemes
@pytest.mark.parametrize("folded", [False, True])
def test_smooth(scheme: str, folded: bool) -> None:
    """The weight is multiplied by s; the input by 1 / s in float32, by the layer or in front."""
    source = linear()
    module = ScaledLinear.from_linear(source, smooth=S, folded=folded, **SCHEMES[scheme])
    state = module.state_dict()
    assert state.keys() == BUFFERS[scheme] | (set() if folded else {"input_smooth"})
    q, scale = reference.quantize_weight_int8(source.weight.detach() * S)
    assert_bits(state["weight"], q)
    assert_bits(state["weight_scale"], scale.view(-1, 1))
    assert_bits(module.folded_smooth, S if folded else None)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = x_of(5, dtype=dtype)
        inside = x if folded else x.float() * (1 / S)
        want = by_reference(scheme, state, inside).to(dtype) if folded else None
        if want is None:
            got32 = by_reference(scheme, state, inside)
            assert_bits(module(x.float()), by_reference(scheme, state, x.float() * (1 / S)))
            torch.testing.assert_close(module(x).float(), got32, rtol=2**-7, atol=1e-6)
        else:
            assert_bits(module(x), want)


def test_a_smooth_layer_survives_everything() -> None:
    module, x = ScaledLinear.from_linear(linear(), smooth=S, symmetric=False), x_of(6)
    for make in COPIES.values():
        assert_bits(make(module)(x.bfloat16()), module(x.bfloat16()))
    again = ScaledLinear(K, N, symmetric=False)
    again.load_state_dict(module.state_dict())
    assert_bits(again(x), module(x))
    meta = ScaledLinear(K, N, symmetric=False, smooth=True, device="meta")
    meta.load_state_dict(module.state_dict(), assign=True)
    assert_bits(meta(x), module(x))
    torch._dynamo.reset()
    assert_bits(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))
    assert "smooth=True" in repr(module)


@pytest.mark.parametrize("scheme", ["dynamic-token-asymmetric", "static-asymmetric"])
def test_a_state_dict_without_azp_terms(scheme: str) -> None:
    """As compressed-tensors writes them: no azp terms, int8 zero points, bfloat16 scales."""
    module, x = layer(scheme), x_of(3)
    state = {name: y for name, y in module.state_dict().items() if not name.startswith("azp_")}
    if "input_zero_point" in state:
        state["input_zero_point"] = state["input_zero_point"].to(torch.int8)
    options = {k: v for k, v in SCHEMES[scheme].items() if not k.startswith("input_")}
    for assign in (False, True):
        again = ScaledLinear(K, N, **options)
        again.load_state_dict(state, assign=assign)
        assert again.state_dict().keys() == module.state_dict().keys()
        assert all(y.dtype == module.state_dict()[n].dtype for n, y in again.state_dict().items())
        assert_bits(again(x), module(x))
    coarse = {**state, "weight_scale": state["weight_scale"].bfloat16()}
    again.load_state_dict(coarse, assign=True)
    assert_bits(again.weight_scale, coarse["weight_scale"].float())


SMOOTH_REFUSED = {
    r"smooth must be given with folded=True, got None": {"folded": True},
    r"smooth must be positive .* \(44,\), got .* of shape \(43,\)": {"smooth": S[1:]},
    r"smooth must be positive and finite, .* least 0": {"smooth": S - 0.25},
    r"smooth must be positive and finite, .* largest inf": {"smooth": S / 0},
}
test_smooth_refused = refuses(SMOOTH_REFUSED, ScaledLinear.from_linear, linear=linear())


@pytest.mark.parametrize("smooth", [None, torch.linspace(0.5, 2, 96)], ids=["plain", "smoothed"])
@schemes
def test_rotated(scheme: str, smooth: Tensor | None) -> None:
    """The reference's quantisers of x and W rotated; its state makes any layer a rotated one."""
    torch.manual_seed(0)
    source, x = nn.Linear(96, N), torch.randn(9, 96)
    made = ScaledLinear.from_linear(source, rotate=32, smooth=smooth, **SCHEMES[scheme])
    state = made.state_dict()
    w, x32 = source.weight.detach(), x
    if smooth is not None:
        w, x32 = w * smooth, x * (1 / smooth)
    q, scale = reference.quantize_weight_int8(w, rotate=32)
    assert_bits(state["weight"], q)
    assert_bits(state["weight_scale"], scale.view(-1, 1))
    assert_bits(made(x), by_reference(scheme, state, x32, rotate=32))
    assert (made.weight - source.weight).norm() < 0.02 * source.weight.norm()
    options = {k: v for k, v in SCHEMES[scheme].items() if not k.startswith("input_")}
    for again in (ScaledLinear(96, N, **options), ScaledLinear(96, N, rotate=32, **options)):
        again.load_state_dict(state)
        assert again.rotate == 32
        for other in (again, copy.deepcopy(again).bfloat16(), pickle.loads(pickle.dumps(again))):
            assert_bits(other(x), made(x))
    exported = torch.export.export(nn.Sequential(made.unpack()), (x,)).module()
    assert_bits(exported(x), made.pack()(x))


def test_rotations_that_are_refused() -> None:
    rule = r"^rotate must be 16, 32, 64, 128, 256 or 512 and divide K=96, got "
    for block in (8, 48, 64, 1024, -32):
        with pytest.raises(ValueError, match=rf"{rule}{block}$"):
            ScaledLinear(96, N, rotate=block)
    state = ScaledLinear(96, N, rotate=32).state_dict()
    state["input_rotate"] += 32
    with pytest.raises(ValueError, match=rf"{rule}64$"):
        ScaledLinear(96, N).load_state_dict(state)
