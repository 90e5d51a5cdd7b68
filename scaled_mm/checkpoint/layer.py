"""What the quantised layers of all formats have in common: tensors under a module's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from torch import Tensor, nn

from .folder import Checkpoint

FLOATS = ("F32", "BF16", "F16")


class Part(NamedTuple):
    """What a tensor of a layer must be."""

    present: bool | None  # in this scheme; None: as the file likes
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] | None  # None: any


@dataclass(frozen=True)
class QuantisedLayer(ABC):
    """A quantised layer.

    Attributes:
        name: of the module; its tensors are `NAME.weight` and so on.
        n: output features; k: input features.
        parts: which tensors there are, without the name in front.
        scheme: how it is quantised; as a text, for a refusal.
    """

    name: str
    n: int
    k: int
    parts: frozenset[str]
    scheme: Any

    kind: ClassVar[type[nn.Module]]
    """What `module` makes."""
    main: ClassVar[str]
    """The part without which there is no such layer."""
    spare_bias: ClassVar[bool] = False
    """Whether zeros may stand for the bias that the model's layer has not."""

    @abstractmethod
    def module(self, checkpoint: Checkpoint, biased: bool) -> nn.Module:
        """The layer, full, on the CPU; biased: whether the model's Linear has a bias.

        Raises:
            ValueError: a value is out of its range.
        """

    @abstractmethod
    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        """What its tensors must be, without its name in front; only headers are looked at.

        Raises:
            ValueError: its sizes are none that the scheme can have.
        """

    def read(self, checkpoint: Checkpoint, part: str) -> Tensor:
        """One of its tensors."""
        return checkpoint.read(f"{self.name}.{part}")

    def refuse(self, checkpoint: Checkpoint, part: str, reason: str) -> NoReturn:
        """Says which tensor of which file is wrong, and why."""
        name = f"{self.name}.{part}"
        file = checkpoint.where.get(name) or checkpoint.where[f"{self.name}.{self.main}"]
        raise ValueError(f"{file.path}: {name} {reason}")

    def check(self, checkpoint: Checkpoint) -> None:
        """That the headers say of its tensors what `rules` does, and that there are no others."""
        rules = self.rules(checkpoint)
        for part in sorted(self.parts - rules.keys()):
            self.refuse(checkpoint, part, "is not understood")
        for part, (present, dtypes, shapes) in rules.items():
            if part not in self.parts:
                if present:
                    reason = f"is missing: the scheme is {self.scheme}"
                    self.refuse(checkpoint, part, reason)
                continue
            if present is False:
                reason = f"must not be there: the scheme is {self.scheme}"
                self.refuse(checkpoint, part, reason)
            entry = checkpoint.entry(f"{self.name}.{part}")
            if entry.dtype not in dtypes:
                self.refuse(checkpoint, part, f"must be {' or '.join(dtypes)}, got {entry.dtype}")
            if shapes is not None and entry.shape not in shapes:
                reason = f"must have shape {list(shapes[0])}, got {list(entry.shape)}"
                self.refuse(checkpoint, part, reason)


Layer = TypeVar("Layer", bound=QuantisedLayer)


def layers_with(
    checkpoint: Checkpoint, main: str, other: str, make: Callable[[str, frozenset[str]], Layer]
) -> dict[str, Layer]:
    """A layer of each module that has the part `main`, made of its name and parts.

    Raises:
        ValueError: a tensor that is called so, or like the part `other`, without such a module.
    """
    layers: dict[str, Layer] = {}
    for name, parts in parts_by_module(checkpoint).items():
        if main in parts and name:
            layers[name] = make(name, frozenset(parts))
            layers[name].check(checkpoint)
        elif main in parts or other in parts:
            tensor = f"{name}.{other}" if name else main
            file = checkpoint.where[tensor].path
            raise ValueError(f"{file}: {tensor} belongs to no layer with a {main}")
    return layers


def parts_by_module(checkpoint: Checkpoint) -> dict[str, set[str]]:
    """The tensors of each module, without its name in front."""
    found: dict[str, set[str]] = {}
    for tensor in checkpoint.where:
        name, _, part = tensor.rpartition(".")
        found.setdefault(name, set()).add(part)
    return found
