"""The names that a model has for a file's tensors.

transformers gives some models other names than their files have (ViT's `layer.0.attention.query`
is `layers.0.q_proj` in the model), and stacks the experts of a file in one parameter. What
`from_pretrained` and `save_pretrained` make of a name is looked up here, in transformers' own
tables: it has no public function for that, so all that is used of them is in this file. Other
models have their files' names.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..nn.float_experts import is_experts, parts_of
from ..quantization.stored_names import of_transformers
from .files import DTYPES
from .folder import Checkpoint

Layer = TypeVar("Layer")
NUMBER = r"(?<=\.)\d+(?=\.)"


@dataclass
class Given:
    """Tensors of a file that one tensor of the model is made of, or several.

    Attributes:
        files: the file's tensors, and which pattern of the converter each matched.
        converter: transformers' object that makes the one of the others; None: they are the same.
    """

    name: str
    files: list[tuple[str, str]] = field(default_factory=list)
    converter: Any = None

    def made(self, model: Any, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The model's tensors, of what `read` gives for the file's."""
        if self.converter is None:
            return {self.name: read(self.files[0][0])}
        converter = copy.deepcopy(self.converter)
        for tensor, pattern in self.files:
            converter.add_tensor(self.name, tensor, pattern, read(tensor))
        made = converter.convert(self.name, model=model, config=model.config)
        return {name: x[0] if isinstance(x, list) else x for name, x in made.items()}


class Names:
    """From a file's names to a model's.

    Args:
        model: any module; those of transformers have names of their own.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._prefix: str | None = None
        self._renamings: list[Any] = []
        self._converters: list[Any] = []
        self._keys: dict[str, Any] = {}
        if not of_transformers(model):
            return
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        transforms = get_model_conversion_mapping(model)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._keys = model.state_dict()

    def tensor(self, name: str) -> tuple[str, str | None]:
        """The model's name, and the pattern of a converter that matched."""
        if self._prefix is None:
            return name, None
        from transformers.core_model_loading import rename_source_key

        found = rename_source_key(name, self._renamings, self._converters, self._prefix, self._keys)
        if found[0] not in self._keys and name in self._keys:
            return name, None
        return found

    def layer(self, name: str) -> str:
        """The model's name of a layer."""
        return self.expert(name) or self.tensor(f"{name}.weight")[0].removesuffix(".weight")

    def expert(self, name: str) -> str | None:
        """Of a layer that the model stacks with others, such as w3 of an expert, the name of the
        Linear that it is: EXPERTS.3.up_proj."""
        found, pattern = self.tensor(f"{name}.weight")
        owner, _, stack = found.rpartition(".")
        if pattern is None or not is_experts(module := self._model.get_submodule(owner)):
            return None
        part = parts_of(module)[stack][self._converter(pattern).source_patterns.index(pattern)]
        return f"{owner}.{re.findall(NUMBER, name)[-1]}.{part}"

    def _converter(self, pattern: str) -> Any:
        return next(x for x in self._converters if pattern in x.source_patterns)

    def layers(self, layers: Mapping[str, Layer]) -> dict[str, Layer]:
        """The layers of a file, by their names in the model."""
        return {self.layer(name): layer for name, layer in layers.items()}

    def given(self, tensors: Iterable[str]) -> list[Given]:
        """What the model's tensors are made of.

        Args:
            tensors: the file's.
        """
        found: dict[str, Given] = {}
        for tensor in sorted(tensors, key=_in_order):
            name, pattern = self.tensor(tensor)
            if pattern is None:
                found[tensor] = Given(name, [(tensor, "")])
                continue
            given = found.setdefault(f"{name} of several", Given(name))
            given.converter = self._converter(pattern)
            given.files.append((tensor, pattern))
        return list(found.values())


def _in_order(name: str) -> list[tuple[bool, int, str]]:
    """Experts by their numbers: 10 behind 2."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def without_values(checkpoint: Checkpoint) -> Callable[[str], Tensor]:
    """In place of `checkpoint.read`: tensors on the meta device, for their shapes."""

    def read(name: str) -> Tensor:
        entry = checkpoint.entry(name)
        return torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device="meta")

    return read
