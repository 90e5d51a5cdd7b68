"""Closed modules: float tensors in and out, int8 between their parts.

A producer (`ops.produce`) computes a norm or an activation and quantises it in one kernel. Its int8
rows never leave these modules. The parts are the modules that they were, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._torch import has_hooks
from ..ops.gradients import wants_gradient
from ..ops.produce import produce_int8
from .scaled_linear import ScaledLinear

Options = dict[str, Any]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
"""The producers that are functions, as torch computes them."""


def unhooked(*modules: nn.Module) -> bool:
    """Whether calling the modules runs their classes' forward and nothing else."""
    return not any("forward" in vars(module) or has_hooks(module) for module in modules)


def activation_of(module: nn.Module) -> str | None:
    """The producer of an activation of torch or transformers, by its exact class."""
    if type(module) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(module.approximate)
    kind = type(module)
    return _CLASSES.get((kind.__module__.partition(".")[0], kind.__name__))


_CLASSES = {
    ("torch", "ReLU"): "relu",
    ("torch", "SiLU"): "silu",
    ("transformers", "SiLUActivation"): "silu",
}


def norm_of(module: nn.Module) -> Options | None:
    """The producer of a torch norm over the last dimension, by its exact class."""
    if type(module) is nn.LayerNorm:
        producer, bias = "layer_norm", {"bias": module.bias}
    elif type(module) is nn.RMSNorm and module.eps is not None:
        producer, bias = "rms_norm", {}
    else:
        return None
    if module.weight is None or module.weight.ndim != 1:
        return None
    return {"producer": producer, "weight": module.weight, "eps": module.eps, **bias}


def readable(linear: nn.Module) -> TypeGuard[ScaledLinear]:
    """Whether a producer can write the layer's input: each row by itself, or by a known scale."""
    if type(linear) is not ScaledLinear or not (linear.per_token or not linear.dynamic):
        return False
    return not (torch.is_grad_enabled() and wants_gradient(linear.bias))


def _normed(x: Tensor, options: Options, linear: ScaledLinear) -> Tensor:
    """The layer's product with what a norm's producer makes of x."""
    buffers = linear._buffers
    made = produce_int8(
        x,
        scale=buffers["input_scale"],
        azp=buffers["input_zero_point"],
        symmetric=linear.symmetric,
        smooth=buffers["input_smooth"],
        rotate=linear.rotate or None,
        **options,
    )
    return linear.multiply(*made, x.dtype)


def _takes(x: Any, options: Options) -> bool:
    """Whether the producer computes what torch would: no autocast, no gradients, vectors of x's
    dtype."""
    if not isinstance(x, Tensor) or torch.is_autocast_enabled(x.device.type):
        return False
    vectors = [options[name] for name in ("weight", "bias") if name in options]
    if wants_gradient(x, *vectors):
        return False
    return all(v is None or (v.dtype == x.dtype and v.shape == x.shape[-1:]) for v in vectors)


class FusedGatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), whose product is quantised as it is made.

    What a part is, is looked up at every call: with a hook on the activation or `down`, another
    activation or another kind of layer, the module computes the same formula part by part.

    Args:
        module: whose children these are.
        gate, up, activation, down: their names.
    """

    def __init__(self, module: nn.Module, gate: str, up: str, activation: str, down: str) -> None:
        super().__init__()
        for name, child in module.named_children():
            self.add_module(name, child)
        self.roles = (gate, up, activation, down)
        self.training = module.training

    def forward(self, x: Tensor) -> Tensor:
        parts: dict[str, Any] = self._modules  # a look-up by getattr takes ten times as long
        gate, up, activation, down = [parts[name] for name in self.roles]
        gated, times = gate(x), up(x)
        producer = activation_of(activation)
        fits = producer is not None and readable(down) and unhooked(activation, down)
        takes = fits and _takes(gated, {}) and not wants_gradient(times)
        if takes and gated.dtype == times.dtype:
            return down.activated(gated, producer, times)
        y: Tensor = down(activation(gated) * times)
        return y


class FusedSequential(nn.Sequential):
    """An `nn.Sequential` that runs a norm or an activation, and the `ScaledLinear` behind it, as
    one producer and one product. Pairs are looked up at every call, as the parts are then."""

    def forward(self, input: Any) -> Any:
        x, parts = input, list(self)
        while parts:
            first = parts.pop(0)
            options = pair_of(first, parts[0]) if parts else None
            if options is not None and _takes(x, options):
                layer: Any = parts.pop(0)
                known = options["producer"] in ACTIVATIONS
                x = layer.activated(x, **options) if known else _normed(x, options, layer)
            else:
                x = first(x)
        return x


def pair_of(first: nn.Module, second: nn.Module) -> Options | None:
    """The producer that `first` is for `second`; None where the two cannot be one."""
    if not (readable(second) and unhooked(first, second)):
        return None
    if (producer := activation_of(first)) is not None:
        # An activation in place changes the caller's tensor, which somebody may read.
        return None if getattr(first, "inplace", False) else {"producer": producer}
    return norm_of(first)
