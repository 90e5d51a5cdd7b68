"""`Produced`: what a fused norm or activation hands to the Linears behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from ..ops.produce import produce_int8, produce_norm_int8

Rows = Mapping[str, Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
"""The producers that are functions, as torch computes them."""


class Produced:
    """Int8 rows in the place of a float activation [..., K], as a `ScaledLinear` multiplies them.

        q, scale, azp   what the producer wrote
        dtype           of the activation that they stand for, and of the Linears' outputs
        inputs          the producer's inputs that have rows: x, times
        options         its others, by the names of `reference.produce_int8`; "producer" says which
        floats          the activation itself, where a norm wrote it too, for readers beside Linears

    It has a tensor's shape, and those of its methods that code between a norm and its Linears
    calls: rows may be told apart in another way, or some taken. Whatever else is done to it, to its
    columns, by a torch function, an operator or another method of tensors, is done to `plain()`, so
    that a reader that nobody knew of reads what it always did.
    """

    def __init__(
        self,
        inputs: Rows,
        options: Mapping[str, Any],
        made: tuple[Tensor, Tensor, Tensor | None],
        floats: Tensor | None = None,
    ) -> None:
        self.inputs = inputs
        self.options = options
        self.q, self.scale, self.azp = made
        self.floats = floats
        self.dtype = inputs["x"].dtype

    @classmethod
    def make(cls, inputs: Rows, options: Mapping[str, Any], normed: bool = False) -> Produced:
        given = {**inputs, **options}
        if not normed:
            return cls(inputs, options, produce_int8(**given))
        *made, floats = produce_norm_int8(**given)
        return cls(inputs, options, tuple(made), floats)

    @property
    def shape(self) -> torch.Size:
        return self.q.shape

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def ndim(self) -> int:
        return self.q.ndim

    def dim(self) -> int:
        return self.q.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.q.shape if dim is None else self.q.shape[dim]

    def __len__(self) -> int:
        return len(self.q)

    def unquantized(self) -> Tensor:
        """What was quantised, before smoothing, float32 by torch's functions: for measures of
        noise. The producer's own bits may differ from these."""
        given: Any = self.options
        x = self.inputs["x"].float()
        weight, bias, shape = given.get("weight"), given.get("bias"), x.shape[-1:]
        norms: dict[str, Any] = {
            "rms_norm": lambda: functional.rms_norm(x, shape, _wide(weight), given["eps"]),
            "layer_norm": lambda: functional.layer_norm(
                x, shape, _wide(weight), _wide(bias), given["eps"]
            ),
        }
        producer = given["producer"]
        y: Tensor = norms[producer]() if producer in norms else ACTIVATIONS[producer](x)
        return y * self.inputs["times"].float() if "times" in self.inputs else y

    def plain(self) -> Tensor:
        """The activation as a tensor of its dtype: as the norm wrote it, else made by torch's
        functions."""
        if self.floats is not None:
            return self.floats
        return self.unquantized().to(self.dtype)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(plain, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.plain(), name)

    def contiguous(self) -> Produced:
        return self

    def reshape(self, *shape: Any) -> Any:
        """Other leading dimensions; where the columns change too, of `plain()`."""
        lead = self._lead(shape)
        if lead is None:
            return self.plain().reshape(*shape)
        return self._each(lambda t: t.reshape(*lead, t.shape[-1]))

    def view(self, *shape: Any) -> Any:
        """As `reshape`; of a dtype, of `plain()`."""
        return self.plain().view(*shape) if self._lead(shape) is None else self.reshape(*shape)

    def _lead(self, shape: tuple[Any, ...]) -> tuple[int, ...] | None:
        """The leading dimensions that a shape asks for; None where it does not leave the columns as
        they are."""
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        if not shape or isinstance(shape[-1], torch.dtype):
            return None
        if shape[-1] == self.shape[-1]:
            return shape[:-1]
        # -1 stands for the columns where the others are as many as there are rows.
        same = shape[-1] == -1 and math.prod(shape[:-1]) == math.prod(self.shape[:-1])
        return shape[:-1] if same else None

    def __getitem__(self, index: Any) -> Any:
        """Some of the rows; where the index takes columns too, of `plain()`."""
        if not _leaves_columns(index, self.ndim):
            return self.plain()[index]
        return self._each(lambda t: t[index])

    def _each(self, change: Any) -> Produced:
        """`change` done to everything that has rows."""
        given = self.options.get("scale") is not None  # then one scale may be all rows'
        per_row = [
            t if t is None or (given and t.numel() == 1) else change(t)
            for t in (self.scale, self.azp)
        ]
        inputs = {name: change(t) for name, t in self.inputs.items()}
        floats = None if self.floats is None else change(self.floats)
        return Produced(inputs, self.options, (change(self.q), per_row[0], per_row[1]), floats)  # type: ignore[arg-type]


_REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow")
_OPERATORS = (
    *("__neg__", "__pos__", "__abs__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *(f"__{r}{name}__" for r in ("", "r") for name in _REFLECTED),
)


def _operator(name: str) -> Any:
    def operate(self: Produced, *others: Any) -> Any:
        return getattr(self.plain(), name)(*map(plain, others))

    return operate


for _name in _OPERATORS:  # Python looks them up in the class, and asks no __getattr__
    setattr(Produced, _name, _operator(_name))


def _leaves_columns(index: Any, ndim: int) -> bool:
    """Whether an index takes rows alone, and the last of ndim dimensions stays whole and last."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(part, _INDICES) and not isinstance(part, bool) for part in parts):
        return False
    taken = sum(_dimensions(part) for part in parts)
    whole = bool(parts) and isinstance(parts[-1], slice) and parts[-1] == slice(None)
    if any(part is Ellipsis for part in parts):
        return whole or (parts[-1] is Ellipsis and taken < ndim)
    return taken < ndim or (taken == ndim and whole)


_INDICES = (int, slice, Tensor, type(None), type(Ellipsis))


def _dimensions(part: Any) -> int:
    """How many dimensions a part of an index takes."""
    if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return int(part is not None and part is not Ellipsis)


def plain(x: Any) -> Any:
    """What is produced as a tensor; all else as it is."""
    return x.plain() if isinstance(x, Produced) else x


def joined(rows: Sequence[Any]) -> Any:
    """Tensors, or the rows that one producer made in several calls, as one."""
    if isinstance(rows[0], Tensor):
        return torch.cat(list(rows))
    first: Produced = rows[0]

    given = first.options.get("scale") is not None

    def whole(parts: list[Tensor | None]) -> Any:
        part = parts[0]
        if part is None or (given and part.numel() == 1):
            return part
        return torch.cat(parts)  # type: ignore[arg-type]

    inputs = {name: torch.cat([r.inputs[name] for r in rows]) for name in first.inputs}
    made = (
        torch.cat([r.q for r in rows]),
        whole([r.scale for r in rows]),
        whole([r.azp for r in rows]),
    )
    floats = None if first.floats is None else torch.cat([r.floats for r in rows])
    return Produced(inputs, first.options, made, floats)


def _wide(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.float()
