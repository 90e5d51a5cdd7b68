"""`WeightOnlyLinear`: what it computes, and that its state goes everywhere a module's does."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import Ops, assert_bits, assert_compiles, assert_exports, refuses
from torch import Tensor, nn
from weight_only_cases import ACTIVATIONS, assert_within_the_bound, weight_of

import scaled_mm
from scaled_mm import quantize_weight_grouped
from scaled_mm.lowbit.grouped import GroupedWeight
from scaled_mm.nn import WeightOnlyLinear

K, N = 96, 21
KINDS: dict[str, dict[str, Any]] = {
    "w8": {},
    "w8-asymmetric": {"symmetric": False},
    "w8-g32": {"group_size": 32},
    "w4-g32": {"bits": 4, "group_size": 32},
    "w4-g24-asymmetric": {"bits": 4, "group_size": 24, "symmetric": False},
    "w4-act-order": {"bits": 4, "group_size": 32, "act_order": True},
    "w8-offset": {"group_size": 48, "offset": True},
}
kinds = pytest.mark.parametrize("kind", KINDS)
PRE_SCALE = torch.linspace(0.25, 4, K)


def linear(dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(K, N, bias=bias).to(dtype)


def layer(kind: str, dtype: torch.dtype = torch.bfloat16, **more: Any) -> WeightOnlyLinear:
    options = dict(KINDS[kind])
    act_order, offset = options.pop("act_order", False), options.pop("offset", False)
    bits = options.pop("bits", 8)
    source = linear(dtype)
    made = quantize_weight_grouped(source.weight, bits=bits, **options)
    if offset:
        generator = torch.Generator().manual_seed(0)
        zeros = torch.randn(made.scales.shape, generator=generator).to(dtype) / 16
        made = made._replace(zeros=zeros)
    g_idx = None
    if act_order:
        at = torch.randperm(K, generator=torch.Generator().manual_seed(1))
        g_idx = (at // options["group_size"]).int()
    more.setdefault("bias", source.bias)
    return WeightOnlyLinear.from_grouped(made, bits=bits, g_idx=g_idx, **more)


def empty(like: WeightOnlyLinear, **more: Any) -> WeightOnlyLinear:
    options = {
        "bits": like.bits,
        "group_size": like.group_size,
        "zero": like.zero,
        "activation": like.activation,
        "dtype": like.state_dict()["weight_scale"].dtype,
    }
    return WeightOnlyLinear(K, N, **options, **more)


def x_of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, K, generator=torch.Generator().manual_seed(5)).to(dtype)


@kinds
def test_an_identity_gives_the_weight(kind: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        module = layer(kind, dtype, bias=None)
        assert_bits(module(torch.eye(K, dtype=dtype)), weight_of(module), kind)


@kinds
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_products_are_within_the_bound(kind: str, activation: str | None) -> None:
    module = layer(kind, activation=activation, pre_scale=PRE_SCALE)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in ((), (1,), (5,), (2, 3), (0,), (33,)):
            x = x_of(*shape, dtype=dtype)
            assert_within_the_bound(module, x, module(x))
    module = layer(kind, torch.float16, activation=activation, bias=linear().bias)
    assert module.bias is not None and module.bias.dtype == torch.float32
    x = x_of(4, dtype=torch.float16)
    assert_within_the_bound(module, x, module(x))


@kinds
@pytest.mark.parametrize("activation", [None, "silu"])
def test_a_call_is_one_op(kind: str, activation: str | None) -> None:
    """Eager and at length, by which compiled calls go; the bits are those of `mixed_mm`."""
    for factors in (None, PRE_SCALE):
        module = layer(kind, activation=activation, pre_scale=factors)
        given = {"bias": module.bias, "activation": activation, "pre_scale": factors}
        for x in (x_of(3), x_of(2, 3), x_of(3).t().contiguous().t()):
            expected = scaled_mm.mixed_mm(x, module.filled(), **given)
            for call in (module, partial(module._at_length, out=None)):
                with Ops() as ops:
                    assert_bits(call(x), expected)
                assert ops.names == ["mixed_mm"]


def test_what_a_call_refuses() -> None:
    module = layer("w4-g32")
    with pytest.raises(ValueError, match=r"^x must be a dense tensor, got layout torch.sparse_coo"):
        module(x_of(2).to_sparse())
    with pytest.raises(ValueError, match=r"^x must be floating, got int32"):
        module(x_of(2).int())
    with pytest.raises(
        ValueError, match=r"^x must have K=96 columns, the rows of packed, got shape"
    ):
        module(x_of(2)[:, 1:])
    with pytest.raises(TypeError, match=r"^x must be a Tensor, got list"):
        module([1.0])


def test_out() -> None:
    module, x = layer("w4-g32"), x_of(3)
    out = torch.empty(3, N, dtype=torch.bfloat16)
    assert module(x, out=out) is out
    assert_bits(out, module(x))
    with pytest.raises(ValueError, match=r"^x must be bfloat16 where out is given, got float32$"):
        module(x.float(), out=out.float())


@pytest.mark.parametrize("folded", [False, True])
def test_smooth(folded: bool) -> None:
    """The weight is multiplied by s, the input by 1 / s."""
    source = linear(torch.bfloat16)
    module = WeightOnlyLinear.from_linear(source, smooth=PRE_SCALE, folded=folded)
    made = quantize_weight_grouped(
        source.weight.detach().float() * PRE_SCALE, bits=8, dtype=torch.bfloat16
    )
    assert_bits(weight_of(module), (made.q.float() * made.scales.float()).bfloat16())
    assert_bits(module.pre_scale, None if folded else 1 / PRE_SCALE)
    assert_bits(module.folded_smooth, PRE_SCALE if folded else None)


@kinds
def test_the_state_dict(kind: str) -> None:
    module = layer(kind, pre_scale=PRE_SCALE)
    groups, per_word = K // module.group_size, 32 // module.bits
    wanted = {
        "weight_packed": ((N, K // per_word), torch.int32),
        "weight_scale": ((N, groups), torch.bfloat16),
        "weight_shape": ((2,), torch.int64),
        "bias": ((N,), torch.bfloat16),
        "pre_scale": ((K,), torch.float32),
    }
    if module.zero == "integer":
        wanted["weight_zero_point"] = ((-(-N // per_word), groups), torch.int32)
    if module.zero == "float":
        wanted["weight_offset"] = ((N, groups), torch.bfloat16)
    if "order" in kind:
        wanted["weight_g_idx"] = ((K,), torch.int32)
    state = module.state_dict()
    assert {name: (tuple(x.shape), x.dtype) for name, x in state.items()} == wanted
    assert state["weight_shape"].tolist() == [N, K]
    assert module.packed is not None and module.weight_packed is None
    unpacked = copy.deepcopy(module).unpack()
    assert unpacked.packed is None
    for name, x in unpacked.state_dict().items():
        assert_bits(x, state[name], name)
    assert_bits(unpacked(x_of(3)), module(x_of(3)))
    assert unpacked.packed is not None  # the call packed it


@kinds
def test_state_dict_round_trip(kind: str) -> None:
    module, x = layer(kind, pre_scale=PRE_SCALE, activation="silu"), x_of(9)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    for again in (empty(module), empty(module, device="meta")):
        again.load_state_dict(state, assign=again.weight_packed.is_meta)
        assert_bits(again(x), module(x))
    for name, value in again.state_dict().items():
        assert_bits(value, module.state_dict()[name], name)
    again.load_state_dict(layer(kind, bias=torch.ones(N), pre_scale=PRE_SCALE).state_dict())
    assert not torch.equal(again(x), module(x))


def test_a_float32_bias_stays_one() -> None:
    module = WeightOnlyLinear.from_linear(linear())
    again = empty(module)
    again.load_state_dict(module.state_dict())
    assert again.bias is not None
    assert_bits(again.bias, linear().bias.detach())


def test_states_that_do_not_fit_are_refused() -> None:
    module = layer("w4-g32")
    state = module.state_dict()
    other = state | {"weight_shape": torch.tensor([N, K + 1])}
    with pytest.raises(RuntimeError, match=r"weight_shape must hold \[21, 96\], got \[21, 97\]"):
        empty(module).load_state_dict(other)
    other = state | {"weight_zero_point": torch.zeros(3, 3, dtype=torch.int32)}
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) .*weight_zero_point"):
        empty(module).load_state_dict(other)
    del other["weight_zero_point"], other["weight_packed"]
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) .*weight_packed"):
        empty(module).load_state_dict(other)


@pytest.mark.parametrize("kind", ["w4-g24-asymmetric", "w8-offset"])
@pytest.mark.parametrize("names", [("bias",), ("weight_offset",), ("bias", "weight_offset")])
def test_scales_that_are_assigned_bring_the_others_along(kind: str, names: tuple[str]) -> None:
    """A state dict whose scales have another dtype than its bias, or than its offsets."""
    module, source = layer(kind, torch.float16), layer(kind, torch.float16)
    state = {
        name: x if name in names or not x.is_floating_point() else x.bfloat16()
        for name, x in source.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    kinds = {x.dtype for x in module.state_dict().values() if x.is_floating_point()}
    assert kinds == {torch.bfloat16}
    assert_bits(module(x_of(3)), source.bfloat16()(x_of(3)))


COPIES: dict[str, Callable[[WeightOnlyLinear], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "to-cpu": lambda module: copy.deepcopy(module).to("cpu"),
    "double-float": lambda module: copy.deepcopy(module).double().float(),
    "bfloat16": lambda module: copy.deepcopy(module).bfloat16(),
    "in-a-model": lambda module: nn.Sequential(copy.deepcopy(module)).float(),
    "unpacked": lambda module: copy.deepcopy(module).unpack(),
}


@kinds
@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_every_bit(kind: str, name: str) -> None:
    module, x = layer(kind, pre_scale=PRE_SCALE), x_of(6)
    again = COPIES[name](module)
    state = {key.removeprefix("0."): value for key, value in again.state_dict().items()}
    assert state.keys() == module.state_dict().keys()
    inner = again[0] if isinstance(again, nn.Sequential) else again
    assert (inner.packed is None) == (name == "unpacked")
    for key, value in module.state_dict().items():
        assert_bits(state[key], value, key)
    assert_bits(again(x), module(x))


def test_the_other_half() -> None:
    """Scales, offsets and bias are converted; words and factors are not."""
    module = layer("w8-offset", pre_scale=PRE_SCALE)
    before, after = module.state_dict(), copy.deepcopy(module).half().state_dict()
    for name, x in before.items():
        floats = name in ("weight_scale", "weight_offset", "bias")
        assert_bits(after[name], x.half() if floats else x, name)


@kinds
def test_compile(kind: str) -> None:
    assert_compiles(layer(kind, pre_scale=PRE_SCALE, activation="gelu"), x_of)


@kinds
def test_export(kind: str) -> None:
    assert_exports(layer(kind, pre_scale=PRE_SCALE), x_of)


@kinds
def test_meta_device(kind: str) -> None:
    module = empty(layer(kind), device="meta")
    out = module(torch.empty(2, 3, K, device="meta"))
    assert (out.shape, out.dtype, out.is_meta) == ((2, 3, N), torch.float32, True)
    with pytest.raises(ValueError, match=r"^weight must have values .*, got one on meta$"):
        module(x_of(2))
    source = linear().to("meta")
    made = WeightOnlyLinear.from_linear(source, bits=4, group_size=32, symmetric=False)
    filled = WeightOnlyLinear.from_linear(linear(), bits=4, group_size=32, symmetric=False)
    made.load_state_dict(filled.state_dict(), assign=True)
    assert_bits(made(x_of(2)), filled(x_of(2)))


REFUSED = {
    "bits must be 4 or 8, got 2": {"bits": 2},
    r"group_size must divide K=96 \(or be -1\), got 36": {"group_size": 36},
    "zero must be one of none, integer, float, got real": {"zero": "real"},
    "dtype must be float16 or bfloat16, got float32": {"dtype": torch.float32},
    "activation must be .*tanh": {"activation": "tanh"},
}
OF_A_LINEAR = {
    "smooth must be given with folded=True, got None": {"folded": True},
    "smooth must be positive and finite": {"smooth": -PRE_SCALE},
}
OF_GROUPS = {
    r"bias must be floating of shape \(21,\), got .* of shape \(96,\)": {"bias": torch.ones(K)},
    r"pre_scale must be floating of shape \(96,\), got int32": {"pre_scale": torch.ones(K).int()},
    "g_idx must give each of the 3 groups": {"g_idx": torch.zeros(K, dtype=torch.int32)},
}
GROUPS = quantize_weight_grouped(linear().weight, bits=8, group_size=32)
test_refused = refuses(REFUSED, WeightOnlyLinear, in_features=K, out_features=N)
test_a_linear_is_refused = refuses(OF_A_LINEAR, WeightOnlyLinear.from_linear, linear=linear())
test_groups_are_refused = refuses(OF_GROUPS, WeightOnlyLinear.from_grouped, weight=GROUPS, bits=8)


def test_a_rank_without_features() -> None:
    weight = GroupedWeight(
        torch.zeros(0, N, dtype=torch.int8), torch.ones(0, N, dtype=torch.bfloat16), None
    )
    module = WeightOnlyLinear.from_grouped(weight, bits=4, bias=torch.arange(N).bfloat16())
    assert_bits(module(torch.ones(2, 0).bfloat16()), torch.arange(N).bfloat16().expand(2, N))
    assert weight_of(module).shape == (0, N)
