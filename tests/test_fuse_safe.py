"""`fuse_model` where it is the default: what is not safe stays as it is."""

from __future__ import annotations

import pytest
import torch
from helpers import assert_bits
from test_fuse import fused_kinds
from torch import Tensor, nn

from scaled_mm import QuantConfig, fuse_model, quantize_model
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.produced import Produced, joined


def mlp() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    return model, torch.randn(5, 64)


@torch.no_grad()
def test_where_it_is_safe() -> None:
    model, x = mlp()
    both = {"FusedNorm": 1, "FusedActivation": 1}
    assert fused_kinds(quantize_model(model, None, [x], fuse=None)) == both
    assert fused_kinds(quantize_model(model, QuantConfig("static"), [x], fuse=None)) == both
    assert not fused_kinds(quantize_model(model, fuse=None))  # there is nothing to run it on
    assert fused_kinds(quantize_model(model, QuantConfig("static"), [x])) == both
    assert not fused_kinds(quantize_model(model, QuantConfig("static"), [x], fuse=False))
    assert not fused_kinds(quantize_model(model, None, []))  # nothing to run it on either
    fused = quantize_model(model, None, [x], fuse=None)
    again = fuse_model(fused, x)
    assert fused_kinds(again) == both
    assert_bits(again(x), fused(x))


def test_a_model_that_does_not_run_on_its_own_example() -> None:
    model, _ = mlp()
    model.dummy_inputs = {"no_argument_of_it": torch.ones(1)}
    assert not fused_kinds(quantize_model(model, fuse=None))
    model.dummy_inputs = {"input": torch.ones(2, 64)}
    assert fused_kinds(quantize_model(model, fuse=None)) == {"FusedNorm": 1, "FusedActivation": 1}


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("hook", ["forward_pre", "forward", "full_backward", None])
def test_what_somebody_watches_stays(place: int, hook: str | None) -> None:
    """Modules 0 and 1 are one site, 2 and 3 the other."""
    model, x = mlp()
    quantized = quantize_model(model, fuse=False)
    if hook is None:
        quantized[place].forward = quantized[place].forward
    else:
        getattr(quantized[place], f"register_{hook}_hook")(lambda *_: None)
    kind = "FusedActivation" if place < 2 else "FusedNorm"
    assert fused_kinds(fuse_model(quantized, x)) == {kind: 1}


class Fickle(nn.Module):
    """Another reader of the norm's output, and another Linear, for other shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if len(x) == 1:
            return self.linear(y)
        z = (
            2 * y.float()
            - y / 4
            + torch.cat([y, x], -1)[..., :64].to(y.dtype)
            + nn.functional.gelu(y)
        )
        return z + self.other(y) + y.mean(-1, keepdim=True)


@torch.no_grad()
def test_a_reader_that_nobody_knew_of() -> None:
    torch.manual_seed(1)
    model = Fickle()
    quantized = quantize_model(model, QuantConfig(include=("linear",)), fuse=False)
    fused = fuse_model(quantized, torch.randn(1, 64))
    assert fused_kinds(fused) == {"FusedNorm": 1}
    x = torch.randn(3, 64)
    torch.testing.assert_close(fused(x), quantized(x), rtol=1e-5, atol=1e-5)


def test_what_is_produced_has_what_tensors_have() -> None:
    made = Produced.make({"x": torch.randn(3, 8)}, {"producer": "relu"})
    assert_bits(made.plain(), made.inputs["x"].relu())
    assert_bits(made.abs(), made.plain())
    assert_bits(-made, -made.plain())
    assert_bits(1 - made @ torch.eye(8), 1 - made.plain())
    with pytest.raises(AttributeError, match=r"^'Produced' object has no attribute 'no_method'$"):
        made.no_method  # noqa: B018


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"^model must hold a ScaledLinear, got none$"):
        fuse_model(nn.Linear(4, 4), torch.ones(1, 4))
    with pytest.raises(ValueError, match=r"^calibration must be given for fuse=True, got None$"):
        quantize_model(nn.Sequential(nn.Linear(4, 4)), fuse=True)


def test_rows_of_what_is_produced() -> None:
    made = Produced.make({"x": torch.randn(2, 3, 8)}, {"producer": "relu", "symmetric": False})
    flat = made.reshape(-1, 8)
    assert flat.shape == (6, 8) and flat.scale.shape == (6, 1) and flat.inputs["x"].shape == (6, 8)
    assert made.view(6, -1).size(-1) == 8 and len(made.contiguous()) == made.size(0) == 2
    again = joined([flat[:2], flat[2:]])
    for name in ("q", "scale", "azp"):
        assert_bits(getattr(again, name), getattr(flat, name))
    assert_bits(made.reshape(4, 12), made.plain().reshape(4, 12))


def test_a_linear_takes_what_is_produced() -> None:
    linear = ScaledLinear.from_linear(nn.Linear(8, 4))
    x = torch.randn(3, 8).relu()
    with torch.no_grad():
        assert_bits(linear(Produced.make({"x": x}, {"producer": "relu"})), linear(x))
