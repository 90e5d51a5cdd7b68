"""`ScaledExperts`: the experts of a mixture, quantised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from .._torch import has_usual_gate
from ..ops.experts import moe_combine, moe_sort
from .float_experts import gated, linear_names, parts_of, without_weights
from .fused import activation_of
from .grouped_linear import GroupedLinear, stacked

_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}


class ScaledExperts(nn.Module):
    """What a module of stacked experts computes, by quantised layers.

        y[t] = sum over k of top_k_weights[t, k] * expert_e(x[t]),     e = top_k_index[t, k]
        expert_e(x) = down_e(gate(gate_up_e(x)))

    Both layers are grouped products over all experts; the rows of a token are read where they are
    quantised, once. The sum over k is float32, in the order of k. A gate that is silu, gelu or relu
    times its other half is computed in the first product; any other is the float module's own, of
    that product in x's dtype. Inference only: no gradient passes.

    Attributes:
        gate_up_proj, or up_proj of experts without a gate; down_proj: `GroupedLinear`s.
        gating: the float module without its weights, whose gate is the one that is run.
        activation: of the first product, as `grouped_mm` has it; None: gating's gate is run.
    """

    def __init__(self, float_experts: Any, linear: Callable[[str], nn.Module]) -> None:
        """Quantised experts of float ones.

        Args:
            float_experts: as `is_experts` knows them; left as they are.
            linear: makes the quantised layer of each name of `linear_names`.
        """
        super().__init__()
        self.gating = without_weights(float_experts)
        self.num_experts: int = float_experts.num_experts
        self.activation = _gated(float_experts)
        in_turns = self.activation is not None or not float_experts.is_concatenated
        for name, parts in self.layers().items():
            experts = [[linear(f"{e}.{part}") for part in parts] for e in range(self.num_experts)]
            self.add_module(name, stacked(experts, len(parts) > 1 and in_turns))
        self.training = float_experts.training

    def layers(self) -> dict[str, tuple[str, ...]]:
        """The grouped layers, and of which parts of an expert each is."""
        return parts_of(self.gating)

    def linear_names(self) -> list[str]:
        """Of all experts' layers: 3.up_proj and so on."""
        return linear_names(self.gating)

    def linear(self, name: str) -> nn.Module:
        """One expert's layer, as a copy."""
        number, _, part = name.partition(".")
        stack, parts = next(each for each in self.layers().items() if part in each[1])
        layer = cast(GroupedLinear, self.get_submodule(stack))
        return layer.linear(int(number), parts.index(part))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """y [T, H] of hidden_states' dtype, which is float [T, H]; both others are [T, k]."""
        first, down = (self.get_submodule(name) for name in self.layers())
        rows, offsets, places = moe_sort(top_k_index, self.num_experts)
        h = first(hidden_states, offsets, rows=rows, activation=self.activation)
        if self.activation is None:
            h = gated(self.gating, h)
        return moe_combine(down(h, offsets), top_k_weights, places)


def layers_in(module: nn.Module) -> dict[str, Callable[[], nn.Module]]:
    """The quantised layers that a module is, by name: itself, under "", or those of its experts,
    copies that are made one at a time."""
    if not isinstance(module, ScaledExperts):
        return {"": lambda: module}
    return {part: partial(module.linear, part) for part in module.linear_names()}


def _gated(experts: Any) -> str | None:
    """The activation of `grouped_mm` that is the gate of float experts, if one is."""
    if not (experts.has_gate and has_usual_gate(experts)):
        return None
    return _GATED.get(activation_of(experts.act_fn) or "")
