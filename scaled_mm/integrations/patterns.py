"""What norms and activations look like in a graph of aten's operations.

A pattern is a function of torch's. It is traced as inductor traces a model, with the decompositions
of the torch that is installed, so the graph of it is the one that the model has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from .._torch import decompositions
from ..nn.fused import ACTIVATIONS

_EPS = 0.0123  # stands for any
_K = 24  # columns of the example
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_SYMMETRIC = {torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor}


@dataclass(frozen=True)
class Match:
    """A producer, its first argument, and its others by name."""

    producer: str
    x: fx.Node
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """`graph` of a function whose arguments are named as a producer's are."""

    producer: str
    graph: fx.Graph


# --- the functions --------------------------------------------------------------------------------


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (_K,), weight, _EPS)


def _rms_of_transformers(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)
    return weight * (wide * root).to(x.dtype)


def _layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.layer_norm(x, (_K,), weight, bias, _EPS)


def _alone(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def _times(function: Callable[[Tensor], Tensor], x: Tensor, times: Tensor) -> Tensor:
    return function(x) * times


FUNCTIONS: list[tuple[str, Callable[..., Tensor], int]] = [
    ("rms_norm", _rms, 2),
    ("rms_norm", _rms_of_transformers, 2),
    ("layer_norm", _layer, 3),
    ("layer_norm", partial(_layer, bias=None), 2),
    *((name, partial(_times, function), 0) for name, function in ACTIVATIONS.items()),
    *((name, partial(_alone, function), 1) for name, function in ACTIVATIONS.items()),
]
"""The producer, the function, and how many arguments it has; 0: x and another of its shape."""


@cache
def patterns() -> tuple[Pattern, ...]:
    """All of them, the longer ones of several that end alike first."""
    return tuple(_traced())


def _traced() -> Iterator[Pattern]:
    for producer, function, count in FUNCTIONS:
        for dtype in _DTYPES:
            x = torch.ones(3, _K, dtype=dtype)
            vector = torch.ones(_K, dtype=dtype)
            given = (x, x.clone()) if count == 0 else (x, vector, vector.clone())[:count]
            with torch.no_grad():
                graph = make_fx(function, decompositions(), tracing_mode="fake")(*given).graph
            _made_pure(graph)
            yield Pattern(producer, graph)


def _made_pure(graph: fx.Graph) -> None:
    """Puts x + y in the place of x += y, as inductor's graphs have it. The decompositions do so
    with nothing but what they have just made."""
    for node in graph.nodes:
        if getattr(node.target, "namespace", None) != "aten":
            continue
        name, _, overload = node.target.name().removeprefix("aten::").partition(".")
        if name.endswith("_"):
            pure = getattr(torch.ops.aten, name.removesuffix("_"))
            node.target = getattr(pure, overload or "default")
    graph.eliminate_dead_code()


# --- the search -----------------------------------------------------------------------------------

_NAMES = {"norm": ("x", "weight", "bias"), "function": ("x", "times")}


def find(y: fx.Node) -> Match | None:
    """What makes y, where a producer does and nobody reads what is in between."""
    for pattern in patterns():
        bound = _Search(pattern.graph).match(y)
        if bound is not None and (match := _checked(pattern.producer, bound)):
            return match
    return None


class _Search:
    """One attempt to lay a pattern over the graph that ends in y."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self.bound: dict[fx.Node, Any] = {}
        self.eps: float | None = None

    def match(self, y: fx.Node) -> list[Any] | None:
        """What stands for the pattern's inputs; then eps or None."""
        (end,) = (node for node in self.graph.nodes if node.op == "output")
        if not self._same(end.args[0], y):
            return None
        inner = {n for p, n in self.bound.items() if p.op != "placeholder"}
        if any(reader not in inner for n in inner - {y} for reader in n.users):
            return None
        return [*(self.bound.get(node) for node in self.inputs), self.eps]

    def _same(self, want: Any, got: Any) -> bool:
        if isinstance(want, fx.Node):
            if not isinstance(got, fx.Node):
                return False
            if want in self.bound:
                return self.bound[want] is got
            if want.op == "placeholder":
                return self._bind(want, got)
            return want.target == got.target and self._same_call(want, got)
        if isinstance(want, float) and abs(want - _EPS) < 1e-6:  # float32's, in RMS norms
            if not isinstance(got, float) or self.eps not in (None, got):
                return False
            self.eps = got
            return True
        if isinstance(want, (list, tuple)):
            return (
                isinstance(got, (list, tuple))
                and len(want) == len(got)
                and all(map(self._same, want, got))
            )
        return type(want) is type(got) and bool(want == got)

    def _bind(self, want: fx.Node, got: fx.Node) -> bool:
        self.bound[want] = got
        return want.meta["val"].dtype == _value(got).dtype

    def _same_call(self, want: fx.Node, got: fx.Node) -> bool:
        if dict(want.kwargs).keys() != dict(got.kwargs).keys():
            return False
        orders = [got.args]
        if want.target in _SYMMETRIC and len(got.args) == 2:
            orders.append(got.args[::-1])
        before, eps = dict(self.bound), self.eps
        for args in orders:
            self.bound, self.eps = dict(before), eps
            self.bound[want] = got
            if len(args) == len(want.args) and all(
                self._same(*pair) for pair in self._pairs(want, got, args)
            ):
                return True
        self.bound, self.eps = before, eps
        return False

    def _pairs(self, want: fx.Node, got: fx.Node, args: Any) -> Iterator[tuple[Any, Any]]:
        mine: Any = want.args
        for i, (a, b) in enumerate(zip(mine, args, strict=True)):
            if i == 1 and want.target in _OVER_COLUMNS:  # the last dimension, however it is counted
                rank = _value(got.args[0]).ndim
                yield [_last(d, 2) for d in a], [_last(d, rank) for d in b]
            else:
                yield a, b
        yield from ((want.kwargs[name], got.kwargs[name]) for name in want.kwargs)


_OVER_COLUMNS = {torch.ops.aten.mean.dim, torch.ops.aten.var_mean.correction}


def _last(dim: int, rank: int) -> int:
    """The dimension, counted from the end."""
    return dim - rank if dim >= 0 else dim


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _checked(producer: str, bound: list[Any]) -> Match | None:
    """The match, if the shapes are those that a producer takes."""
    (*nodes, eps) = bound
    norm = producer.endswith("norm")
    names = _NAMES["norm" if norm else "function"]
    x, *others = nodes
    shape = _value(x).shape
    wanted = shape[-1:] if norm else shape
    if not shape or any(_value(node).shape != wanted for node in others):
        return None
    options: dict[str, Any] = dict(zip(names[1:], others, strict=False))
    return Match(producer, x, {**options, "eps": eps} if norm else options)
