"""Layers that read one tensor: which of a model do, and `Together`s of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..nn.fused import unhooked
from ..nn.together import Together, fit, version_of
from .observe import Call, evaluating, hooked

Readers = tuple[ScaledLinear, ...]
DEVICES = ("cuda",)
"""Where layers share: not on a CPU, where a quantiser more costs less than the views."""


@torch.no_grad()
def readers_of_one(model: nn.Module, call: Call) -> list[Readers]:
    """Those that `model` calls one right behind the other with the same tensor, always."""
    runs: list[list[ScaledLinear]] = []
    last: list[Any] = [None, 0]  # the tensor, and its version

    def seen(module: Any, args: Any) -> None:
        x = args[0] if args and isinstance(args[0], Tensor) else None
        if x is None or x is not last[0] or version_of(x) != last[1]:
            runs.append([])
        last[:] = x, version_of(x)
        runs[-1].append(module)

    layers = [m for m in model.modules() if type(m) is ScaledLinear and unhooked(m)]
    layers = [layer for layer in layers if layer.weight_scale.device.type in DEVICES]
    hooks = [layer.register_forward_pre_hook(seen) for layer in layers]
    with hooked(hooks), evaluating(model):
        call(model)
    of: dict[ScaledLinear, set[Readers]] = {}
    for run in map(tuple, runs):
        for layer in run:
            of.setdefault(layer, set()).add(run)
    found = {run for run in map(tuple, runs) if len(set(run)) == len(run) > 1}
    alone = [run for run in dict.fromkeys(map(tuple, runs)) if run in found]
    return [run for run in alone if all(of[layer] == {run} for layer in run) and fit(run)]


@torch.no_grad()
def join(model: nn.Module, found: list[Readers], call: Call) -> None:
    """Lets them share; not in a model that does not run with outputs that are views."""
    joined = [Together(layers) for layers in found]
    if not joined:
        return
    try:
        with evaluating(model):
            call(model)
    except RuntimeError:
        for together in joined:
            together.leave()
