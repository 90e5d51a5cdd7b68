"""What flows through a model: inputs and outputs of its layers on batches, without padding.

Calibration (`scaled_mm.quantize_model`) and validation (`scaled_mm.validate`) look at any model
through this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..nn import ScaledExperts
from ..nn.float_experts import expert_linear, is_experts, steps

Visit = Callable[[str, nn.Module, Tensor, Tensor], None]
"""visit(name, layer, x [tokens, K], y [tokens, N]): a layer's input and output, no padding."""


@dataclass(frozen=True)
class Call:
    """One batch: how a model is called, and which tokens count.

    Where a batch is asked for, a tensor or a tuple (positional arguments) and a mapping (keyword
    arguments, whose attention_mask, if it is [B, T], is the mask) will do too.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mask: Tensor | None = None
    """bool [B, T], True at a token; None: every token counts."""

    def __call__(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)

    def sentences(self) -> int:
        """Rows of the first tensor argument."""
        tensors = [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor)]
        return tensors[0].shape[0] if tensors and tensors[0].ndim else 0

    def tokens(self, x: Tensor) -> Tensor:
        """x [..., K] -> [tokens, K]: without padding where the mask fits its leading dimensions."""
        mask, width = self.mask, x.shape[-1]
        if mask is not None and x.shape[:-1] == mask.shape:
            return x[mask]
        if mask is not None and x.shape[:-1] == (mask.numel(),):
            return x[mask.flatten()]
        return x.reshape(-1, width)


def as_call(batch: Any) -> Call:
    """A batch in any of its forms as a `Call`; TypeError if it has none of them."""
    if isinstance(batch, Call):
        return batch
    if isinstance(batch, Tensor):
        return Call((batch,))
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            return Call((), batch, mask.bool())
        return Call((), batch)
    if isinstance(batch, (tuple, list)):
        return Call(tuple(batch))
    kinds = "a Tensor, a tuple, a mapping or a Call"
    raise TypeError(f"a batch must be {kinds}, got {type(batch).__name__}")


def as_calls(batches: Iterable[Any]) -> list[Call]:
    """All batches; ValueError when there is none, TypeError for a batch that is in no list."""
    if isinstance(batches, (Tensor, Mapping, Call)):
        kind = type(batches).__name__
        raise TypeError(f"batches must be an iterable of batches, such as [x], got one {kind}")
    calls = [as_call(batch) for batch in batches]
    if not calls:
        raise ValueError("batches must hold at least one batch, got none")
    return calls


@torch.no_grad()
def observe(
    model: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Call],
    visit: Visit,
    tick: Callable[[], object] = lambda: None,
) -> list[Any]:
    """The model's outputs on each batch, in eval mode, every layer shown to `visit` on the way.

    Args:
        model: left in the mode it was in.
        layers: name -> module of `model`, whose first argument is [..., K]; or stacked experts,
            called with a token's experts as second argument, whose Linears are shown instead.
        calls: the batches.
        visit: called once for each run of each layer; the tensors are the model's own. Of a layer
            that computes one scale for the whole activation it sees the padding too.
        tick: called after every batch.
    """
    call = calls[0]
    linears: dict[str, Callable[[str], nn.Module]] = {}  # of experts, by name

    def show(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if is_experts(layer) or isinstance(layer, ScaledExperts):
            gating = layer
            of_name: Callable[[str], nn.Module] = partial(expert_linear, layer)
            if isinstance(layer, ScaledExperts):
                gating, of_name = layer.gating, layer.linear
            linear = linears.setdefault(name, cache(of_name))
            mask = None if call.mask is None else call.mask.flatten()
            counted = mask if mask is not None and len(mask) == len(inputs[0]) else None
            for part, own, x, y in steps(gating, linear, inputs[0], inputs[1], counted):
                visit(f"{name}.{part}", own, x, y)
            return
        tokens = Call().tokens if one_scale(layer) else call.tokens
        visit(name, layer, tokens(inputs[0]), tokens(output))

    hooks = [m.register_forward_hook(partial(show, name)) for name, m in layers.items()]
    outputs = []
    with hooked(hooks), evaluating(model):
        for call in calls:
            outputs.append(call(model))
            tick()
    return outputs


def one_scale(layer: nn.Module) -> bool:
    """Whether the layer is a ScaledLinear whose rows depend on each other: dynamic per tensor."""
    return bool(getattr(layer, "dynamic", False)) and not getattr(layer, "per_token", True)


@contextmanager
def hooked(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """The hooks are gone afterwards."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode inside, and as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
