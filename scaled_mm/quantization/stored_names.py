"""The names that transformers gives to layers in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from ..nn import ScaledExperts
from ..nn.experts import layers_in
from ..nn.float_experts import linear_names, parts_of
from .compressed_tensors import AnyLayerScheme, Saved, scheme_of_layer


def of_transformers(model: nn.Module) -> bool:
    """Whether it is a model of transformers, which need not be there."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def stored_name(model: Any, layer: str) -> str | None:
    """The name of a layer in what `save_pretrained` writes; None: it is not one layer there."""
    if not of_transformers(model):
        return layer
    from transformers.core_model_loading import revert_weight_conversion

    weight = torch.empty(64, 64, device="meta")
    stored = [*revert_weight_conversion(model, {f"{layer}.weight": weight})]
    return stored[0].removesuffix(".weight") if len(stored) == 1 else None


def expert_files(model: Any, name: str, experts: Any) -> dict[str, str]:
    """The names in files of the Linears of stacked experts, by their own ("3.up_proj").

    transformers takes stacks apart when it saves; here it does so to one of numbers.
    """
    files = {part: f"{name}.{part}" for part in linear_names(experts)}
    for stack, parts in parts_of(experts).items() if of_transformers(model) else ():
        from transformers.core_model_loading import revert_weight_conversion

        numbers = torch.arange(experts.num_experts * len(parts))
        stacked = {f"{name}.{stack}": numbers.view(-1, len(parts), 1)}
        for file, x in revert_weight_conversion(model, stacked).items():
            if x.numel() == 1:
                number, at = divmod(int(x), len(parts))
                files[f"{number}.{parts[at]}"] = file.removesuffix(".weight")
    return files


def expert_layers(
    model: nn.Module, name: str, experts: ScaledExperts
) -> dict[str, Callable[[], Any]]:
    """`layers_in` quantised experts, by their names in files."""
    files = expert_files(model, name, experts.gating)
    return {files[part]: made for part, made in layers_in(experts).items()}


def expert_schemes(
    model: nn.Module, name: str, experts: ScaledExperts
) -> dict[str, AnyLayerScheme]:
    """How they are quantised, by the same names: every expert alike."""
    layers = expert_files(model, name, experts.gating)
    first = {
        part: scheme_of_layer(cast(Saved, experts.linear(part)))
        for part in layers
        if part[:2] == "0."
    }
    return {file: first[f"0.{part.partition('.')[2]}"] for part, file in layers.items()}
