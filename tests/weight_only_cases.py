"""Weight-only layers by plain torch: the weight of a state dict, and the bound of a product."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scaled_mm.nn import WeightOnlyLinear

ACTIVATIONS: dict[str | None, Any] = {
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": lambda y: 0.5 * y * (1 + torch.erf(y / math.sqrt(2))),
    "gelu_tanh": lambda y: 0.5 * y * (1 + torch.tanh(0.7978845608028654 * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + torch.exp(-y)),
}


def digits(words: Tensor, bits: int) -> Tensor:
    """The digits of each word to the base 2^bits, the lowest first: [..., 32 / bits]."""
    base = 2**bits
    return words.to(torch.int64).unsqueeze(-1) % 2**32 // base ** torch.arange(32 // bits) % base


def plainly(tensors: Mapping[str, Tensor], bits: int) -> Tensor:
    """W [K, N] of a layer's tensors, without the library: in float64, rounded once."""
    n, k = tensors["weight_shape"].tolist()
    scale = tensors["weight_scale"].double().t()
    q = digits(tensors["weight_packed"], bits).flatten(-2)[:, :k].t()
    g = tensors.get("weight_g_idx", torch.arange(k) // max(1, k // max(1, len(scale)))).long()
    z, offset = torch.full(scale.shape, 2 ** (bits - 1)), torch.zeros_like(scale)
    if "weight_zero_point" in tensors:
        words = digits(tensors["weight_zero_point"], bits)
        z = words.transpose(1, 2).flatten(0, 1)[:n].t()
    if "weight_offset" in tensors:
        offset = tensors["weight_offset"].double().t()
    w = (q - z[g]).double() * scale[g] + offset[g]
    return w.to(tensors["weight_scale"].dtype)


def weight_of(layer: WeightOnlyLinear) -> Tensor:
    """W [K, N] as the layer multiplies by it, rows where the input has them."""
    return plainly(layer.state_dict(), layer.bits)


def assert_within_the_bound(layer: WeightOnlyLinear, x: Tensor, y: Tensor) -> None:
    """y as the layer's output for x: docs/numerics.md has the bound on float32 sums."""
    w = weight_of(layer)
    x16 = x.to(w.dtype)
    if layer.pre_scale is not None:
        x16 = (x16.float() * layer.pre_scale).to(w.dtype)
    bias = torch.zeros(w.shape[1]) if layer.bias is None else layer.bias
    exact = x16.double() @ w.double() + bias.double()
    size = x16.double().abs() @ w.double().abs() + bias.double().abs()
    error = max(1, len(w)) * 2.0**-23 * size
    f = ACTIVATIONS[layer.activation]
    wanted = f(exact)
    if layer.activation is not None:  # none of them is steeper than 1.13
        error = 1.13 * error + 2.0**-20 * (wanted.abs() + exact.abs())
    info = torch.finfo(w.dtype)
    error = error + (wanted.abs() + error).clamp_min(info.tiny) * info.eps / 2
    assert y.dtype == x.dtype
    assert bool(((y.double() - wanted).abs() <= error).all())


def assert_layers_within_their_bound(model: nn.Module, *inputs: Any) -> int:
    """Runs the model; every weight-only layer's output against the exact product."""
    seen = []

    def check(layer: WeightOnlyLinear, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        assert_within_the_bound(layer, inputs[0], y)
        seen.append(layer)

    layers = [m for m in model.modules() if isinstance(m, WeightOnlyLinear)]
    hooks = [layer.register_forward_hook(check) for layer in layers]
    model(*inputs)
    for hook in hooks:
        hook.remove()
    assert len(set(map(id, seen))) == len(layers)
    return len(layers)
