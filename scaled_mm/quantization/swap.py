"""Modules put into the places of others."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar, cast

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


class Swap(Generic[Model]):
    """Puts modules into the places of others: in the model itself at once, or in a copy at last."""

    def __init__(self, model: Model, inplace: bool) -> None:
        self.model = model
        self.inplace = inplace
        self.copied: dict[int, nn.Module] = {}
        self.places: dict[int, list[tuple[nn.Module, str]]] = {}
        for path, child in model.named_modules(remove_duplicate=False):
            if path:
                parent, _, name = path.rpartition(".")
                place = (model.get_submodule(parent), name)
                self.places.setdefault(id(child), []).append(place)

    def replace(self, old: nn.Module, new: nn.Module) -> None:
        """Puts `new` wherever `old` is; in place, the model then holds `old` no more."""
        if not self.inplace:
            self.copied[id(old)] = new
            return
        for parent, name in self.places.pop(id(old), ()):
            setattr(parent, name, new)
        if old is self.model:
            self.model = cast(Model, new)

    def finished(self) -> Model:
        """The model with all that was replaced, in eval mode. None of its parameters asks for
        gradients: quantised weights have none."""
        if not self.inplace:  # deepcopy takes what it finds in its memo for done
            self.model = copy.deepcopy(self.model, dict(self.copied))
        unfuse(self.model)
        return self.model.requires_grad_(False).eval()


def unfuse(model: nn.Module) -> None:
    """Keeps torch's encoders from their fused paths, which read Linears' weights themselves or
    call them on nested tensors."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
