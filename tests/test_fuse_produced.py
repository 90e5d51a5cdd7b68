"""`Produced`, what a fused norm or activation hands on: whoever reads it otherwise than a
`ScaledLinear` does reads what the module that was replaced would have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_bits
from torch import Tensor, nn

from scaled_mm import fuse_model, quantize_model
from scaled_mm.nn.produced import Produced, joined

K = 16
MASK = torch.arange(10).view(2, 5) % 3 == 0
OPTIONS: dict[str, dict[str, Any]] = {
    "rms_norm": {"producer": "rms_norm", "eps": 1e-6},
    "layer_norm": {"producer": "layer_norm", "eps": 1e-6, "weight": torch.linspace(0.5, 2, K)},
    "gelu": {"producer": "gelu", "symmetric": False},
    "static": {"producer": "relu", "scale": torch.tensor([0.02])},
}
Read = Callable[[Any], Any]
ROWS: dict[str, Read] = {
    "[1]": lambda y: y[1],
    "[1:]": lambda y: y[1:],
    "[:, 0]": lambda y: y[:, 0],
    "[:, None]": lambda y: y[:, None],
    "[1, 2]": lambda y: y[1, 2],
    "[..., 1, :]": lambda y: y[..., 1, :],
    "[1, ...]": lambda y: y[1, ...],
    "[..., :]": lambda y: y[..., :],
    "[:, 1, :]": lambda y: y[:, 1, :],
    "[()]": lambda y: y[()],
    "[mask]": lambda y: y[MASK],
    "[rows]": lambda y: y[torch.tensor([1, 1, 0])],
    "[rows, rows]": lambda y: y[torch.tensor([1, 0]), torch.tensor([4, 2])],
    "reshape": lambda y: y.reshape(-1, K),
    "reshape of a size": lambda y: y.reshape(torch.Size((5, 2, K))),
    "view": lambda y: y.view(10, -1),
    "the one row": lambda y: y[:1, :1].reshape(-1, K)[0],
}
"""What takes rows, and stays int8."""
COLUMNS: dict[str, Read] = {
    "[..., 0]": lambda y: y[..., 0],
    "[..., :3]": lambda y: y[..., :3],
    "[..., None]": lambda y: y[..., None],
    "[:, :, ::2]": lambda y: y[:, :, ::2],
    "[1, 2, 3]": lambda y: y[1, 2, 3],
    "[1, 2, 3, ...]": lambda y: y[1, 2, 3, ...],
    "[mask of all]": lambda y: y[MASK[..., None].expand(2, 5, K)],
    "[mask, 0]": lambda y: y[MASK, 0],
    "[[0, 1]]": lambda y: y[[0, 1]],
    "[True]": lambda y: y[True],
    "row of a row": lambda y: y[0, 0][3],
    "heads": lambda y: y.view(2, 5, 4, -1),
    "reshape": lambda y: y.reshape(-1),
    "reshape to other columns": lambda y: y.reshape([5, 2 * K]),
    "view of a dtype": lambda y: y.view(torch.int32),
    "abs": abs,
    "+": lambda y: +y,
    "==": lambda y: y == 0,
    "!=": lambda y: y != 0,
    "<": lambda y: y < 0.1,
    "<= of a tensor": lambda y: torch.zeros(K) <= y,
    ">=": lambda y: y >= 0.1,
    ">": lambda y: y > y.mean(),
    "//": lambda y: y // 0.25,
    "%": lambda y: 1 % (y + 8),
    "split": lambda y: y.split(8, -1)[1],
}
"""What takes columns apart, and reads the float activation."""


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("read", ROWS.values(), ids=ROWS)
def test_rows(read: Read, kind: str) -> None:
    made = produced(kind)
    got, want = read(made), read(made.plain())
    assert isinstance(got, Produced)
    torch.testing.assert_close(got.plain(), want, rtol=1e-6, atol=1e-6)  # by strides
    anew = Produced.make(got.inputs, got.options)
    for name in ("q", "scale", "azp"):
        assert_bits(getattr(got, name), getattr(anew, name))


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("read", COLUMNS.values(), ids=COLUMNS)
def test_columns(read: Read, kind: str) -> None:
    made = produced(kind)
    got = read(made)
    assert isinstance(got, Tensor)
    assert_bits(got, read(made.plain()))


def produced(kind: str) -> Produced:
    x = torch.randn(2, 5, K, generator=torch.Generator().manual_seed(len(kind)))
    return Produced.make({"x": x}, OPTIONS[kind])


@pytest.mark.parametrize("kind", OPTIONS)
def test_rows_of_one_each_are_joined(kind: str) -> None:
    """A token at a time, as text is generated: every call has a scale of its own."""
    made = produced(kind).reshape(-1, K)
    again = joined([made[i : i + 1] for i in range(10)])
    for name in ("q", "scale", "azp"):
        assert_bits(getattr(again, name), getattr(made, name))
    assert_bits(again.inputs["x"], made.inputs["x"])


def test_it_can_be_kept_in_a_set() -> None:
    made = produced("gelu")
    assert len({made, made}) == 1


@pytest.mark.parametrize(
    ("module", "stays"),
    [
        (nn.ReLU6(), True),
        (nn.Hardtanh(0, 1000), True),
        (nn.LeakyReLU(1e-6), True),
        (nn.Threshold(0, 0), False),
        (nn.GELU(), False),
    ],
    ids=repr,
)
@torch.no_grad()
def test_activations_that_part_from_known_ones_far_out(module: nn.Module, stays: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(K, 32), module, nn.Linear(32, 8))
    x = torch.randn(4, K) * 1000
    quantized = quantize_model(model, fuse=False)
    fused = fuse_model(quantized, x)
    assert (fused[1] is not quantized[1] and type(fused[1]) is type(module)) == stays
    torch.testing.assert_close(fused(x), quantized(x), rtol=1e-5, atol=1e-5)


class ClippedRMSNorm(nn.RMSNorm):
    """Of inputs around 0, the norm that it is named after."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(-50, 50))


@pytest.mark.parametrize(
    "norm",
    [ClippedRMSNorm(K, eps=1e-5), nn.GroupNorm(1, K), nn.GroupNorm(1, 5), nn.GroupNorm(5, 5)],
    ids=repr,
)
@torch.no_grad()
def test_norms_of_something_else_than_rows_stay(norm: nn.Module) -> None:
    torch.manual_seed(0)
    channels = getattr(norm, "num_channels", 5)
    quantized = quantize_model(nn.Sequential(norm, nn.Linear(K, 8)), fuse=False)
    x = torch.randn(2, channels, K) + torch.arange(channels)[:, None]
    fused = fuse_model(quantized, x)
    for y in (x, 1000 * x):
        torch.testing.assert_close(fused(y), quantized(y), rtol=1e-5, atol=1e-5)
    assert type(fused[0]) is type(norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_is_of_the_inputs_dtype(dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 3 * K).view(3, K).to(dtype)
    assert_bits(Produced.make({"x": x}, {"producer": "relu"}).plain(), x.relu())
