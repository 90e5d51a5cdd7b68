"""Modules of transformers whose experts' weights lie stacked in one parameter, as its public
decorator `use_experts_implementation` leaves them.

    gate_up_proj  [E, 2 I, H], or up_proj [E, I, H] without a gate      down_proj  [E, H, I]

with the two last dimensions changed if `is_transposed`; rows of gate and up one behind the other,
or in turns unless `is_concatenated`; biases [E, 2 I] and [E, H] beside them if `has_bias`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import gate_of

_TOLD = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
"""What the decorator gives to every such module; `has_post_expert_norm` from 5.20 on."""


def is_experts(module: nn.Module) -> bool:
    """Whether it is such a module."""
    return all(isinstance(getattr(module, name, None), bool) for name in _TOLD)


def why_unserved(experts: Any) -> str | None:
    """What `ScaledExperts` could not compute of it; None: it can."""
    if getattr(experts, "has_post_expert_norm", False):
        return "has a norm behind each expert"
    layers = parts_of(experts)
    wanted = {*layers, *(f"{name}_bias" for name in layers if experts.has_bias)}
    known = {name for name, _ in experts.named_parameters()}
    stacks = [getattr(experts, name, None) for name in layers]
    whole = all(x is not None and x.ndim == 3 and len(x) == experts.num_experts for x in stacks)
    if known != wanted or not whole:
        return f"has other parameters than {', '.join(sorted(wanted))}"
    return None


def parts_of(experts: Any) -> dict[str, tuple[str, ...]]:
    """The two stacked parameters, and the Linears of an expert whose weights lie in each."""
    if experts.has_gate:
        return {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    return {"up_proj": ("up_proj",), "down_proj": ("down_proj",)}


def linear_names(experts: Any) -> list[str]:
    """The Linears of all experts: 3.up_proj and so on."""
    parts = [part for parts in parts_of(experts).values() for part in parts]
    return [f"{e}.{part}" for e in range(experts.num_experts) for part in parts]


def expert_linear(experts: Any, name: str) -> nn.Linear:
    """One of them, of the same memory."""
    number, _, part = name.partition(".")
    stack, parts = next(each for each in parts_of(experts).items() if part in each[1])

    def rows(name: str, transposed: bool) -> Tensor:
        x = getattr(experts, name).detach()[int(number)]
        x, at, count = (x.t() if transposed else x), parts.index(part), len(parts)
        own: Tensor = x.chunk(count)[at] if experts.is_concatenated else x[at::count]
        return own

    bias = rows(f"{stack}_bias", False) if experts.has_bias else None
    return linear_of(rows(stack, experts.is_transposed), bias)


def linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An `nn.Linear` of this memory, without gradients."""
    n, k = weight.shape
    linear = nn.Linear(k, n, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def gated(experts: Any, h: Tensor) -> Tensor:
    """What lies between an expert's two products, by the module's own function."""
    made: Tensor = gate_of(experts)(h) if experts.has_gate else experts.act_fn(h)
    return made


def without_weights(experts: Any) -> nn.Module:
    """A copy with None in their places."""
    names = [f"{name}{end}" for name in parts_of(experts) for end in ("", "_bias")]
    made: nn.Module = copy.deepcopy(
        experts, {id(getattr(experts, name, None)): None for name in names}
    )
    return made


def steps(
    experts: Any,
    linear: Callable[[str], nn.Module],
    hidden_states: Tensor,
    top_k_index: Tensor,
    counted: Tensor | None,
) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Every Linear of every expert by name, with its input and output.

    Args:
        experts: for the gate.
        linear: of a name of `linear_names`, float or quantised.
        hidden_states, top_k_index: what the experts are called with.
        counted: bool [T]: the tokens that count; None: all.
    """
    (*first, down) = parts_of(experts).values()
    for e in range(experts.num_experts):
        at = (top_k_index == e).any(-1)
        x = hidden_states[at if counted is None else at & counted]
        outputs = []
        for part in first[0]:
            layer = linear(f"{e}.{part}")
            outputs.append(layer(x))
            yield f"{e}.{part}", layer, x, outputs[-1]
        joined = torch.cat(outputs, -1)
        if not experts.is_concatenated:
            joined = torch.stack(outputs, -1).flatten(-2)
        h, layer = gated(experts, joined), linear(f"{e}.{down[0]}")
        yield f"{e}.{down[0]}", layer, h, layer(h)
