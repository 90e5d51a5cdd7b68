"""AWQLinear's buffers: dtypes that it is given, moved to and loads."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import assert_bits
from torch import Tensor, nn

from scaled_mm import awq
from scaled_mm.nn import AWQLinear

HALVES = (torch.float16, torch.bfloat16)
G = 16


def int4(dtype: torch.dtype = torch.float16) -> awq.Int4:
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (32, 24), generator=generator)
    z = torch.randint(0, 16, (2, 24), generator=generator)
    return awq.Int4(q, torch.rand(2, 24, generator=generator).to(dtype), z)


def exact(weight: awq.Int4, bias: Tensor, x: Tensor) -> Tensor:
    return x.float() @ weight.dequantize().float() + bias.float()


@pytest.mark.parametrize("given", [*HALVES, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", HALVES)
def test_bias_of_any_dtype(dtype: torch.dtype, given: torch.dtype) -> None:
    """Given, loaded or assigned: it ends in a dtype that the kernels take, and is the layer's."""
    weight, x = int4(dtype), torch.linspace(-1, 1, 64).view(2, 32).to(dtype)
    bias = torch.linspace(-2, 2, 24).to(given)
    layer = AWQLinear.from_int4(weight, bias)
    want = exact(weight, bias, x)
    state = {**layer.state_dict(), "bias": bias}
    for assign in (False, True):
        loaded = AWQLinear(32, 24, group_size=G, dtype=dtype)
        loaded.load_state_dict(state, assign=assign)
        for made in (layer, loaded):
            assert made.bias.dtype in (dtype, torch.float32)
            torch.testing.assert_close(made(x).float(), want, rtol=2**-6, atol=2**-6)
    layer.bias.zero_()
    assert bias.abs().sum() > 0


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [torch.float32, None])
def test_moved_to_a_dtype(bias: torch.dtype | None, dtype: torch.dtype) -> None:
    """Scales and bias follow a half together and stay otherwise; the words are never converted."""
    layer = AWQLinear.from_int4(int4(), torch.linspace(-2, 2, 24).to(bias or torch.float16))
    before = copy.deepcopy(layer.state_dict())
    for move in (
        lambda m: m.to(dtype),
        lambda m: m.type(dtype),
        lambda m: m.float().to(dtype),
        lambda m: m.double().to(dtype),
    ):
        moved = move(copy.deepcopy(layer))
        state = moved.state_dict()
        assert_bits(state["qweight"], before["qweight"])
        assert_bits(state["qzeros"], before["qzeros"])
        assert (moved.scales.dtype, moved.bias.dtype) == (dtype, dtype)
        assert moved(torch.ones(1, 32)).isfinite().all()
    for move in (nn.Module.float, nn.Module.double, lambda m: m.type(torch.float64)):
        for name, x in move(copy.deepcopy(layer)).state_dict().items():
            assert_bits(x, before[name])


@pytest.mark.parametrize("assign", [False, True])
def test_loads_other_dtypes(assign: bool) -> None:
    layer = AWQLinear.from_int4(int4(), torch.ones(24))
    state = layer.state_dict()
    other = {
        "qweight": state["qweight"].long(),
        "qzeros": state["qzeros"].long(),
        "scales": state["scales"].double(),
        "bias": state["bias"],
        "order": torch.arange(32, dtype=torch.int32),
    }
    loaded = AWQLinear(32, 24, group_size=G)
    loaded.load_state_dict(other, assign=assign)
    for name, x in loaded.state_dict().items():
        if name in ("qweight", "qzeros", "scales"):
            assert_bits(x, state[name])
    assert loaded.order.dtype == torch.int64
    x = torch.linspace(-1, 1, 32)[None]
    assert_bits(loaded(x), layer(x))
