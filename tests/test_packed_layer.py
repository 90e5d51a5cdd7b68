"""`PackedLayer`: what loading, moving and saving do to a packed layer, whichever it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import assert_bits
from torch import Tensor, nn

from scaled_mm import quantize_weight_grouped
from scaled_mm.awq import Int4, to_awq
from scaled_mm.nn import WeightOnlyLinear

K, N, G = 64, 16, 32
Made = Callable[[torch.dtype], WeightOnlyLinear]


def _awq(dtype: torch.dtype) -> WeightOnlyLinear:
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(16, (K, N), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(16, (K // G, N), generator=generator, dtype=torch.uint8)
    scales = torch.rand(K // G, N, generator=generator).to(dtype)
    bias = torch.randn(N, generator=generator).to(dtype)
    return WeightOnlyLinear.from_awq(*to_awq(Int4(q, scales, zeros)), bias=bias)


def _weight_only(dtype: torch.dtype) -> WeightOnlyLinear:
    torch.manual_seed(0)
    source = nn.Linear(K, N).to(dtype)
    made = quantize_weight_grouped(source.weight, bits=8, group_size=G)
    made = made._replace(zeros=torch.randn(K // G, N).to(dtype))
    return WeightOnlyLinear.from_grouped(made, bits=8, bias=source.bias)


layers = pytest.mark.parametrize("made", [_awq, _weight_only])


def _x(dtype: torch.dtype) -> Tensor:
    return torch.randn(3, K, generator=torch.Generator().manual_seed(1)).to(dtype)


@layers
def test_a_packed_layer_is_packed_behind_a_load(made: Made) -> None:
    layer, other = made(torch.float16), made(torch.float16)
    other.bias = other.bias + 1
    layer.load_state_dict(other.state_dict())
    assert layer.packed is not None
    assert_bits(layer(_x(torch.float16)), other(_x(torch.float16)))


@layers
@pytest.mark.parametrize("mixed", ["bias", "weight_offset", "both"])
def test_scales_that_are_assigned_bring_the_others_along(made: Made, mixed: str) -> None:
    """A state dict whose scales have another dtype than its bias, or than its offsets."""
    layer, source = made(torch.float16), made(torch.float16)
    names = ("bias", "weight_offset") if mixed == "both" else (mixed,)
    state = {
        name: x if name in names or not x.is_floating_point() else x.bfloat16()
        for name, x in source.state_dict().items()
    }
    layer.load_state_dict(state, assign=True)
    kinds = {x.dtype for x in layer.state_dict().values() if x.is_floating_point()}
    assert kinds == {torch.bfloat16}
    assert_bits(layer(_x(torch.bfloat16)), source.bfloat16()(_x(torch.bfloat16)))
